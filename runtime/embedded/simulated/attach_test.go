package simulated

import (
	"context"
	"slices"
	"strconv"
	"sync"
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

// terminate sends SIGTERM to a container.
func terminate(t *testing.T, g *rig, id string) {
	t.Helper()
	_, err := g.CRI.ExecSync(t.Context(), &v1.ExecSyncRequest{ContainerId: id, Cmd: []string{"kill", "1"}})
	require.NoError(t, err)
}

// startBlocked starts a container that prints at the first second, while an attached
// client takes nothing before the returned function is called, and waits for a minute.
func startBlocked(t *testing.T, g *rig, pod *v1.PodSandboxConfig) (id string, unblock func()) {
	t.Helper()
	id = g.Start(t, g.RunPod(t, pod), nil)
	stdout, attached := make(blocking), make(chan error, 1)
	go func() { attached <- g.AttachStreams(t.Context(), id, embedded.IO{Stdout: stdout}, nil) }()
	unblock = sync.OnceFunc(func() { close(stdout) })
	t.Cleanup(func() {
		unblock()
		<-attached
	})
	time.Sleep(time.Minute)
	require.Equal(t, v1.ContainerState_CONTAINER_RUNNING, g.Inspect(t, id).GetState())
	return id, unblock
}

// What happens to a container while an attached client holds up its output does not have
// the next lines printed meanwhile.
func TestProcess_PrintsInOrderWhileAnAttachedClientBlocks(t *testing.T) {
	script := Script{RunFor: 2 * time.Minute, StopAfter: time.Hour}
	var want []string
	for i := range 100 {
		script.Output = append(script.Output, OutputLine{At: time.Duration(1+i/50) * time.Second, Text: strconv.Itoa(i)})
		want = append(want, "stdout F "+strconv.Itoa(i))
	}
	for name, meanwhile := range map[string]func(t *testing.T, g *rig, id string){
		"updated": func(t *testing.T, g *rig, id string) {
			_, err := g.CRI.UpdateContainerResources(t.Context(), &v1.UpdateContainerResourcesRequest{
				ContainerId: id, Linux: &v1.LinuxContainerResources{MemoryLimitInBytes: 1},
			})
			require.NoError(t, err)
		},
		"signaled": terminate,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, Config{Script: script})
				pod, path := embeddedtest.WithLogs(t, embeddedtest.PodConfig("p"))
				id, unblock := startBlocked(t, g, pod)
				meanwhile(t, g, id)
				synctest.Wait()
				assert.Less(t, len(embeddedtest.ReadLog(t, path)), len(want)/2)
				unblock()
				synctest.Wait()
				assert.Equal(t, want, embeddedtest.ReadLog(t, path))
				time.Sleep(time.Minute)
				synctest.Wait() // two timers end at that moment
				assert.Equal(t, v1.ContainerState_CONTAINER_EXITED, g.Inspect(t, id).GetState(), "it ends in time")
			})
		})
	}
}

func TestProcess_IsKilledInTimeWhileAnAttachedClientBlocks(t *testing.T) {
	for name, tc := range map[string]struct {
		annotation string
		signaled   bool
		reason     string
	}{
		"for its memory":      {"sim.sublet.dev/oom-after: 90s", false, embedded.ReasonOOMKilled},
		"by its grace period": {"sim.sublet.dev/stop-after: 30s", true, embedded.ReasonError},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, Config{Script: Script{Output: slices.Repeat([]OutputLine{{At: time.Second, Text: "x"}}, 100)}})
				id, _ := startBlocked(t, g, embeddedtest.PodConfig("p", tc.annotation))
				if tc.signaled {
					terminate(t, g, id)
				}
				time.Sleep(30*time.Second - time.Nanosecond)
				assert.Equal(t, v1.ContainerState_CONTAINER_RUNNING, g.Inspect(t, id).GetState())
				time.Sleep(time.Nanosecond)
				synctest.Wait()
				assert.Equal(t, tc.reason, g.Inspect(t, id).GetReason())
			})
		})
	}
}
