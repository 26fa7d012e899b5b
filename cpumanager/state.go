package cpumanager

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/statefile"
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

func (m *Manager) newFile() *statefile.File[savedState] {
	return &statefile.File[savedState]{
		Path: m.cfg.StateFile, Limit: maxStateBytes, Mu: &m.mu,
		Parse: parseState, Restore: m.restore, Snapshot: m.snapshot, Lost: m.cfg.Hooks.StateLost,
	}
}

// load reads the state file once. An error is temporary.
func (m *Manager) load() error {
	if err := m.file.Load(); err != nil {
		return fmt.Errorf("cpumanager: assignments cannot be read, and no exclusive CPUs are assigned until they can be: %w", err)
	}
	return nil
}

// restore takes over the assignments of the state file. Without a valid file, Run finds them in
// the runtime. m.mu is locked.
func (m *Manager) restore(state savedState, err error) {
	switch {
	case err == nil:
		m.pods = state.Pods
		close(m.restored)
	case !errors.Is(err, fs.ErrNotExist):
		m.cfg.Logger.Error("cpu assignments lost", logattr.Err(err))
	}
}

// parseState returns the assignments of a state file, or an error if they cannot be those
// that this package has written.
func parseState(text []byte) (savedState, error) {
	var state savedState
	if err := json.Unmarshal(text, &state); err != nil {
		return savedState{}, err
	}
	if state.Version != stateVersion {
		return savedState{}, fmt.Errorf("version %d, want %d", state.Version, stateVersion)
	}
	pods, owners := map[types.UID]podState{}, map[int]types.UID{}
	for uid, p := range state.Pods {
		for container, a := range p {
			if uid == "" || container == "" || a.CPUs.Len() == 0 || a.Memory < 0 || a.HugePages.least() < 0 || a.Step < 0 {
				return savedState{}, fmt.Errorf("invalid assignment of pod %q, container %q", uid, container)
			}
			// Containers of one pod may have the same, one after the other.
			for _, cpu := range a.CPUs.IDs() {
				if owner, ok := owners[cpu]; ok && owner != uid {
					return savedState{}, fmt.Errorf("CPU %d is assigned to the pods %s and %s", cpu, owner, uid)
				}
				owners[cpu] = uid
			}
		}
		if len(p) > 0 {
			pods[uid] = p
		}
	}
	state.Pods = pods
	return state, nil
}

// snapshot returns the state without what is only reserved. m.mu is locked.
func (m *Manager) snapshot() savedState {
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
	return state
}

// save writes the state file if something has changed.
func (m *Manager) save() error {
	if err := m.file.Save(); err != nil {
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
