package embedded

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
)

func TestSimulated_RunsItsScript(t *testing.T) {
	const never = -1
	tests := map[string]struct {
		annotations []string
		cmd         []string
		attempt     uint32
		limit       int64
		after       time.Duration // when it must have ended; never
		code        int32
		reason      string
	}{
		"for ever without a script":    {after: never},
		"for a time":                   {annotations: []string{"sim.sublet.dev/run-for: 10s"}, after: 10 * time.Second, reason: "Completed"},
		"with an exit code":            {annotations: []string{"sim.sublet.dev/run-for: 1s", "sim.sublet.dev/exit-code: 3"}, after: time.Second, code: 3, reason: "Error"},
		"with a code by attempt":       {annotations: []string{"sim.sublet.dev/run-for: 1s", "sim.sublet.dev/exit-code: 1,2,0"}, attempt: 1, after: time.Second, code: 2, reason: "Error"},
		"with the last code from then": {annotations: []string{"sim.sublet.dev/run-for: 1s", "sim.sublet.dev/exit-code: 1,2,0"}, attempt: 7, after: time.Second, reason: "Completed"},
		"by its own name first":        {annotations: []string{"sim.sublet.dev/run-for: 1s", "c.sim.sublet.dev/run-for: 5s"}, after: 5 * time.Second, reason: "Completed"},
		"not by another's name":        {annotations: []string{"other.sim.sublet.dev/run-for: 5s"}, after: never},
		"until the kernel kills it":    {annotations: []string{"sim.sublet.dev/oom-after: 3s"}, after: 3 * time.Second, code: 137, reason: "OOMKilled"},
		"until its limit is reached":   {annotations: []string{"sim.sublet.dev/memory: 0s=0,10s=100Mi"}, limit: 50 << 20, after: 5 * time.Second, code: 137, reason: "OOMKilled"},
		"as its command says":          {cmd: []string{"sleep", "7"}, after: 7 * time.Second, reason: "Completed"},
		"as its shell command says":    {cmd: []string{"sh", "-c", "echo hi; sleep 2; exit 4"}, after: 2 * time.Second, code: 4, reason: "Error"},
		"for ever if it asks to":       {cmd: []string{"sleep", "infinity"}, after: never},
		"for ever if not understood":   {cmd: []string{"nginx", "-g", "daemon off;"}, after: never},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, Config{})
				id := g.start(t, g.run(t, podConfig("p", tc.annotations...)), func(c *v1.ContainerConfig) {
					c.Metadata.Attempt = tc.attempt
					c.Linux = &v1.LinuxContainerConfig{Resources: &v1.LinuxContainerResources{MemoryLimitInBytes: tc.limit}}
				}, tc.cmd...)
				if tc.after == never {
					time.Sleep(1000 * time.Hour)
					assert.Equal(t, v1.ContainerState_CONTAINER_RUNNING, g.status(t, id).GetState())
					return
				}
				time.Sleep(tc.after - time.Millisecond)
				assert.Equal(t, v1.ContainerState_CONTAINER_RUNNING, g.status(t, id).GetState())
				time.Sleep(2 * time.Millisecond)
				st := g.status(t, id)
				assert.Equal(t, v1.ContainerState_CONTAINER_EXITED, st.GetState())
				assert.Equal(t, tc.code, st.GetExitCode())
				assert.Equal(t, tc.reason, st.GetReason())
				assert.Equal(t, int64(tc.after), st.GetFinishedAt()-st.GetStartedAt())
			})
		})
	}
}

func TestRuntime_StopContainerKeepsTheGracePeriod(t *testing.T) {
	tests := map[string]struct {
		annotation string
		timeout    int64
		takes      time.Duration
		code       int32
	}{
		"ends at the signal":       {timeout: 30, code: 143},
		"takes its time":           {annotation: "sim.sublet.dev/stop-after: 4s", timeout: 30, takes: 4 * time.Second, code: 143},
		"is killed after the time": {annotation: "sim.sublet.dev/stop-after: 40s", timeout: 30, takes: 30 * time.Second, code: 137},
		"ignores the signal":       {annotation: "sim.sublet.dev/ignore-term: true", timeout: 5, takes: 5 * time.Second, code: 137},
		"without a grace":          {annotation: "sim.sublet.dev/ignore-term: true", code: 137},
		"ends with its own code":   {annotation: "sim.sublet.dev/term-exit-code: 0", timeout: 5},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, Config{})
				id := g.start(t, g.run(t, podConfig("p", tc.annotation)), nil)
				begin := time.Now()
				g.stop(t, id, tc.timeout)
				assert.Equal(t, tc.takes, time.Since(begin))
				assert.Equal(t, tc.code, g.status(t, id).GetExitCode())
				g.stop(t, id, tc.timeout) // again is no error
			})
		})
	}
}

func TestRuntime_ALaterStopShortensTheGracePeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, Config{})
		id := g.start(t, g.run(t, podConfig("p", "sim.sublet.dev/ignore-term: true")), nil)
		begin := time.Now()
		done := make(chan struct{})
		go func() { g.stop(t, id, 600); close(done) }()
		time.Sleep(time.Second)
		g.stop(t, id, 2)
		<-done
		assert.Equal(t, 3*time.Second, time.Since(begin))
	})
}

