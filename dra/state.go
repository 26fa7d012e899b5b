package dra

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/sublet-dev/agent/internal/atomicfile"
	"github.com/sublet-dev/agent/internal/logattr"
)

const (
	stateVersion = 1
	// maxStateBytes bounds what is read of a state file.
	maxStateBytes = 16 << 20
)

// savedState is the format of the state file.
type savedState struct {
	Version int           `json:"version"`
	Boot    string        `json:"boot,omitempty"` // in which the claims were prepared
	Claims  []*claimState `json:"claims"`
}

// claimState is a claim that a pod uses.
type claimState struct {
	Namespace string      `json:"namespace"`
	Name      string      `json:"name"`
	UID       types.UID   `json:"uid"`
	Pods      []types.UID `json:"pods"`
	// Drivers have the devices of the claim that each has prepared, nil before.
	Drivers map[string]*[]device `json:"drivers"`

	inUse chan struct{} // one slot: the right to have it prepared or released
}

// device is a prepared device.
type device struct {
	Requests   []string `json:"requests,omitempty"` // of the claim; none: all
	Pool       string   `json:"pool,omitempty"`
	Name       string   `json:"name,omitempty"`
	CDIDevices []string `json:"cdiDevices,omitempty"`
}

// isFor reports whether the device belongs to a request of its claim; "" is all requests. A
// subrequest of a device counts as its request.
func (d device) isFor(request string) bool {
	return request == "" || len(d.Requests) == 0 || slices.ContainsFunc(d.Requests, func(r string) bool {
		name, _, _ := strings.Cut(r, "/")
		return r == request || name == request
	})
}

func (c *claimState) api() *api.Claim {
	return &api.Claim{Namespace: c.Namespace, Uid: string(c.UID), Name: c.Name}
}

// unprepared returns the drivers that have not prepared the claim, sorted.
func (c *claimState) unprepared() []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(c.Drivers)) {
		if c.Drivers[name] == nil {
			out = append(out, name)
		}
	}
	return out
}

func (c *claimState) isPrepared() bool { return len(c.unprepared()) == 0 }

// isCDIName reports whether a text has the form vendor.example/class=name.
func isCDIName(text string) bool {
	kind, name, ok := strings.Cut(text, "=")
	vendor, class, slash := strings.Cut(kind, "/")
	return ok && slash && vendor != "" && class != "" && name != ""
}

// load reads the state file once. An error is temporary: it is tried again by the next call. A
// damaged file is renamed and its loss reported: claims of running pods are prepared again
// when a container of theirs is created, and released at their end from then on.
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
	var claims map[types.UID]*claimState
	var boot string
	err = atomicfile.Load(m.cfg.StateFile, maxStateBytes, func(text []byte) (err error) {
		claims, boot, err = parseState(text)
		return err
	})
	damaged, isDamaged := errors.AsType[*atomicfile.DamagedError](err)
	switch {
	case isDamaged:
		m.cfg.Logger.Error("prepared resource claims lost", logattr.Err(damaged))
		lost = damaged
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("dra: prepared claims cannot be read, and none is prepared until they can be: %w", err)
	}
	m.loaded = true
	if boot != m.cfg.BootID && boot != "" && m.cfg.BootID != "" {
		m.forgetPrepared(claims)
	}
	maps.Copy(m.claims, claims)
	return lost, nil
}

// forgetPrepared marks claims as not prepared. A driver loses with a boot what it prepared, among
// it the CDI specifications below /run, and prepares twice without harm.
func (m *Manager) forgetPrepared(claims map[types.UID]*claimState) {
	for _, c := range claims {
		for driver := range c.Drivers {
			c.Drivers[driver] = nil
		}
	}
	m.unsaved = true
}

func parseState(text []byte) (claims map[types.UID]*claimState, boot string, err error) {
	var state savedState
	if err := json.Unmarshal(text, &state); err != nil {
		return nil, "", err
	}
	if state.Version != stateVersion {
		return nil, "", fmt.Errorf("version %d, want %d", state.Version, stateVersion)
	}
	claims = map[types.UID]*claimState{}
	for _, c := range state.Claims {
		if c == nil || c.UID == "" || c.Name == "" || c.Namespace == "" || claims[c.UID] != nil {
			return nil, "", errors.New("invalid claim")
		}
		if c.Drivers == nil {
			c.Drivers = map[string]*[]device{}
		}
		c.inUse = make(chan struct{}, 1)
		claims[c.UID] = c
	}
	return claims, state.Boot, nil
}

// save writes the state file if something has changed.
func (m *Manager) save() error {
	m.saving.Lock()
	defer m.saving.Unlock()
	m.mu.Lock()
	if !m.unsaved {
		m.mu.Unlock()
		return nil
	}
	state := savedState{Version: stateVersion, Boot: m.cfg.BootID}
	for _, uid := range slices.Sorted(maps.Keys(m.claims)) {
		state.Claims = append(state.Claims, m.claims[uid])
	}
	text, err := json.Marshal(state)
	m.unsaved = false
	m.mu.Unlock()
	if err == nil {
		err = atomicfile.Write(m.cfg.StateFile, text)
	}
	if err != nil {
		m.mu.Lock()
		m.unsaved = true
		m.mu.Unlock()
		return fmt.Errorf("dra: store prepared claims: %w", err)
	}
	return nil
}
