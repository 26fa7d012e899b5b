package embedded_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/internal/embeddedtest"
)

// What goes over the wire must be what a caller in the process gets.
func TestRuntime_ListsOverTheWireAgreeWithDirectCalls(t *testing.T) {
	g := newRig(t, embedded.Config{})
	g.fill(t, 7)
	stopped, err := g.ListPodSandbox(t.Context(), &v1.ListPodSandboxRequest{})
	require.NoError(t, err)
	_, err = g.CRI.StopPodSandbox(t.Context(), &v1.StopPodSandboxRequest{PodSandboxId: stopped.GetItems()[2].GetId()})
	require.NoError(t, err)

	within, err := g.ListPodSandbox(t.Context(), &v1.ListPodSandboxRequest{})
	require.NoError(t, err)
	over, err := g.CRI.ListPodSandbox(t.Context(), &v1.ListPodSandboxRequest{})
	require.NoError(t, err)
	assert.Len(t, over.GetItems(), 7)
	assert.True(t, proto.Equal(within, over), "pods:\n%v\n%v", within, over)

	cwithin, err := g.ListContainers(t.Context(), &v1.ListContainersRequest{})
	require.NoError(t, err)
	cover, err := g.CRI.ListContainers(t.Context(), &v1.ListContainersRequest{})
	require.NoError(t, err)
	assert.Len(t, cover.GetContainers(), 7)
	assert.True(t, proto.Equal(cwithin, cover), "containers:\n%v\n%v", cwithin, cover)
}

// Whole lists are kept as bytes until something changes; whatever changes, the next
// one tells of it.
func TestRuntime_CachedListsAreNeverStale(t *testing.T) {
	g := newRig(t, embedded.Config{})
	same := func(after string) {
		t.Helper()
		for range 2 { // made, and then kept
			within, err := g.ListPodSandbox(t.Context(), &v1.ListPodSandboxRequest{})
			require.NoError(t, err)
			over, err := g.CRI.ListPodSandbox(t.Context(), &v1.ListPodSandboxRequest{Filter: &v1.PodSandboxFilter{}})
			require.NoError(t, err)
			require.True(t, proto.Equal(within, over), "pods after %s:\n%v\n%v", after, within, over)
			cwithin, err := g.ListContainers(t.Context(), &v1.ListContainersRequest{})
			require.NoError(t, err)
			cover, err := g.CRI.ListContainers(t.Context(), &v1.ListContainersRequest{Filter: &v1.ContainerFilter{}})
			require.NoError(t, err)
			require.True(t, proto.Equal(cwithin, cover), "containers after %s:\n%v\n%v", after, cwithin, cover)
		}
	}
	same("nothing")
	for i := range 3 {
		pod := g.RunPod(t, embeddedtest.PodConfig(fmt.Sprint("p", i)))
		same("a pod")
		id, err := g.Create(t, pod, nil, "sleep", "1000")
		require.NoError(t, err)
		same("a container")
		_, err = g.CRI.StartContainer(t.Context(), &v1.StartContainerRequest{ContainerId: id})
		require.NoError(t, err)
		same("a start")
		none, err := g.CRI.ListContainers(t.Context(), &v1.ListContainersRequest{Filter: &v1.ContainerFilter{
			State: &v1.ContainerStateValue{State: v1.ContainerState_CONTAINER_EXITED},
		}})
		require.NoError(t, err)
		require.Empty(t, none.GetContainers(), "a part of the list is not the whole")
		switch i {
		case 0:
			g.Stop(t, id, 0)
			same("a stop")
			_, err = g.CRI.RemoveContainer(t.Context(), &v1.RemoveContainerRequest{ContainerId: id})
			require.NoError(t, err)
			same("a removal")
		case 1:
			_, err = g.CRI.StopPodSandbox(t.Context(), &v1.StopPodSandboxRequest{PodSandboxId: pod})
			require.NoError(t, err)
			same("the stop of a pod")
		case 2:
			continue
		}
		_, err = g.CRI.RemovePodSandbox(t.Context(), &v1.RemovePodSandboxRequest{PodSandboxId: pod})
		require.NoError(t, err)
		same("the removal of a pod")
	}
}
