package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// units are the slices of systemd. Their names are those of units, without a path.
type units interface {
	// start creates a slice with its limits, or updates them.
	start(ctx context.Context, unit string, l limits) error
	// stop removes a slice with everything in it. It returns nil if there is none.
	stop(ctx context.Context, unit string) error
}

// Unenforced describes the limits that cannot be enforced on this node, each with the
// reason. It is empty if all can. It reads the cgroup file system until it has found
// writable cgroups.
func (m *Manager) Unenforced() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.find()
	out := slices.Clone(m.unenforced)
	if _, owned := withUnits(m.tree, m.units); m.tree != nil && m.names.driver == Systemd && !owned {
		out = append(out, "slices are created without systemd, which can reset their limits when it reloads")
	}
	return out
}

// find opens the node's cgroups, unless they are open. It is retried while there are none
// that can be written. The caller holds m.mu.
func (m *Manager) find() {
	if m.tree != nil {
		return
	}
	m.unenforced = nil
	t, missing, err := open(m.cfg.Root, m.cfg.Parent)
	if err != nil {
		m.unenforced = []string{fmt.Sprintf("no limits and no QoS weights for pods: %v", err)}
		return
	}
	if !t.hasMemoryQoS() && m.cfg.MemoryQoS != (podspec.MemoryQoS{}) {
		missing = append(missing, "MemoryQoS: it needs cgroup v2 with the controller memory")
	}
	m.tree, m.unenforced = t, missing
	if m.cfg.Root == defaultRoot && m.units == nil {
		m.units = findUnits()
	}
}

// opened returns the node's cgroups, or nil while none can be written.
func (m *Manager) opened() tree {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.find()
	if m.tree == nil || m.names.driver != Systemd {
		return m.tree
	}
	t, _ := withUnits(m.tree, m.units)
	return t
}

// open returns the cgroups of the version that is mounted at root. missing describes the
// limits that cannot be enforced because a controller is unavailable.
func open(root, parent string) (t tree, missing []string, err error) {
	if _, err := os.Stat(root); err != nil {
		return nil, nil, fmt.Errorf("no cgroups: %w", err)
	}
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
		return openV2(root, parent)
	}
	return openV1(root, parent)
}

// findDriver gets the driver of the runtime, once.
func (m *Manager) findDriver(ctx context.Context) error {
	m.mu.Lock()
	final := m.namesFinal
	m.mu.Unlock()
	if final {
		return nil
	}
	reported, err := m.cfg.RuntimeDriver(ctx)
	driver := Driver(reported)
	switch {
	case err != nil && !errors.Is(err, runtime.ErrUnsupported):
		return fmt.Errorf("get cgroup driver of the runtime: %w", err)
	case err != nil || reported == "":
		driver = m.machineDriver()
	case driver != Cgroupfs && driver != Systemd:
		return fmt.Errorf("cgroup driver %q of the runtime is neither %s nor %s", reported, Cgroupfs, Systemd)
	}
	if err := checkParent(driver, m.cfg.Parent); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.namesFinal {
		m.names, m.namesFinal = names{driver, m.cfg.Parent}, true
	}
	return nil
}

// machineDriver returns the driver for a runtime that does not report its own: runtimes are
// configured for systemd where it runs.
func (m *Manager) machineDriver() Driver {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.find()
	if _, owned := withUnits(m.tree, m.units); owned && checkParent(Systemd, m.cfg.Parent) == nil {
		return Systemd
	}
	return Cgroupfs
}

// named returns the names of cgroups. They are those of the cgroupfs driver until the
// driver of the runtime is known.
func (m *Manager) named() names {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.names
}
