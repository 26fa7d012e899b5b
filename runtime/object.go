package runtime

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
)

// RunsPods reports whether rt has the capability PodSyncer.
func RunsPods(rt any) bool {
	_, ok := Capability[PodSyncer](rt)
	return ok
}

// ObjectContainer returns the container of that name of a pod with an Object, by the spec
// of the desired pod and the status of the Object, or nil. A PodSyncer gets the ID in calls
// that name a container, and finds the pod and the name by SplitObjectID. Without a
// container status, the container is in the state of its pod.
func (p *Pod) ObjectContainer(desired *corev1.Pod, name string) *Container {
	if p.Object == nil || ContainerSpec(desired, name) == nil {
		return nil
	}
	c := &Container{ID: string(p.UID) + "/" + name, Name: name, State: Created}
	st := &p.Object.Status
	switch {
	case podspec.IsTerminalPhase(st.Phase):
		c.State = Exited
	case st.Phase == corev1.PodRunning:
		c.State = Running
	}
	for s := range podspec.ContainerStatuses(st) {
		if s.Name != name {
			continue
		}
		c.Attempt = uint32(max(s.RestartCount, 0))
		switch {
		case s.State.Running != nil:
			c.State = Running
		case s.State.Terminated != nil:
			c.State = Exited
		case s.State.Waiting != nil:
			c.State = Created
		}
	}
	return c
}

// SplitObjectID splits an ID of ObjectContainer. The UID of a pod alone is the ID of its
// sandbox, for port-forward.
func SplitObjectID(id string) (uid types.UID, container string) {
	before, after, _ := strings.Cut(id, "/")
	return types.UID(before), after
}
