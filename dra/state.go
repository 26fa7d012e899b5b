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

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/statefile"
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
	// Allocation identifies the devices that the claim was allocated; "" in files of former versions.
	Allocation string `json:"allocation,omitempty"`

	inUse chan struct{} // one slot: the right to have it prepared or released
	// restoredPods are those that used the claim when it was read from the file, nil once it has been prepared since. For another
	// pod the file may be too old: what was released is stored later than it is done if the disk is full.
	restoredPods []types.UID
}

// device is a prepared device.
type device struct {
	Requests   []string `json:"requests,omitempty"` // of the claim; none: all
	Pool       string   `json:"pool,omitempty"`
	Name       string   `json:"name,omitempty"`
	CDIDevices []string `json:"cdiDevices,omitempty"`
	ShareID    string   `json:"shareID,omitempty"` // of a device that several claims share
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

// unpreparedFor returns the drivers that have to prepare the claim before a pod can use it, sorted.
func (c *claimState) unpreparedFor(pod types.UID) []string {
	if c.restoredPods == nil || slices.Contains(c.restoredPods, pod) {
		return c.unprepared()
	}
	return slices.Sorted(maps.Keys(c.Drivers))
}

func (c *claimState) isPrepared() bool { return len(c.unprepared()) == 0 }

func (c *claimState) isPreparedFor(pod types.UID) bool { return len(c.unpreparedFor(pod)) == 0 }

// isCDIName reports whether a text has the form vendor.example/class=name.
func isCDIName(text string) bool {
	kind, name, ok := strings.Cut(text, "=")
	vendor, class, slash := strings.Cut(kind, "/")
	return ok && slash && vendor != "" && class != "" && name != ""
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
		return fmt.Errorf("dra: prepared claims cannot be read, and none is prepared until they can be: %w", err)
	}
	return nil
}

// restore takes over the claims of the state file. If they are lost, those of running pods are
// prepared again when a container of theirs is created, and released at their end from then on.
// m.mu is locked.
func (m *Manager) restore(state savedState, err error) {
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.cfg.Logger.Error("prepared resource claims lost", logattr.Err(err))
	}
	for _, c := range state.Claims {
		c.restoredPods = append([]types.UID{}, c.Pods...)
		m.claims[c.UID] = c
	}
	if state.Boot != m.cfg.BootID && state.Boot != "" && m.cfg.BootID != "" {
		m.forgetPrepared()
	}
}

// forgetPrepared marks all claims as not prepared. A driver loses with a boot what it prepared, among
// it the CDI specifications below /run, and prepares twice without harm. m.mu is locked.
func (m *Manager) forgetPrepared() {
	for _, c := range m.claims {
		for driver := range c.Drivers {
			c.Drivers[driver] = nil
		}
	}
	m.file.Changed()
}

func parseState(text []byte) (savedState, error) {
	var state savedState
	if err := json.Unmarshal(text, &state); err != nil {
		return savedState{}, err
	}
	if state.Version != stateVersion {
		return savedState{}, fmt.Errorf("version %d, want %d", state.Version, stateVersion)
	}
	known := map[types.UID]bool{}
	for _, c := range state.Claims {
		if c == nil || c.UID == "" || c.Name == "" || c.Namespace == "" || known[c.UID] {
			return savedState{}, errors.New("invalid claim")
		}
		known[c.UID] = true
		if c.Drivers == nil {
			c.Drivers = map[string]*[]device{}
		}
		c.inUse = make(chan struct{}, 1)
	}
	return state, nil
}

// snapshot returns the state to be stored. It shares the claims. m.mu is locked.
func (m *Manager) snapshot() savedState {
	state := savedState{Version: stateVersion, Boot: m.cfg.BootID}
	for _, uid := range slices.Sorted(maps.Keys(m.claims)) {
		state.Claims = append(state.Claims, m.claims[uid])
	}
	return state
}

// save writes the state file if something has changed.
func (m *Manager) save() error {
	if err := m.file.Save(); err != nil {
		return fmt.Errorf("dra: store prepared claims: %w", err)
	}
	return nil
}
