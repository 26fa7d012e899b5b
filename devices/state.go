package devices

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/atomicfile"
	"github.com/sublet-dev/agent/internal/logattr"
)

const (
	stateVersion = 1
	// maxStateBytes bounds what is read of a state file: a megabyte for 1,000 devices.
	maxStateBytes = 16 << 20
	// maxDevices bounds the devices of one resource, and so what a plugin can make the
	// agent store.
	maxDevices = 10_000
)

// savedState is the format of the state file.
type savedState struct {
	Version int `json:"version"`
	// Resources are those that a plugin has provided: pods that request them wait for
	// the plugin after a restart.
	Resources []corev1.ResourceName  `json:"resources"`
	Pods      map[types.UID]podState `json:"pods"`
}

// load reads the state file once. An error is temporary: it is tried again by the next
// call. A damaged file is renamed and its loss reported.
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
	var state savedState
	err = atomicfile.Load(m.cfg.StateFile, maxStateBytes, func(text []byte) (err error) {
		state, err = parseState(text)
		return err
	})
	damaged, isDamaged := errors.AsType[*atomicfile.DamagedError](err)
	switch {
	case isDamaged:
		m.cfg.Logger.Error("device allocations lost", logattr.Err(damaged))
		lost = damaged
		m.lostAt = time.Now()
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("devices: allocations cannot be read, and nothing is allocated until they can be: %w", err)
	}
	m.loaded = true
	for _, name := range state.Resources {
		if m.resources[name] == nil && IsExtendedResource(name) {
			m.resources[name] = &resourceState{}
		}
	}
	maps.Copy(m.pods, confirmed(state.Pods))
	return lost, nil
}

func parseState(text []byte) (savedState, error) {
	var state savedState
	if err := json.Unmarshal(text, &state); err != nil {
		return savedState{}, err
	}
	if state.Version != stateVersion {
		return savedState{}, fmt.Errorf("version %d, want %d", state.Version, stateVersion)
	}
	return state, nil
}

// save writes the state file. Reservations that a plugin has not confirmed are left out:
// nothing was created with them.
func (m *Manager) save() error {
	m.saving.Lock()
	defer m.saving.Unlock()
	m.mu.Lock()
	state := savedState{Version: stateVersion, Resources: slices.Sorted(maps.Keys(m.resources)), Pods: confirmed(m.pods)}
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
		return fmt.Errorf("devices: store allocations: %w", err)
	}
	return nil
}

// confirmed returns a copy without the allocations that a plugin has not answered.
func confirmed(pods map[types.UID]podState) map[types.UID]podState {
	out := map[types.UID]podState{}
	for uid, pod := range pods {
		containers := podState{}
		for container, byResource := range pod {
			byResource = maps.Clone(byResource)
			maps.DeleteFunc(byResource, func(_ corev1.ResourceName, a allocation) bool { return a.Injection == nil })
			if len(byResource) > 0 {
				containers[container] = byResource
			}
		}
		if len(containers) > 0 {
			out[uid] = containers
		}
	}
	return out
}
