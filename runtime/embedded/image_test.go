package embedded_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/hostprocess"
	"github.com/sublet-dev/agent/runtime/embedded/internal/embeddedtest"
)

const someDigest = "sha256:9700f9a2f5bf2c45f2f605a0bd3bce7cf37420ec9d3ed50ac2758413308766bf"

func spec(name string) *v1.ImageSpec { return &v1.ImageSpec{Image: name} }

func (g *rig) image(t *testing.T, name string) *v1.Image {
	t.Helper()
	r, err := g.Images.ImageStatus(t.Context(), &v1.ImageStatusRequest{Image: spec(name)})
	require.NoError(t, err)
	return r.GetImage()
}

func (g *rig) pull(t *testing.T, name string) (string, error) {
	r, err := g.Images.PullImage(t.Context(), &v1.PullImageRequest{Image: spec(name)})
	return r.GetImageRef(), err
}

func TestRuntime_ImagesAreRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, embedded.Config{Images: []embedded.Image{
			{Ref: "here", Preloaded: true, Pinned: true, Size: 7, User: "www-data:users"},
			{Ref: "tags:1", Aliases: []string{"tags:2"}, User: "1002"},
			{Ref: "slow", PullTime: time.Minute},
			{Ref: "bad", PullError: "no such thing", PullCode: codes.NotFound},
			{Ref: "shaky", PullError: "try again", PullFailures: 2},
		}})
		here := g.image(t, "here")
		assert.True(t, here.GetPinned())
		assert.Equal(t, uint64(7), here.GetSize())
		assert.Equal(t, "www-data", here.GetUsername())
		assert.Nil(t, here.GetUid())

		one, err := g.pull(t, "tags:1")
		require.NoError(t, err)
		assert.Equal(t, []string{"docker.io/library/tags:1"}, g.image(t, one).GetRepoTags(), "only the names that were pulled")
		two, err := g.pull(t, "tags:2")
		require.NoError(t, err)
		assert.Equal(t, one, two)
		assert.Len(t, g.image(t, one).GetRepoTags(), 2)
		assert.Equal(t, int64(1002), g.image(t, one).GetUid().GetValue())
		_, err = g.Images.RemoveImage(t.Context(), &v1.RemoveImageRequest{Image: spec("tags:1")})
		require.NoError(t, err)
		assert.Nil(t, g.image(t, "tags:2"), "an image goes with all its names")

		begin := time.Now()
		_, err = g.pull(t, "slow")
		require.NoError(t, err)
		assert.Equal(t, time.Minute, time.Since(begin))
		_, err = g.pull(t, "bad")
		assert.Equal(t, codes.NotFound, status.Code(err))
		for range 2 {
			_, err = g.pull(t, "shaky")
			assert.ErrorContains(t, err, "try again")
		}
		_, err = g.pull(t, "shaky")
		assert.NoError(t, err)
		_, err = g.pull(t, "NO NAME")
		assert.Equal(t, codes.InvalidArgument, status.Code(err))
	})
}

// The failures of the default record are counted for each image.
func TestRuntime_DefaultImageFails(t *testing.T) {
	g := newRig(t, embedded.Config{DefaultImage: &embedded.Image{PullError: "try again", PullFailures: 1}})
	for _, name := range []string{"one", "two"} {
		_, err := g.pull(t, name)
		require.ErrorContains(t, err, "try again")
		_, err = g.pull(t, name)
		require.NoError(t, err)
	}
}

func TestRuntime_PullByDigestHasNoTag(t *testing.T) {
	g := newRig(t, embedded.Config{})
	name := "gcr.io/x/y@" + someDigest
	id, err := g.pull(t, name)
	require.NoError(t, err)
	assert.Empty(t, g.image(t, id).GetRepoTags())
	assert.Equal(t, []string{name}, g.image(t, id).GetRepoDigests())
	for _, other := range []string{name, id, strings.TrimPrefix(id, "sha256:"), strings.TrimPrefix(id, "sha256:")[:12]} {
		assert.Equal(t, id, g.image(t, other).GetId(), other)
	}
}

func TestNew_ReportsAllErrors(t *testing.T) {
	_, err := embedded.New(embedded.Config{
		Handlers: []string{""}, EventBufferSize: -1, Executor: hostprocess.New(hostprocess.Config{Root: "relative", Env: []string{"X"}}),
		Images: []embedded.Image{{Ref: "A B"}, {Ref: "x"}, {Ref: "x:latest"}},
	})
	for _, want := range []string{"Handlers", "EventBufferSize", "Root", "Env", "record 0", "record 2"} {
		assert.ErrorContains(t, err, want)
	}
}

// Kubelets make containers by the image's id and show people the name.
func TestRuntime_ReportsTheNameOfTheImage(t *testing.T) {
	tests := map[string]struct{ pull, want string }{
		"a tag":    {"app:1", "docker.io/library/app:1"},
		"none":     {"app", "docker.io/library/app:latest"},
		"a digest": {"app@sha256:" + strings.Repeat("ab", 32), "docker.io/library/app@sha256:" + strings.Repeat("ab", 32)},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, embedded.Config{})
			r, err := g.Images.PullImage(t.Context(), &v1.PullImageRequest{Image: &v1.ImageSpec{Image: tc.pull}})
			require.NoError(t, err)
			id, err := g.Create(t, g.RunPod(t, embeddedtest.PodConfig("p")), func(c *v1.ContainerConfig) {
				c.Image = &v1.ImageSpec{Image: r.GetImageRef(), UserSpecifiedImage: tc.pull}
			})
			require.NoError(t, err)
			st := g.Inspect(t, id)
			assert.Equal(t, tc.want, st.GetImage().GetImage())
			assert.Equal(t, tc.pull, st.GetImage().GetUserSpecifiedImage())
			assert.Equal(t, r.GetImageRef(), st.GetImageId())
		})
	}
}
