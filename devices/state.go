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

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/statefile"
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

func (m *Manager) newFile() *statefile.File[savedState] {
	return &statefile.File[savedState]{
		Path: m.cfg.StateFile, Limit: maxStateBytes, Mu: &m.mu,
		Parse: parseState, Restore: m.restore, Snapshot: m.snapshot, Lost: m.cfg.Hooks.StateLost,
	}
}

// load reads the state file once. An error is temporary.
func (m *Manager) load() error {
	if err := m.file.Load(); err != nil {
		return fmt.Errorf("devices: allocations cannot be read, and nothing is allocated until they can be: %w", err)
	}
	return nil
}

// restore takes over the allocations of the state file. m.mu is locked.
func (m *Manager) restore(state savedState, err error) {
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.cfg.Logger.Error("device allocations lost", logattr.Err(err))
		m.lostAt = time.Now()
	}
	if m.isNew = errors.Is(err, fs.ErrNotExist); m.isNew {
		m.file.Changed() // the next Manager is not new
	}
	for _, name := range state.Resources {
		if m.resources[name] == nil && IsExtendedResource(name) {
			m.resources[name] = &resourceState{stored: true}
		}
	}
	maps.Copy(m.pods, confirmed(state.Pods))
}

// adoptionPeriod is how long nothing is allocated after a loss, from the first request on: a pod that runs is known to have
// devices when it is synced, which may be a moment after another one requests some.
const adoptionPeriod = time.Minute

// checkAdopted returns an error if pods that run may not have been adopted since the state was lost. m.mu is locked.
func (m *Manager) checkAdopted() error {
	if m.lostAt.IsZero() {
		return nil
	}
	if m.adoptedAt.IsZero() {
		m.adoptedAt = time.Now().Add(adoptionPeriod)
	}
	if rest := time.Until(m.adoptedAt); rest > 0 {
		return fmt.Errorf("%w: pods that run are adopted first, for another %s", ErrStateLost, rest.Round(time.Second))
	}
	return nil
}

// IsNew reports whether the Manager has found no state file, and is the first to write it: the machine is new, or was
// installed again. It is false while that is not known.
func (m *Manager) IsNew() bool {
	if err := m.load(); err != nil {
		return false
	}
	if err := m.save(); err != nil {
		m.cfg.Logger.Warn("state of devices not stored", logattr.Err(err))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.isNew
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

// snapshot returns the state without reservations that a plugin has not confirmed: nothing was
// created with them. m.mu is locked.
func (m *Manager) snapshot() savedState {
	return savedState{Version: stateVersion, Resources: slices.Sorted(maps.Keys(m.resources)), Pods: confirmed(m.pods)}
}

// save writes the state file if something has changed.
func (m *Manager) save() error {
	if err := m.file.Save(); err != nil {
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
