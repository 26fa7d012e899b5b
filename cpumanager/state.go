package cpumanager

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/atomicfile"
	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/topology"
)

const (
	stateVersion = 1
	// maxStateBytes bounds what is read of a state file: a thousand containers have a tenth.
	maxStateBytes = 1 << 20
)

// savedState is the format of the state file.
type savedState struct {
	Version int                    `json:"version"`
	Pods    map[types.UID]podState `json:"pods"`
}

// load reads the state file once. An error is temporary: it is tried again by the next call.
// A damaged file is renamed and its loss reported. Without a valid file, Run finds the
// assignments in the runtime.
func (m *Manager) load() error {
	m.mu.Lock()
	lost, err := m.loadLocked()
	m.mu.Unlock()
	if lost != nil && m.cfg.Hooks.StateLost != nil {
		m.cfg.Hooks.StateLost(lost)
	}
	return err
}

// loadLocked is load with m.mu locked. It returns why the state was lost, if it was.
func (m *Manager) loadLocked() (lost, err error) {
	if m.loaded {
		return nil, nil
	}
	var pods map[types.UID]podState
	err = atomicfile.Load(m.cfg.StateFile, maxStateBytes, func(text []byte) error {
		var err error
		pods, err = parseState(text)
		return err
	})
	damaged, isDamaged := errors.AsType[*atomicfile.DamagedError](err)
	switch {
	case isDamaged:
		m.cfg.Logger.Error("cpu assignments lost", logattr.Err(damaged))
		lost = damaged
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("cpumanager: assignments cannot be read, and no exclusive CPUs are assigned until they can be: %w", err)
	default:
		m.pods = pods
		close(m.restored)
	}
	m.loaded = true
	return lost, nil
}

// parseState returns the assignments of a state file, or an error if they cannot be those
// that this package has written.
func parseState(text []byte) (map[types.UID]podState, error) {
	var state savedState
	if err := json.Unmarshal(text, &state); err != nil {
		return nil, err
	}
	if state.Version != stateVersion {
		return nil, fmt.Errorf("version %d, want %d", state.Version, stateVersion)
	}
	pods, owners := map[types.UID]podState{}, map[int]types.UID{}
	for uid, p := range state.Pods {
		for container, a := range p {
			if uid == "" || container == "" || a.CPUs.Len() == 0 || a.Memory < 0 {
				return nil, fmt.Errorf("invalid assignment of pod %q, container %q", uid, container)
			}
			// Containers of one pod may have the same, one after the other.
			for _, cpu := range a.CPUs.IDs() {
				if owner, ok := owners[cpu]; ok && owner != uid {
					return nil, fmt.Errorf("CPU %d is assigned to the pods %s and %s", cpu, owner, uid)
				}
				owners[cpu] = uid
			}
		}
		if len(p) > 0 {
			pods[uid] = p
		}
	}
	return pods, nil
}

// save writes the state file, without what is only reserved.
func (m *Manager) save() error {
	m.saving.Lock()
	defer m.saving.Unlock()
	m.mu.Lock()
	state := savedState{Version: stateVersion, Pods: map[types.UID]podState{}}
	for uid, p := range m.pods {
		for container, a := range p {
			if a = a.effective(); a.CPUs.Len() == 0 {
				continue
			}
			if state.Pods[uid] == nil {
				state.Pods[uid] = podState{}
			}
			state.Pods[uid][container] = a
		}
	}
	m.unsaved = false
	m.mu.Unlock()
	text, err := json.Marshal(state)
	if err == nil {
		err = atomicfile.Write(m.cfg.StateFile, text)
	}
	if err != nil {
		m.mu.Lock()
		m.unsaved = true
		m.mu.Unlock()
		return fmt.Errorf("cpumanager: store assignments: %w", err)
	}
	return nil
}

// warnOffline logs assignments of CPUs that are not there. m.mu is locked.
func (m *Manager) warnOffline(online topology.Set) {
	for uid, p := range m.pods {
		for container, a := range p {
			if missing := a.CPUs.Minus(online); missing.Len() > 0 {
				m.cfg.Logger.Warn("exclusive cpus offline", logattr.PodUID(uid), slog.String("containerName", container), slog.String("cpus", missing.String()))
			}
		}
	}
}
