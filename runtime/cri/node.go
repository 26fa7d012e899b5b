package cri

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sublet-dev/agent/internal/bootid"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime/cri/internal/translate"
)

// Swap says how much of the node's swap containers may use.
type Swap uint8

// The ways to deal with swap.
const (
	// RuntimeDefaultSwap leaves swap to the runtime.
	RuntimeDefaultSwap Swap = iota
	// NoSwap keeps every container from swapping.
	NoSwap
	// LimitedSwap lets burstable containers use swap in proportion to their
	// memory request, as far as Node says how much there is.
	LimitedSwap
)

// Node is what a translation needs to know of the machine.
type Node struct {
	// MemoryCapacity is the node's memory in bytes. [that of RunOptions.Allocatable]
	// It decides the oom_score_adj of burstable containers.
	MemoryCapacity int64
	// SwapCapacity is the node's swap in bytes; for LimitedSwap.
	SwapCapacity int64
	Swap         Swap
	// NoSwapController says that the kernel cannot bound swap: Swap has no effect.
	NoSwapController bool
	// CgroupV2 says that the node has the unified hierarchy: settings that only
	// it knows are made, and one process that runs out of memory takes its
	// container along.
	CgroupV2 bool
	// SELinux says that the node has SELinux enabled: the runtime gives the files of volumes, the
	// hosts file and the termination messages the label of their containers.
	SELinux bool
	// SingleProcessOOMKill ends only the process that runs out of memory, as
	// without CgroupV2.
	SingleProcessOOMKill bool
	// MemoryQoS protects and throttles the memory of containers, with CgroupV2. That
	// of pods must be the same: see cgroup.Config. The agent sets it to that of node.Config.
	MemoryQoS podspec.MemoryQoS
	// NoCPUQuota leaves CPU limits unenforced.
	NoCPUQuota bool
	// CPUQuotaPeriod is the period of CPU limits. [100 ms]
	CPUQuotaPeriod time.Duration
	// HugePageSizes are the sizes the node has, such as "2MB": a container that
	// names no limit for one may not use any.
	HugePageSizes []string
	// SeccompRoot is the directory of Localhost profiles.
	// [/var/lib/kubelet/seccomp]
	SeccompRoot string
	// SeccompDefault confines containers that name no profile by the runtime's.
	SeccompDefault bool
	// MaskedPaths are hidden from containers with the default procMount,
	// besides those that always are.
	MaskedPaths []string
	// HostsFile is the node's own, for pods on the host network. [/etc/hosts]
	HostsFile string
	// BootID identifies the current boot of the machine that the containers run on: the
	// back-off of a container that was started in another one is over. [the kernel's]
	BootID string
}

// Check returns an error for each field that is invalid, as New would.
func (n Node) Check() error { return n.fill() }

// WithDetected returns n with the fields that are zero taken from what DetectNode has
// found. CgroupV2, NoSwapController and SELinux are always the detected ones, and MaskedPaths are
// those of both.
func (n Node) WithDetected(found Node) Node {
	n.CgroupV2, n.NoSwapController, n.SELinux = found.CgroupV2, found.NoSwapController, found.SELinux
	n.MemoryCapacity = cmp.Or(n.MemoryCapacity, found.MemoryCapacity)
	n.SwapCapacity = cmp.Or(n.SwapCapacity, found.SwapCapacity)
	if n.HugePageSizes == nil {
		n.HugePageSizes = found.HugePageSizes
	}
	n.MaskedPaths = slices.Concat(found.MaskedPaths, n.MaskedPaths)
	return n
}

// translated returns what translations need of n.
func (n *Node) translated() translate.Node {
	out := translate.Node{
		MemoryCapacity: n.MemoryCapacity, LimitsSwap: n.Swap != RuntimeDefaultSwap && !n.NoSwapController,
		CgroupV2: n.CgroupV2, SELinux: n.SELinux, SingleProcessOOMKill: n.SingleProcessOOMKill, MemoryQoS: n.MemoryQoS,
		NoCPUQuota: n.NoCPUQuota, CPUQuotaPeriod: n.CPUQuotaPeriod, HugePageSizes: n.HugePageSizes,
		SeccompRoot: n.SeccompRoot, SeccompDefault: n.SeccompDefault, MaskedPaths: n.MaskedPaths, BootID: n.BootID,
	}
	if n.Swap == LimitedSwap {
		out.SwapCapacity = n.SwapCapacity
	}
	return out
}

func (n *Node) fill() error {
	var errs []error
	if err := n.MemoryQoS.Check(); err != nil {
		errs = append(errs, fmt.Errorf("Node.%w", err))
	}
	if n.CPUQuotaPeriod == 0 {
		n.CPUQuotaPeriod = 100 * time.Millisecond
	}
	if n.CPUQuotaPeriod < time.Millisecond || n.CPUQuotaPeriod > time.Second {
		errs = append(errs, fmt.Errorf("Node.CPUQuotaPeriod must be from 1ms to 1s, not %v", n.CPUQuotaPeriod))
	}
	if n.MemoryCapacity < 0 || n.SwapCapacity < 0 {
		errs = append(errs, errors.New("a capacity of Node is negative"))
	}
	if n.SeccompRoot == "" {
		n.SeccompRoot = "/var/lib/kubelet/seccomp"
	}
	if n.HostsFile == "" {
		n.HostsFile = "/etc/hosts"
	}
	if n.BootID == "" {
		n.BootID = bootid.Read()
	}
	for _, p := range []string{n.SeccompRoot, n.HostsFile} {
		if !filepath.IsAbs(p) {
			errs = append(errs, fmt.Errorf("a path of Node must be absolute, not %q", p))
		}
	}
	for _, size := range n.HugePageSizes {
		if !strings.HasSuffix(size, "B") {
			errs = append(errs, fmt.Errorf("Node.HugePageSizes must be like 2MB, not %q", size))
		}
	}
	n.HugePageSizes = slices.Clone(n.HugePageSizes)
	n.MaskedPaths = slices.Clone(n.MaskedPaths)
	return errors.Join(errs...)
}
