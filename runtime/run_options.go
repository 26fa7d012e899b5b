package runtime

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

// Where in a pod's own folder is what its containers can write to besides volumes,
// as kubelets lay it out.
const (
	HostsFile   = "etc-hosts"  // mounted at /etc/hosts
	MessagesDir = "containers" // a folder for each container, a file for each of its attempts: the termination messages
)

// RunOptions is what the node gives a pod besides the pod's own spec. It is
// read-only for the runtime.
type RunOptions struct {
	Dir           string   // the pod's own folder; 0700, exists
	LogDir        string   // where the runtime puts the pod's container logs
	CgroupParent  string   // "" leaves it to the runtime
	NodeName      string   // spec.nodeName
	HostIPs       []string // status.hostIPs, primary first
	Hostname      string   // "" for host network
	ClusterDomain string   // "" where the pod has none
	DNS           DNS
	Volumes       map[string]Volume   // by the volume's name in the spec
	Allocatable   corev1.ResourceList // what resourceFieldRef means without a limit
	Objects       podspec.Objects     // ConfigMaps and Secrets; nil: there are none
	PullSecrets   []podspec.Object    // of the pod's imagePullSecrets

	// SubPath returns where the subPath of a container's mount (the index in
	// its volumeMounts, any expression already expanded) is on the node: made
	// if it was not there, and safe from links that lead out of the volume.
	// nil: a mount with a subPath is refused.
	SubPath func(ctx context.Context, container string, index int, mount corev1.VolumeMount) (string, error)

	// UIDMappings and GIDMappings map the ids of the pod's user namespace to those of
	// the node; they count for pods with hostUsers false only.
	UIDMappings, GIDMappings []IDMapping
}

// IDMapping maps Length ids from Container on to those from Host on.
type IDMapping struct {
	Host, Container, Length uint32
}

// DNS is a pod's resolver configuration.
type DNS struct {
	Servers, Searches, Options []string
}

// Volume is one mounted volume of a pod.
type Volume struct {
	HostPath string // where it is on the node
	ReadOnly bool
	Image    string // image volumes: the reference, HostPath is empty
}

// Report is what there is to tell about a pod: the input of a status.
type Report struct {
	Observed    Pod
	Failures    map[string]Failure // of the last turn, by container name; "" is the pod
	Probes      PodProbeResults    // by container id
	Termination *Termination       // set once termination was asked for
	Finished    bool               // containers gone and resources reclaimed
	Blocked     *Failure           // soft admission: the phase is Pending, and what has ended starts over
}

// Health of a container as probes tell.
type (
	// ProbeResults is what the probes of one container have found.
	ProbeResults struct {
		Startup   ProbeResult // startup probe; Success where there is none and it runs
		Readiness ProbeResult // readiness probe; Success where there is none and it has started
		Liveness  ProbeResult // liveness probe; Success where there is none
	}
	// PodProbeResults are by container id.
	PodProbeResults map[string]ProbeResults
	// ProbeResult is the result of one probe.
	ProbeResult uint8
)

// The results. Unproven is the zero value: no probe has spoken yet.
const (
	ProbeUnknown ProbeResult = iota
	ProbeSuccess
	ProbeFailure
)

// PlanInput is everything a plan looks at besides the pod.
type PlanInput struct {
	Pod
	Probes  PodProbeResults
	BackOff BackOff // nil: DefaultBackOff

	// Restarts is the highest attempt of each container that is known to have
	// been made, by name, whatever the runtime still knows of it: from a former
	// status or the log folder. Names without an entry are new.
	Restarts map[string]uint32
}
