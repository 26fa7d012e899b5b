package runtime

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
)

// Pod is the observed state of one pod. A Pod is read-only once it has been passed on:
// its slices and maps are shared.
//
// A listing sets UID, Namespace, Name and, for each sandbox and container, the result
// of a list call (ids, names, attempts, states, creation times, labels). An inspection
// sets all fields.
type Pod struct {
	UID             types.UID
	Namespace, Name string

	Sandboxes  []Sandbox   // newest attempt first
	Containers []Container // of all sandboxes, newest attempt first

	// Object is the pod as a PodSyncer reports it, with its status. Such a runtime has no
	// Sandboxes and Containers. nil: it does not have the pod, or runs containers.
	Object *corev1.Pod

	// ObservedAt is when the inspection began: every change before it is included.
	// Zero for a listing.
	ObservedAt time.Time
}

// Sandbox is one pod sandbox: the environment that a pod's containers share.
type Sandbox struct {
	ID      string
	Attempt uint32 // 0 for the first sandbox of the pod
	State   SandboxState
	Created time.Time
	Handler string // runtime handler, as named by a RuntimeClass; "": the default

	// Known after an inspection only.
	IPs         []string // primary first; empty for host network
	HostNetwork bool

	// From the labels and annotations that the agent set.
	GracePeriod time.Duration // terminationGracePeriodSeconds of the pod
	Source      string        // kubernetes.io/config.source of the pod
	// Those of the runtime. An inspection may leave out what the other fields and those of the Pod have, and the owner.
	Labels, Annotations map[string]string
}

// Container is one container of a Pod: one attempt at running it.
type Container struct {
	ID, Name  string
	SandboxID string
	Attempt   uint32 // restart count; 0 for the first start
	State     ContainerState
	Created   time.Time
	Image     string // reference in the pod's spec
	ImageID   string // id of the image in the runtime

	// Known after an inspection only.
	Started, Finished time.Time
	ExitCode          int32
	Reason            string // of the runtime: Completed, Error, OOMKilled, ...
	Message           string // termination message, at most 4 KiB
	Resources         *Resources
	User              *corev1.ContainerUser
	StopSignal        corev1.Signal
	LogPath           string

	// From the labels and annotations that the agent set.
	Type              ContainerType
	Hash              string // HashContainer of the spec from which it was created
	SpecImage         string // image in that spec; "": unknown
	BackOffStep       int    // consecutive restarts; see BackOff
	BackOffResources  string // HashResources of that spec, for which BackOffStep counts; "": unknown
	RestartGeneration uint32 // previous restarts of all containers; see Action
	GracePeriod       time.Duration
	PreStop           *corev1.LifecycleHandler
	// Those of the runtime. An inspection may leave out what the other fields and those of the Pod have, and the owner.
	Labels, Annotations map[string]string
}

// Resources are the actual resources of a container. A nil value is unlimited or not
// reported.
type Resources struct {
	CPURequest, CPULimit, MemoryLimit, MemoryRequest *resource.Quantity
	// MinCPULimit is the lowest CPU limit in millicores that the kernel enforces in the period of CPULimit,
	// 1 ms of it: a lower one counts as this. 0: see LeastCPULimit.
	MinCPULimit int64
	// NoCPUQuota means that the node enforces no CPU limits, so that a nil CPULimit has
	// no meaning.
	NoCPUQuota bool
	// ExclusiveCPUs means that the container is to have no CPU limit, because it has CPUs for
	// itself. A runtime does not set it.
	ExclusiveCPUs bool
	Cpuset        Cpuset // as the runtime reports it
}

// Image is one image on the node.
type Image struct {
	ID      string
	Tags    []string // repo:tag references
	Digests []string // repo@digest references
	Bytes   uint64
	Pinned  bool // never removed by garbage collection
}

// FSUsage is a measurement of a file system. A zero At means that it is unknown.
type FSUsage struct {
	At                     time.Time
	Mountpoint             string // a directory on it
	UsedBytes, InodesUsed  uint64
	CapacityBytes, Inodes  uint64 // zero if the runtime does not report them
	AvailableBytes, Device uint64 // zero if the runtime does not report them
}

// Condition is one condition of the runtime itself, as in the CRI call Status.
type Condition struct {
	Type            string // RuntimeReady, NetworkReady, ...
	Status          bool
	Reason, Message string
}

// Status is the status that a runtime reports.
type Status struct {
	Name, Version              string
	RuntimeReady, NetworkReady bool
	Conditions                 []Condition
	Handlers                   []Handler // runtime handlers, if the runtime reports them
	SupplementalGroupsPolicy   bool      // supplementalGroupsPolicy of pods is supported
}

// Handler is a runtime handler, as named by a RuntimeClass, and its features.
type Handler struct {
	Name                                    string // "": the default
	RecursiveReadOnlyMounts, UserNamespaces bool
}

// IsEmpty reports whether the pod has no sandbox, no container and no Object: it is not in
// the runtime.
func (p *Pod) IsEmpty() bool { return len(p.Sandboxes)+len(p.Containers) == 0 && p.Object == nil }

// Source returns the source that the pod was made from, "" if that is unknown.
func (p *Pod) Source() string {
	if p.Object != nil {
		return p.Object.Annotations[podspec.AnnotationSource]
	}
	for i := range p.Sandboxes {
		if s := p.Sandboxes[i].Source; s != "" {
			return s
		}
	}
	for i := range p.Containers {
		if s := p.Containers[i].Annotations[podspec.AnnotationSource]; s != "" {
			return s
		}
	}
	return ""
}

// LatestContainer returns the newest container of that name, or nil.
func (p *Pod) LatestContainer(name string) *Container {
	for i := range p.Containers {
		if p.Containers[i].Name == name {
			return &p.Containers[i]
		}
	}
	return nil
}

// CouldHaveRunningContainers reports whether any container runs or may run. Unknown
// containers may run, created ones do not. Those of an Object may run until its phase is
// terminal.
func (p *Pod) CouldHaveRunningContainers() bool {
	if p.Object != nil && !podspec.IsTerminalPhase(p.Object.Status.Phase) {
		return true
	}
	for i := range p.Containers {
		if p.Containers[i].State == Running || p.Containers[i].State == Unknown {
			return true
		}
	}
	return false
}

// HasReadySandbox reports whether any sandbox is ready, also one that is not the newest.
func (p *Pod) HasReadySandbox() bool {
	return slices.ContainsFunc(p.Sandboxes, func(s Sandbox) bool { return s.State == SandboxReady })
}

// ReadySandbox returns the newest sandbox if it is ready, or nil.
func (p *Pod) ReadySandbox() *Sandbox {
	if len(p.Sandboxes) == 0 || p.Sandboxes[0].State != SandboxReady {
		return nil
	}
	return &p.Sandboxes[0]
}
