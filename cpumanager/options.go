package cpumanager

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/topology"
)

// Options are what the kubelet calls options of the static policy. They may differ from one start to the next: containers that run
// keep the CPUs they have for themselves, and those that share are moved.
type Options struct {
	// FullPCPUsOnly gives containers whole cores: no two have CPUs of one core for themselves, and the other CPUs of a core that
	// is reserved in part are shared. A pod is rejected with ReasonSMTAlignment if a container requests CPUs that are not
	// whole cores, or if too few of these are free.
	FullPCPUsOnly bool
	// StrictCPUReservation leaves the reserved CPUs to the system: containers that share run on the others. If all of these are
	// assigned, containers that share run on the reserved CPUs meanwhile, as they must run somewhere.
	StrictCPUReservation bool
	// DistributeCPUsAcrossNUMA takes about as many CPUs from each NUMA node if one does not suffice.
	DistributeCPUsAcrossNUMA bool
	// PreferAlignCPUsByUncoreCache takes CPUs that share as few level 3 caches as possible. It excludes
	// DistributeCPUsAcrossNUMA.
	PreferAlignCPUsByUncoreCache bool
}

// Check returns an error for options that exclude each other.
func (o Options) Check() error {
	if o.PreferAlignCPUsByUncoreCache && o.DistributeCPUsAcrossNUMA {
		return errors.New("PreferAlignCPUsByUncoreCache and DistributeCPUsAcrossNUMA exclude each other; remove one of both")
	}
	return nil
}

// Preferences returns how CPUs are picked.
func (o Options) Preferences() topology.Preferences {
	return topology.Preferences{FullCores: o.FullPCPUsOnly, AlignByUncoreCache: o.PreferAlignCPUsByUncoreCache, DistributeAcrossNodes: o.DistributeCPUsAcrossNUMA}
}

// ReasonSMTAlignment is the reason of pods that are rejected because of Options.FullPCPUsOnly, as in the kubelet.
const ReasonSMTAlignment = "SMTAlignmentError"

// SMTAlignmentError says that a container cannot get whole cores. It is a topology.Rejection.
type SMTAlignmentError struct {
	Container string
	Requested int // CPUs
	PerCore   int // CPUs of a core
	Free      int // CPUs of cores that are free, if the request is one of whole cores
}

var _ topology.Rejection = (*SMTAlignmentError)(nil)

// Error implements error.
func (e *SMTAlignmentError) Error() string {
	if e.isAligned() {
		return fmt.Sprintf("SMT Alignment Error: container %s: too few whole cores are free: requested=%d, available=%d CPUs, of %d in a core", e.Container, e.Requested, e.Free, e.PerCore)
	}
	return fmt.Sprintf("SMT Alignment Error: container %s: requested=%d CPUs are not whole cores, which have %d each", e.Container, e.Requested, e.PerCore)
}

// Is reports whether target is ErrNotEnough, and other containers have the cores.
func (e *SMTAlignmentError) Is(target error) bool { return target == ErrNotEnough && e.isAligned() }

// AdmitResult implements topology.Rejection. A request that is not one of whole cores never fits.
func (e *SMTAlignmentError) AdmitResult() podspec.AdmitResult {
	result := podspec.Rejected(ReasonSMTAlignment, e.Error())
	result.CanNeverFit = !e.isAligned()
	return result
}

func (e *SMTAlignmentError) isAligned() bool { return e.Requested%e.PerCore == 0 }

// isAligned reports whether n CPUs may be whole cores, if these are required. m.mu is locked.
func (m *Manager) isAligned(n int) bool {
	return !m.cfg.Options.FullPCPUsOnly || n%m.topology.CPUsPerCore() == 0
}

// usable returns those of the CPUs that one container may get for itself. m.mu is locked.
func (m *Manager) usable(cpus topology.Set) topology.Set {
	if !m.cfg.Options.FullPCPUsOnly {
		return cpus
	}
	return m.topology.FullCores(cpus)
}

// allocatable returns the CPUs that can be exclusive. m.mu is locked.
func (m *Manager) allocatable() topology.Set {
	return m.usable(m.topology.Online().Minus(m.cfg.Reserved))
}

// notEnough returns the error for a container that cannot get n of the free CPUs. m.mu is locked.
func (m *Manager) notEnough(container *corev1.Container, n int, free topology.Set) error {
	available := free.Intersect(m.topology.Online()).Len()
	if m.cfg.Options.FullPCPUsOnly {
		return &SMTAlignmentError{Container: container.Name, Requested: n, PerCore: m.topology.CPUsPerCore(), Free: available}
	}
	return fmt.Errorf("%w: requested=%d, available=%d", ErrNotEnough, n, available)
}
