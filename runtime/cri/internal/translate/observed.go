package translate

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// at turns the CRI's nanoseconds into a time; 0 is the zero time.
func at(nanoseconds int64) time.Time {
	if nanoseconds <= 0 {
		return time.Time{}
	}
	return time.Unix(0, nanoseconds)
}

// ObservedSandbox returns what a listing has of a sandbox; AddSandboxStatus completes it.
func ObservedSandbox(s *v1.PodSandbox) runtime.Sandbox {
	out := runtime.Sandbox{
		ID: s.GetId(), Attempt: s.GetMetadata().GetAttempt(), Created: at(s.GetCreatedAt()),
		Handler: s.GetRuntimeHandler(), Labels: s.GetLabels(), Annotations: s.GetAnnotations(),
		Source: s.GetAnnotations()[podspec.AnnotationSource],
	}
	if s.GetState() == v1.PodSandboxState_SANDBOX_READY {
		out.State = runtime.SandboxReady
	}
	out.GracePeriod = GracePeriod(s.GetAnnotations())
	return out
}

// ListItem returns the item that a listing would have for a sandbox with that status.
func ListItem(st *v1.PodSandboxStatus) *v1.PodSandbox {
	return &v1.PodSandbox{
		Id: st.GetId(), Metadata: st.GetMetadata(), State: st.GetState(), CreatedAt: st.GetCreatedAt(),
		Labels: st.GetLabels(), Annotations: st.GetAnnotations(), RuntimeHandler: st.GetRuntimeHandler(),
	}
}

// AddSandboxStatus adds what only the status of a sandbox tells.
func AddSandboxStatus(s runtime.Sandbox, st *v1.PodSandboxStatus) runtime.Sandbox {
	if st.GetState() == v1.PodSandboxState_SANDBOX_NOTREADY {
		s.State = runtime.SandboxNotReady
	}
	if created := at(st.GetCreatedAt()); !created.IsZero() {
		s.Created = created
	}
	if ip := st.GetNetwork().GetIp(); ip != "" {
		s.IPs = append(s.IPs, ip)
	}
	for _, more := range st.GetNetwork().GetAdditionalIps() {
		s.IPs = append(s.IPs, more.GetIp())
	}
	s.HostNetwork = st.GetLinux().GetNamespaces().GetOptions().GetNetwork() == v1.NamespaceMode_NODE
	if s.HostNetwork {
		s.IPs = nil
	}
	return s
}

func stateOf(s v1.ContainerState) runtime.ContainerState {
	switch s {
	case v1.ContainerState_CONTAINER_CREATED:
		return runtime.Created
	case v1.ContainerState_CONTAINER_RUNNING:
		return runtime.Running
	case v1.ContainerState_CONTAINER_EXITED:
		return runtime.Exited
	default:
		return runtime.Unknown
	}
}

// ObservedContainer returns what a listing has of a container; AddContainerStatus
// completes it. bootID is that of the current boot, or "" if it is unknown.
func ObservedContainer(ct *v1.Container, bootID string) runtime.Container {
	out := runtime.Container{
		ID: ct.GetId(), Name: ct.GetMetadata().GetName(), SandboxID: ct.GetPodSandboxId(),
		Attempt: ct.GetMetadata().GetAttempt(), State: stateOf(ct.GetState()), Created: at(ct.GetCreatedAt()),
		Image: userImage(ct.GetImage()), ImageID: cmp.Or(ct.GetImageId(), ct.GetImageRef()),
		Labels: ct.GetLabels(), Annotations: ct.GetAnnotations(),
	}
	fromAnnotations(&out, ct.GetAnnotations(), bootID)
	return out
}

// userImage returns the image as the pod names it.
func userImage(spec *v1.ImageSpec) string {
	return cmp.Or(spec.GetUserSpecifiedImage(), spec.GetImage())
}

// Earlier names of annotations, which containers have that an earlier version has made.
const (
	oldContainerType     = "sublet.dev/container.kind"
	oldRestartGeneration = "sublet.dev/container.round"
)

// fromAnnotations reads back what the agent that made the container left in its
// annotations. Anything unreadable counts as not there: another agent may have
// written it.
func fromAnnotations(out *runtime.Container, a map[string]string, bootID string) {
	out.Hash, out.SpecImage = a[runtime.AnnotationHash], a[runtime.AnnotationImage]
	out.Type = typeFrom(cmp.Or(a[runtime.AnnotationContainerType], a[oldContainerType]))
	// Containers that ended with the machine did not crash: no back-off outlasts a boot.
	if boot := a[runtime.AnnotationBackOffBoot]; boot == "" || bootID == "" || boot == bootID {
		if step, err := strconv.ParseUint(a[runtime.AnnotationBackOffStep], 10, 31); err == nil {
			out.BackOffStep, out.BackOffResources = int(step), a[runtime.AnnotationBackOffResources]
		}
	}
	out.GracePeriod = GracePeriod(a)
	generation := cmp.Or(a[runtime.AnnotationRestartGeneration], a[oldRestartGeneration])
	if n, err := strconv.ParseUint(generation, 10, 32); err == nil {
		out.RestartGeneration = uint32(n)
	}
	if count, err := strconv.ParseUint(a[runtime.AnnotationRestartCount], 10, 32); err == nil {
		out.Attempt = max(out.Attempt, uint32(count))
	}
	if text := a[runtime.AnnotationPreStop]; text != "" {
		hook := new(corev1.LifecycleHandler)
		if json.Unmarshal([]byte(text), hook) == nil {
			out.PreStop = hook
		}
	}
}