func TestRuntime_ASlowStartBlocksNoOtherCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, Config{})
		sb := g.run(t, podConfig("slow", "sim.sublet.dev/start-hang: true"))
		id, err := g.create(t, sb, nil)
		require.NoError(t, err)
		begin := time.Now()
		failed := make(chan error, 1)
		go func() {
			_, err := g.rs.StartContainer(t.Context(), &v1.StartContainerRequest{ContainerId: id})
			failed <- err
		}()
		synctest.Wait()
		g.start(t, g.run(t, podConfig("other")), nil)
		_, err = g.rs.ListContainers(t.Context(), &v1.ListContainersRequest{})
		require.NoError(t, err)
		assert.Zero(t, time.Since(begin), "calls about other pods waited")

		_, err = g.rs.StopPodSandbox(t.Context(), &v1.StopPodSandboxRequest{PodSandboxId: sb})
		require.NoError(t, err)
		assert.Equal(t, codes.Canceled, status.Code(<-failed))
		st := g.status(t, id)
		assert.Equal(t, "StartError", st.GetReason())
		assert.Equal(t, int32(128), st.GetExitCode())
	})
}

// stubborn is an executor whose starts take a second and cannot be broken off.
type stubborn struct{ *Simulated }

func (s stubborn) Start(_ context.Context, c *Container, sio IO, exited func(Exit)) (Process, error) {
	time.Sleep(time.Second)
	return s.Simulated.Start(context.Background(), c, sio, exited)
}

func TestRuntime_KillsAfterAStartThatCannotBeCancelled(t *testing.T) {
	ends := map[string]struct {
		end  func(g *rig, sandbox, id string) error
		code int32
	}{
		"by the pod's stop": {func(g *rig, sandbox, _ string) error {
			_, err := g.rs.StopPodSandbox(context.Background(), &v1.StopPodSandboxRequest{PodSandboxId: sandbox})
			return err
		}, 137},
		"by a stop with grace": {func(g *rig, _, id string) error {
			_, err := g.rs.StopContainer(context.Background(), &v1.StopContainerRequest{ContainerId: id, Timeout: 30})
			return err
		}, 143},
		"by a stop without grace": {func(g *rig, _, id string) error {
			_, err := g.rs.StopContainer(context.Background(), &v1.StopContainerRequest{ContainerId: id})
			return err
		}, 137},
		"by Close": {func(g *rig, _, _ string) error { return g.Close() }, 137},
	}
	for name, tc := range ends {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, Config{Executor: stubborn{NewSimulated(SimulatedConfig{})}})
				sb := g.run(t, podConfig("p"))
				id, err := g.create(t, sb, nil)
				require.NoError(t, err)
				begin := time.Now()
				go func() { _, _ = g.rs.StartContainer(t.Context(), &v1.StartContainerRequest{ContainerId: id}) }()
				time.Sleep(time.Millisecond)
				require.NoError(t, tc.end(g, sb, id))
				assert.Equal(t, time.Second, time.Since(begin), "it waits for the start and no longer")
				st, err := g.ContainerStatus(t.Context(), &v1.ContainerStatusRequest{ContainerId: id})
				require.NoError(t, err)
				assert.Equal(t, v1.ContainerState_CONTAINER_EXITED, st.GetStatus().GetState())
				assert.Equal(t, tc.code, st.GetStatus().GetExitCode())
			})
		})
	}
}

func TestRuntime_EventsArriveInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, Config{})
		next := g.events(t)
		sb := g.run(t, podConfig("p", "sim.sublet.dev/run-for: 1s"))
		id := g.start(t, sb, nil)
		time.Sleep(2 * time.Second)
		_, err := g.rs.RemovePodSandbox(t.Context(), &v1.RemovePodSandboxRequest{PodSandboxId: sb})
		require.NoError(t, err)
		want := []struct {
			id   string
			kind v1.ContainerEventType
		}{
			{sb, v1.ContainerEventType_CONTAINER_CREATED_EVENT},
			{sb, v1.ContainerEventType_CONTAINER_STARTED_EVENT},
			{id, v1.ContainerEventType_CONTAINER_CREATED_EVENT},
			{id, v1.ContainerEventType_CONTAINER_STARTED_EVENT},
			{id, v1.ContainerEventType_CONTAINER_STOPPED_EVENT},
			{sb, v1.ContainerEventType_CONTAINER_STOPPED_EVENT},
			{id, v1.ContainerEventType_CONTAINER_DELETED_EVENT},
			{sb, v1.ContainerEventType_CONTAINER_DELETED_EVENT},
		}
		for i, w := range want {
			e := next()
			assert.Equal(t, w.id, e.GetContainerId(), "event %d", i)
			assert.Equal(t, w.kind, e.GetContainerEventType(), "event %d", i)
			assert.Equal(t, "p-uid", e.GetPodSandboxStatus().GetMetadata().GetUid())
		}
	})
}

func TestRuntime_EndsTheStreamOfASlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, Config{EventBufferSize: 10})
		s, err := g.rs.GetContainerEvents(t.Context(), &v1.GetEventsRequest{})
		require.NoError(t, err)
		_, err = s.Header()
		require.NoError(t, err)
		big := podConfig("p")
		big.Annotations["blob"] = string(make([]byte, 100<<10)) // fills the stream's window
		for i := range 150 {
			big.Metadata.Attempt = uint32(i)
			g.run(t, big)
		}
		for err == nil {
			_, err = s.Recv()
		}
		assert.Equal(t, codes.ResourceExhausted, status.Code(err))
	})
}

func TestRuntime_RunEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, Config{})
		id := g.start(t, g.run(t, podConfig("p")), nil)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Hour, cancel)
		require.NoError(t, g.Run(ctx))
		_, err := g.ContainerStatus(t.Context(), &v1.ContainerStatusRequest{ContainerId: id})
		require.NoError(t, err)
		_, err = g.RunPodSandbox(t.Context(), &v1.RunPodSandboxRequest{Config: podConfig("q")})
		assert.Equal(t, codes.Unavailable, status.Code(err))
		_, err = g.Dial()
		assert.Error(t, err)
	})
}
