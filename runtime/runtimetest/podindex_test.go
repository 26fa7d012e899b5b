package runtimetest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A proxy that runs for days does not remember every container that there ever was.
func TestPodIndex_ForgetsWhatWasRemoved(t *testing.T) {
	const pods = 3 * maxRemoved
	for name, remove := range map[string]func(x *podIndex, sandbox, container string){
		"by calls": func(x *podIndex, sandbox, container string) {
			x.learn(&v1.RemoveContainerRequest{ContainerId: container}, &v1.RemoveContainerResponse{})
			x.learn(&v1.RemovePodSandboxRequest{PodSandboxId: sandbox}, &v1.RemovePodSandboxResponse{})
		},
		"with the sandbox": func(x *podIndex, sandbox, _ string) {
			x.learn(&v1.RemovePodSandboxRequest{PodSandboxId: sandbox}, &v1.RemovePodSandboxResponse{})
		},
		"by another client": func(x *podIndex, sandbox, container string) {
			for _, id := range []string{container, sandbox} {
				x.learn(nil, &v1.ContainerEventResponse{ContainerId: id, ContainerEventType: v1.ContainerEventType_CONTAINER_DELETED_EVENT})
			}
		},
		"twice": func(x *podIndex, sandbox, _ string) {
			for range 2 {
				x.learn(&v1.RemovePodSandboxRequest{PodSandboxId: sandbox}, &v1.RemovePodSandboxResponse{})
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := newPodIndex()
			learn := func(name string) (sandbox, container string) {
				sandbox, container = name+"-sandbox", name+"-container"
				x.learn(&v1.RunPodSandboxRequest{Config: &v1.PodSandboxConfig{Metadata: &v1.PodSandboxMetadata{Name: name}}}, &v1.RunPodSandboxResponse{PodSandboxId: sandbox})
				x.learn(&v1.CreateContainerRequest{PodSandboxId: sandbox}, &v1.CreateContainerResponse{ContainerId: container})
				x.learn(nil, &v1.ContainerEventResponse{ContainerId: container, ContainerEventType: v1.ContainerEventType_CONTAINER_STOPPED_EVENT})
				return sandbox, container
			}
			learn("stays")
			var last string
			for i := range pods {
				last = fmt.Sprint(i)
				sandbox, container := learn(last)
				remove(x, sandbox, container)
			}
			assert.LessOrEqual(t, len(x.sandboxes), maxRemoved+1)
			assert.LessOrEqual(t, len(x.containers), maxRemoved+1)
			assert.LessOrEqual(t, len(x.removed), maxRemoved)
			assert.True(t, x.matches(&v1.StartContainerRequest{ContainerId: "stays-container"}, "stays"))
			assert.True(t, x.matches(&v1.RemovePodSandboxRequest{PodSandboxId: last + "-sandbox"}, last), "a call that is repeated is of its pod")
			assert.False(t, x.matches(&v1.RemovePodSandboxRequest{PodSandboxId: "0-sandbox"}, "0"))
			assert.False(t, x.matches(&v1.RemoveContainerRequest{ContainerId: "0-container"}, "0"))
		})
	}
}