func typeFrom(text string) runtime.ContainerType {
	for _, t := range []runtime.ContainerType{runtime.Init, runtime.Sidecar, runtime.Ephemeral} {
		if text == t.String() {
			return t
		}
	}
	return runtime.Regular
}

// GracePeriod returns how long the pod may take to end: what its deletion said if
// that was known when the container was made, else what its spec says.
func GracePeriod(a map[string]string) time.Duration {
	for _, key := range []string{runtime.AnnotationDeletionGracePeriod, runtime.AnnotationGracePeriod} {
		if seconds, err := strconv.ParseInt(a[key], 10, 64); err == nil {
			return podspec.Seconds(seconds)
		}
	}
	return 0
}

// cutShort reports that a container never ran because the client that started it went away
// in the middle of the call: an agent that was killed, for one. That says nothing
// of the container, and must not make a pod fail for good.
func cutShort(st *v1.ContainerStatus) bool {
	return st.GetState() == v1.ContainerState_CONTAINER_EXITED && st.GetReason() == "StartError" &&
		strings.Contains(st.GetMessage(), context.Canceled.Error())
}

// AddContainerStatus adds what only the status of a container tells.
func AddContainerStatus(c runtime.Container, st *v1.ContainerStatus) runtime.Container {
	c.State = stateOf(st.GetState())
	if created := at(st.GetCreatedAt()); !created.IsZero() {
		c.Created = created
	}
	c.Started, c.Finished = at(st.GetStartedAt()), at(st.GetFinishedAt())
	c.ExitCode, c.Reason, c.Message = st.GetExitCode(), st.GetReason(), st.GetMessage()
	if cutShort(st) {
		c.State = runtime.Created
	}
	c.LogPath = st.GetLogPath()
	if id := cmp.Or(st.GetImageId(), st.GetImageRef()); id != "" {
		c.ImageID = id
	}
	if ref := st.GetImageRef(); ref != "" && strings.Contains(ref, "@") {
		c.ImageID = ref // repo@digest tells more than the bare id
	}
	if name := userImage(st.GetImage()); name != "" {
		c.Image = name
	}
	if sig, ok := strings.CutPrefix(st.GetStopSignal().String(), "SIGNAL_"); ok && st.GetStopSignal() != v1.Signal_SIGNAL_RUNTIME_DEFAULT {
		c.StopSignal = corev1.Signal(unflattenSignal(sig))
	}
	c.Resources = resourcesOf(st.GetResources().GetLinux())
	if n, err := strconv.ParseInt(st.GetAnnotations()[runtime.AnnotationMemoryRequest], 10, 64); err == nil && n >= 0 && c.Resources != nil {
		c.Resources.MemoryRequest = resource.NewQuantity(n, resource.BinarySI)
	}
	if u := st.GetUser().GetLinux(); u != nil {
		c.User = &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{
			UID: u.GetUid(), GID: u.GetGid(), SupplementalGroups: slices.Clone(u.GetSupplementalGroups()),
		}}
	}
	return c
}

// unflattenSignal turns the CRI's SIGRTMINPLUS3 into the API's SIGRTMIN+3.
func unflattenSignal(s string) string {
	s = strings.Replace(s, "PLUS", "+", 1)
	return strings.Replace(s, "MINUS", "-", 1)
}

// resourcesOf reads the resources that a container really has. What is not
// bounded is nil.
func resourcesOf(l *v1.LinuxContainerResources) *runtime.Resources {
	if l == nil {
		return nil
	}
	var r runtime.Resources
	if l.GetCpuShares() > 0 {
		r.CPURequest = resource.NewMilliQuantity(sharesToMilli(l.GetCpuShares()), resource.DecimalSI)
	}
	if l.GetCpuQuota() > 0 && l.GetCpuPeriod() > 0 {
		r.CPULimit = resource.NewMilliQuantity(quotaToMilli(l.GetCpuQuota(), l.GetCpuPeriod()), resource.DecimalSI)
		r.MinCPULimit = quotaToMilli(minQuota, l.GetCpuPeriod())
	}
	if l.GetMemoryLimitInBytes() > 0 {
		r.MemoryLimit = resource.NewQuantity(l.GetMemoryLimitInBytes(), resource.BinarySI)
	}
	r.Cpuset = runtime.Cpuset{CPUs: l.GetCpusetCpus(), MemoryNodes: l.GetCpusetMems()}
	return &r
}

// Ports reads back the ports of a container of which the spec is gone.
func Ports(a map[string]string) []corev1.ContainerPort {
	var ports []corev1.ContainerPort
	if json.Unmarshal([]byte(a[runtime.AnnotationPorts]), &ports) != nil {
		return nil
	}
	return ports
}
