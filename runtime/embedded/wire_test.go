package embedded

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// What goes over the wire must be what a caller in the process gets.
func TestListsOverTheWireAreTheListsWithin(t *testing.T) {
	g := newRig(t, Config{})
	g.fill(t, 7)
	stopped, err := g.ListPodSandbox(t.Context(), &v1.ListPodSandboxRequest{})
	require.NoError(t, err)
	_, err = g.rs.StopPodSandbox(t.Context(), &v1.StopPodSandboxRequest{PodSandboxId: stopped.GetItems()[2].GetId()})
	require.NoError(t, err)

	within, err := g.ListPodSandbox(t.Context(), &v1.ListPodSandboxRequest{})
	require.NoError(t, err)
	over, err := g.rs.ListPodSandbox(t.Context(), &v1.ListPodSandboxRequest{})
	require.NoError(t, err)
	assert.Len(t, over.GetItems(), 7)
	assert.True(t, proto.Equal(within, over), "pods:\n%v\n%v", within, over)

	cwithin, err := g.ListContainers(t.Context(), &v1.ListContainersRequest{})
	require.NoError(t, err)
	cover, err := g.rs.ListContainers(t.Context(), &v1.ListContainersRequest{})
	require.NoError(t, err)
	assert.Len(t, cover.GetContainers(), 7)
	assert.True(t, proto.Equal(cwithin, cover), "containers:\n%v\n%v", cwithin, cover)
}
