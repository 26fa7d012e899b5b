// Package translate turns the API of pods into messages of the CRI, and what a runtime
// answers into the model of package runtime.
//
// It decides and does nothing: no call to the runtime, no clock, no file but the
// environment files in a pod's volumes. What a translation refers to comes in through
// runtime.RunOptions: the objects of an environment, the paths of volumes, and the
// subpaths in them. What the runtime has to be asked for comes in as arguments.
//
// The annotations in which a container keeps what an agent that starts again has to know
// are written and read here.
package translate

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// Translator translates one pod. Its methods do not change it.
type Translator struct {
	Node     Node
	Features *Features // nil: not reported yet
	Pod      *corev1.Pod
	Options  runtime.RunOptions
	Owner    string // of what is created: the value of runtime.LabelOwner
}

// Node is what a translation needs to know of the machine.
type Node struct {
	// MemoryCapacity is the node's memory in bytes. [Options.Allocatable's]
	MemoryCapacity int64
	// LimitsSwap gives containers their share of SwapCapacity; otherwise swap is left to
	// the runtime.
	LimitsSwap   bool
	SwapCapacity int64 // bytes; 0: no container may swap
	CgroupV2     bool
	SELinux      bool // files get the label of the containers that use them
	// SingleProcessOOMKill leaves the other processes of a container running.
	SingleProcessOOMKill bool
	// MemoryQoS protects and throttles memory.
	MemoryQoS podspec.MemoryQoS
	// NoCPUQuota leaves CPU limits unenforced.
	NoCPUQuota     bool
	CPUQuotaPeriod time.Duration
	HugePageSizes  []string // as PageSize writes them
	// SeccompRoot is the directory of Localhost profiles.
	SeccompRoot    string
	SeccompDefault bool
	// MaskedPaths are hidden besides those that always are.
	MaskedPaths []string
	// BootID identifies the current boot. ["": unknown]
	BootID string
}
