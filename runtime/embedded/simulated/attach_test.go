package simulated

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/internal/embeddedtest"
)

// blocking is the output of a client that takes nothing before the channel is closed.
type blocking chan struct{}

func (b blocking) Write(p []byte) (int, error) {
	<-b
	return len(p), nil
}

// A container that cannot end by itself, because an attached client does not take what it
// has printed, ends by a signal.
func TestProcess_StopsWhileAnAttachedClientBlocks(t *testing.T) {
	script := Script{RunFor: time.Second, Output: slices.Repeat([]OutputLine{{At: time.Second, Text: "x"}}, 100)}
	for name, tc := range map[string]struct {
		timeout int64
		code    int32
	}{
		"killed":  {0, 137},
		"stopped": {30, 143},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, Config{Script: script})
				id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), nil)
				stdout, attached := make(blocking), make(chan error, 1)
				go func() { attached <- g.AttachStreams(t.Context(), id, embedded.IO{Stdout: stdout}, nil) }()
				t.Cleanup(func() {
					close(stdout)
					<-attached
				})
				time.Sleep(time.Minute)
				require.Equal(t, v1.ContainerState_CONTAINER_RUNNING, g.Inspect(t, id).GetState())

				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				begin := time.Now()
				_, err := g.CRI.StopContainer(ctx, &v1.StopContainerRequest{ContainerId: id, Timeout: tc.timeout})
				require.NoError(t, err)
				assert.Zero(t, time.Since(begin))
				st := g.Inspect(t, id)
				assert.Equal(t, v1.ContainerState_CONTAINER_EXITED, st.GetState())
				assert.Equal(t, tc.code, st.GetExitCode())
				assert.Empty(t, attached, "the client blocks")
			})
		})
	}
}
