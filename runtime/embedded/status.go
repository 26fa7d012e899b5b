package embedded

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"google.golang.org/protobuf/proto"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded/internal/signals"
)

// withSandboxState returns a copy of it with another state. The maps are shared and
// never written to.
func withSandboxState(it *podItem, state v1.PodSandboxState) *podItem {
	return newPodItem(&v1.PodSandbox{
		Id: it.GetId(), Metadata: it.GetMetadata(), State: state, CreatedAt: it.GetCreatedAt(),
		Labels: it.GetLabels(), Annotations: it.GetAnnotations(), RuntimeHandler: it.GetRuntimeHandler(),
	})
}

// withContainerState returns a copy of it with another state.
func withContainerState(it *containerItem, state v1.ContainerState) *containerItem {
	return newContainerItem(&v1.Container{
		Id: it.GetId(), PodSandboxId: it.GetPodSandboxId(), Metadata: it.GetMetadata(), Image: it.GetImage(),
		ImageRef: it.GetImageRef(), ImageId: it.GetImageId(), State: state, CreatedAt: it.GetCreatedAt(),
		Labels: it.GetLabels(), Annotations: it.GetAnnotations(),
	})
}

// status builds the full status of s. The caller holds mu.
func (s *sandbox) status() *v1.PodSandboxStatus {
	st := &v1.PodSandboxStatus{
		Id: s.id, Metadata: s.item.GetMetadata(), State: s.item.GetState(), CreatedAt: s.item.GetCreatedAt(),
		Labels: s.item.GetLabels(), Annotations: s.item.GetAnnotations(), RuntimeHandler: s.item.GetRuntimeHandler(),
		Network: &v1.PodSandboxNetworkStatus{},
		Linux: &v1.LinuxPodSandboxStatus{Namespaces: &v1.Namespace{
			Options: s.config.GetLinux().GetSecurityContext().GetNamespaceOptions(),
		}},
	}
	for i, ip := range s.ips {
		if i == 0 {
			st.Network.Ip = ip
			continue
		}
		st.Network.AdditionalIps = append(st.Network.AdditionalIps, &v1.PodIP{Ip: ip})
	}
	return st
}

// status builds the full status of c. The caller holds mu.
func (c *container) status() *v1.ContainerStatus {
	st := &v1.ContainerStatus{
		Id: c.ID, Metadata: c.item.GetMetadata(), State: c.item.GetState(), CreatedAt: c.item.GetCreatedAt(),
		StartedAt: c.started, FinishedAt: c.finished,
		Image: c.image(), ImageRef: c.item.GetImageRef(), ImageId: c.item.GetImageId(),
		Labels: c.item.GetLabels(), Annotations: c.item.GetAnnotations(),
		Mounts: c.mounts, LogPath: c.logPath(), User: c.user(), StopSignal: c.stopSignal(),
	}
	if c.resources != nil {
		st.Resources = &v1.ContainerResources{Linux: c.resources}
	}
	if c.exit != nil && c.state() == v1.ContainerState_CONTAINER_EXITED {
		st.ExitCode, st.Reason, st.Message = c.exit.Code, c.exit.Reason, c.exit.Message
	}
	return st
}

// image returns the image with the name for the status: its first tag, else its
// digest. Kubelets create containers by the id of the image and report this name.
func (c *container) image() *v1.ImageSpec {
	name := c.Image.ref()
	if first := c.Image.refs[0]; first.Tag != "" {
		name = first.Repo + ":" + first.Tag
	}
	requested := c.item.GetImage()
	return &v1.ImageSpec{
		Image: name, Annotations: requested.GetAnnotations(),
		UserSpecifiedImage: requested.GetUserSpecifiedImage(), RuntimeHandler: requested.GetRuntimeHandler(),
	}
}

// logPath returns the path of the container's log, or "" if it has none.
func (c *Container) logPath() string {
	if c.Config.GetLogPath() == "" || c.Pod.GetLogDirectory() == "" {
		return ""
	}
	return filepath.Join(c.Pod.GetLogDirectory(), c.Config.GetLogPath())
}

// user returns the user of the container's first process, as far as it is numeric.
func (c *container) user() *v1.ContainerUser {
	sc := c.Config.GetLinux().GetSecurityContext()
	u := &v1.LinuxContainerUser{Uid: c.Image.uid(), SupplementalGroups: sc.GetSupplementalGroups()}
	if sc.GetRunAsUser() != nil {
		u.Uid = sc.GetRunAsUser().GetValue()
	}
	if sc.GetRunAsGroup() != nil {
		u.Gid = sc.GetRunAsGroup().GetValue()
	}
	return &v1.ContainerUser{Linux: u}
}

// stopSignal returns the stop signal of the container: the pod's, the image's, or
// SIGTERM.
func (c *container) stopSignal() v1.Signal {
	if s := c.Config.GetStopSignal(); s != v1.Signal_SIGNAL_RUNTIME_DEFAULT {
		return s
	}
	if s, ok := v1.Signal_value["SIGNAL_"+c.Image.StopSignal]; ok && c.Image.StopSignal != "" {
		return v1.Signal(s)
	}
	return v1.Signal_SIGNAL_SIGTERM
}

func stopSignal(c *container) syscall.Signal { return signalNumber(c.stopSignal()) }

// signalNumber returns the number of s on Linux.
func signalNumber(s v1.Signal) syscall.Signal {
	name := strings.TrimPrefix(s.String(), "SIGNAL_")
	if n, ok := signals.Number(name); ok {
		return n
	}
	const rtmin, rtmax = 34, 64
	if d, ok := strings.CutPrefix(name, "SIGRTMINPLUS"); ok {
		n, _ := strconv.Atoi(d)
		return syscall.Signal(rtmin + n)
	}
	if d, ok := strings.CutPrefix(name, "SIGRTMAXMINUS"); ok {
		n, _ := strconv.Atoi(d)
		return syscall.Signal(rtmax - n)
	}
	return syscall.SIGTERM
}

// stateName returns a state for error texts.
func stateName(s v1.ContainerState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "CONTAINER_"))
}

// mergeResources returns old with the values that next sets. A list is one value.
func mergeResources(old, next *v1.LinuxContainerResources) *v1.LinuxContainerResources {
	if next == nil {
		return old
	}
	if old == nil {
		return next
	}
	merged, ok := proto.Clone(old).(*v1.LinuxContainerResources)
	if !ok {
		return next
	}
	if len(next.GetHugepageLimits()) > 0 {
		merged.HugepageLimits = nil // Merge appends
	}
	proto.Merge(merged, next)
	return merged
}

// info returns the extra information of verbose responses: JSON under one key, as
// containerd does.
func info(v map[string]any) map[string]string {
	b, err := json.Marshal(v)
	if err != nil {
		b = fmt.Appendf(nil, "{%q: %q}", "error", err.Error())
	}
	return map[string]string{"info": string(b)}
}
