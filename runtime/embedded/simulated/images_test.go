package simulated

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/internal/embeddedtest"
)

func TestExecutor_PlaysTheScriptOfTheImage(t *testing.T) {
	tests := map[string]struct {
		image string
		want  int32
	}{
		"by its name":        {"job", 3},
		"by its full name":   {"docker.io/library/job:latest", 3},
		"by an alias":        {"example.com/other:1", 4},
		"by the default one": {"third", 5},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := embeddedtest.New(t, embedded.Config{
					Images: []embedded.Image{{Ref: "example.com/one:1", Aliases: []string{"example.com/other:1"}}},
					Executor: New(Config{
						Script: Script{RunFor: time.Second, ExitCodes: []int32{5}},
						Images: map[string]Script{
							"job":                 {RunFor: time.Second, ExitCodes: []int32{3}},
							"example.com/other:1": {RunFor: time.Second, ExitCodes: []int32{4}},
						},
					}),
				})
				_, err := g.Images.PullImage(t.Context(), &v1.PullImageRequest{Image: &v1.ImageSpec{Image: tc.image}})
				require.NoError(t, err)
				id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), func(c *v1.ContainerConfig) { c.Image.Image = tc.image })
				time.Sleep(2 * time.Second)
				assert.Equal(t, tc.want, g.Inspect(t, id).GetExitCode())
			})
		})
	}
}

func TestExecutor_ChecksItsConfig(t *testing.T) {
	_, err := embedded.New(embedded.Config{Executor: New(Config{
		Script: Script{StopAfter: -1},
		Images: map[string]Script{"A B": {}, "y": {RunFor: -1}},
	})})
	for _, want := range []string{"Config.Script", `"A B"`, `Images["y"]`} {
		assert.ErrorContains(t, err, want)
	}
}

func TestExecutor_DelaysAndFailsPulls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, Config{})
		pull := func(image string, annotations ...string) (time.Duration, error) {
			start := time.Now()
			_, err := g.Images.PullImage(t.Context(), &v1.PullImageRequest{
				Image: &v1.ImageSpec{Image: image}, SandboxConfig: embeddedtest.PodConfig("p", annotations...),
			})
			return time.Since(start), err
		}
		duration, err := pull("slow", ScriptPrefix+"pull-delay: 1m")
		require.NoError(t, err)
		assert.Equal(t, time.Minute, duration)

		for range 3 {
			_, err = pull("never", ScriptPrefix+"pull-error: no such image")
			require.ErrorContains(t, err, "no such image")
		}
		for _, want := range []string{"busy", "busy", "", "busy", "busy", ""} { // each pull
			_, err := pull("later", ScriptPrefix+"pull-error: busy", ScriptPrefix+"pull-failures: 2")
			if want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, want)
			}
		}
		_, err = pull("later")
		require.NoError(t, err)
		_, err = pull("later", ScriptPrefix+"pull-failures: -1")
		assert.Equal(t, codes.InvalidArgument, status.Code(err))
		_, err = g.Images.PullImage(t.Context(), &v1.PullImageRequest{Image: &v1.ImageSpec{Image: "alone"}})
		require.NoError(t, err, "a pull for no pod")

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = g.Images.PullImage(ctx, &v1.PullImageRequest{
			Image: &v1.ImageSpec{Image: "slow"}, SandboxConfig: embeddedtest.PodConfig("p", ScriptPrefix+"pull-delay: 1h"),
		})
		assert.Equal(t, codes.DeadlineExceeded, status.Code(err))
	})
}
