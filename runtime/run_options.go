package runtime

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

// Paths in a pod's directory that its containers can write to besides volumes, as in the
// kubelet.
const (
	HostsFile   = "etc-hosts"  // mounted at /etc/hosts
	MessagesDir = "containers" // one directory per container, with one file per attempt: the termination messages
)

// RunOptions are the node's inputs to running a pod, besides the spec of the pod. They are
// read-only for the runtime.
type RunOptions struct {
	Dir           string   // directory of the pod: exists, mode 0700
	LogDir        string   // directory of the pod's container logs
	CgroupParent  string   // "": chosen by the runtime
	NodeName      string   // value of a fieldRef to spec.nodeName
	HostIPs       []string // values of a fieldRef to status.hostIPs, primary first
	Hostname      string   // "" for host network
	ClusterDomain string   // "": none
	DNS           DNS
	Volumes       map[string]Volume   // by their names in the spec
	Allocatable   corev1.ResourceList // value of a resourceFieldRef to a limit that is not set
	Objects       podspec.Objects     // ConfigMaps and Secrets; nil: there are none
	PullSecrets   []podspec.Object    // of the pod's imagePullSecrets

	// SubPath returns the path on the node of the subPath of a container's mount (the
	// index in its volumeMounts, expressions already expanded). It creates the path if
	// it is missing, and follows no links out of the volume. nil: a mount with a subPath
	// is rejected.
	SubPath func(ctx context.Context, container string, index int, mount corev1.VolumeMount) (string, error)

	// Inject returns what a container gets in addition to its spec. It is called before
	// the container is created, and may block. nil: nothing is injected.
	Inject func(ctx context.Context, container *corev1.Container) (Injection, error)
	// PreStart is called before each start of a container that was created, and may
	// block. The container is not started if it fails. nil: nothing is called.
	PreStart func(ctx context.Context, container string) error
	// SandboxReady is called at most once, while containers wait for an image for long, with the sandbox
	// that the same Apply has made for them. It must not block. nil: nothing is called.
	SandboxReady func(Sandbox)

	// NoCPUQuota reports whether the CPU limit of a container, or for "" that of the pod, is
	// left unenforced. It is asked after Inject. nil: every limit is enforced.
	NoCPUQuota func(container string) bool

	// UIDMappings and GIDMappings map the ids of the pod's user namespace to those of
	// the node; they are used only for pods with hostUsers false.
	UIDMappings, GIDMappings []IDMapping
}

// IDMapping maps the ids from Container to Container+Length-1 in a user namespace to those
// from Host on the node.
type IDMapping struct {
	Host, Container, Length uint32
}

// DNS is a pod's resolver configuration.
type DNS struct {
	Servers, Searches, Options []string
}

// Volume is one mounted volume of a pod.
type Volume struct {
	HostPath string // path on the node
	ReadOnly bool
	Image    string // image volumes: the reference, HostPath is empty
	Group    *int64 // a supplementary group that the containers of the pod need for it; nil: none
	// SELinuxRelabel has the runtime give the files the label of the pod's containers, which could not
	// use them otherwise on a node with SELinux. Files of the node itself must keep theirs.
	SELinuxRelabel bool
}

// Report is the input of a pod's status.
type Report struct {
	Observed Pod
	// Failures are those of the last sync, by container name. "" is the pod; there
	// corev1.PodReasonError is a resize of its cgroup that failed.
	Failures    map[string]Failure
	Probes      PodProbeResults  // by container id
	Resources   ResourceStatuses // by container name; one without keeps those of its previous status
	Termination *Termination     // set once termination was requested
	Finished    bool             // terminated, and all resources released
	Unreleased  bool             // it has something that others get once it has ended: its phase is not terminal before the release
	Blocked     *Failure         // soft admission: the phase is Pending, and exited containers start from the beginning
}

// ResourceStatuses are the health of devices and the like, by container name.
type ResourceStatuses = map[string][]corev1.ResourceStatus

// Probe results of containers.
type (
	// ProbeResults are the results of the probes of one container.
	ProbeResults struct {
		Startup   ProbeResult // startup probe; Success without one if it runs
		Readiness ProbeResult // readiness probe; Success without one if it has started
		Liveness  ProbeResult // liveness probe; Success without one
	}
	// PodProbeResults are by container id, of running containers, and of exited ones that are
	// unhealthy.
	PodProbeResults map[string]ProbeResults
	// ProbeResult is the result of one probe.
	ProbeResult uint8
)

// IsUnhealthy reports whether the liveness or startup probe has failed, for which the container is
// stopped.
func (r ProbeResults) IsUnhealthy() bool {
	return r.Liveness == ProbeFailure || r.Startup == ProbeFailure
}

// The results. ProbeUnknown is the zero value: there is no result yet.
const (
	ProbeUnknown ProbeResult = iota
	ProbeSuccess
	ProbeFailure
)

// PlanInput is the input of Plan besides the pod.
type PlanInput struct {
	Pod
	Probes  PodProbeResults
	BackOff BackOff // nil: DefaultBackOff

	// Injections are the hashes of what running containers would get in addition to
	// their specs if they were created now, by name; none is "". A running container
	// that got something else is replaced. UnknownInjection: it is kept.
	Injections map[string]string

	// Restarts is the highest known attempt of each container, by name, from the
	// previous status or the log directory. The runtime may not have it any more.
	// Containers without an entry are new.
	Restarts map[string]uint32
}

// UnknownInjection in PlanInput.Injections says that it is not known what a container
// would get.
const UnknownInjection = "?"
