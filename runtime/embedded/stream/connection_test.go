package stream_test

import (
	"bytes"
	"io"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// isAttached reports whether a goroutine of an attached client is there.
func isAttached() bool {
	stacks := make([]byte, 1<<20)
	return bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte("AttachStreams"))
}

// Nothing is left of a client that has gone, though the container neither writes nor reads.
func TestAttach_EndsWithItsClientWhileTheContainerIsQuiet(t *testing.T) {
	for name, attach := range map[string]func(t *testing.T, url string) (disconnect func() error){
		"spdy":      func(t *testing.T, url string) func() error { return openSPDY(t, url, wants{out: true}).conn.Close },
		"websocket": func(t *testing.T, url string) func() error { return openWebSocket(t, url, wants{out: true}).Close },
		"with input that is not read": func(t *testing.T, url string) func() error {
			s := openSPDY(t, url, wants{in: true, out: true})
			_, err := io.Copy(s.in, bytes.NewReader(make([]byte, 256<<10)))
			require.NoError(t, err)
			return s.conn.Close
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			id := r.start(t, func(c *v1.ContainerConfig) { c.Stdin = true }, "sleep", "1000")
			resp, err := r.rs.Attach(t.Context(), &v1.AttachRequest{ContainerId: id, Stdin: name == "with input that is not read", Stdout: true})
			require.NoError(t, err)
			disconnect := attach(t, resp.GetUrl())
			require.Eventually(t, isAttached, time.Minute, time.Millisecond)
			require.NoError(t, disconnect())
			require.Eventually(t, func() bool { return !isAttached() }, 30*time.Second, time.Millisecond)
			st, err := r.rs.ContainerStatus(t.Context(), &v1.ContainerStatusRequest{ContainerId: id})
			require.NoError(t, err)
			require.Equal(t, v1.ContainerState_CONTAINER_RUNNING, st.GetStatus().GetState())
		})
	}
}
