package embedded_test

import (
	"context"
	"math"
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
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
)

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
		"has time without end":     {annotation: "sim.sublet.dev/stop-after: 40s", timeout: math.MaxInt64, takes: 40 * time.Second, code: 143},
		"ignores the signal":       {annotation: "sim.sublet.dev/ignore-term: true", timeout: 5, takes: 5 * time.Second, code: 137},
		"without a grace":          {annotation: "sim.sublet.dev/ignore-term: true", code: 137},
		"ends with its own code":   {annotation: "sim.sublet.dev/term-exit-code: 0", timeout: 5},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, embedded.Config{})
				id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p", tc.annotation)), nil)
				begin := time.Now()
				g.Stop(t, id, tc.timeout)
				assert.Equal(t, tc.takes, time.Since(begin))
				assert.Equal(t, tc.code, g.Inspect(t, id).GetExitCode())
				g.Stop(t, id, tc.timeout) // again is no error
			})
		})
	}
}

func TestRuntime_ALaterStopShortensTheGracePeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, embedded.Config{})
		id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p", "sim.sublet.dev/ignore-term: true")), nil)
		begin := time.Now()
		done := make(chan struct{})
		go func() { g.Stop(t, id, 600); close(done) }()
		time.Sleep(time.Second)
		g.Stop(t, id, 2)
		<-done
		assert.Equal(t, 3*time.Second, time.Since(begin))
	})
}

func TestRuntime_ASlowStartBlocksNoOtherCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, embedded.Config{})
		sb := g.RunPod(t, embeddedtest.PodConfig("slow", "sim.sublet.dev/start-hang: true"))
		id, err := g.Create(t, sb, nil)
		require.NoError(t, err)
		begin := time.Now()
		failed := make(chan error, 1)
		go func() {
			_, err := g.CRI.StartContainer(t.Context(), &v1.StartContainerRequest{ContainerId: id})
			failed <- err
		}()
		synctest.Wait()
		g.Start(t, g.RunPod(t, embeddedtest.PodConfig("other")), nil)
		_, err = g.CRI.ListContainers(t.Context(), &v1.ListContainersRequest{})
		require.NoError(t, err)
		assert.Zero(t, time.Since(begin), "calls about other pods waited")

		_, err = g.CRI.StopPodSandbox(t.Context(), &v1.StopPodSandboxRequest{PodSandboxId: sb})
		require.NoError(t, err)
		assert.Equal(t, codes.Canceled, status.Code(<-failed))
		st := g.Inspect(t, id)
		assert.Equal(t, "StartError", st.GetReason())
		assert.Equal(t, int32(128), st.GetExitCode())
	})
}

// stubborn is an executor whose starts take a second and cannot be broken off.
type stubborn struct{ *simulated.Executor }

func (s stubborn) Start(_ context.Context, c *embedded.Container, sio embedded.IO, exited func(embedded.Exit)) (embedded.Process, error) {
	time.Sleep(time.Second)
	return s.Executor.Start(context.Background(), c, sio, exited)
}

func TestRuntime_KillsAfterAStartThatCannotBeCancelled(t *testing.T) {
	ends := map[string]struct {
		end  func(g *rig, sandbox, id string) error
		code int32
	}{
		"by the pod's stop": {func(g *rig, sandbox, _ string) error {
			_, err := g.CRI.StopPodSandbox(context.Background(), &v1.StopPodSandboxRequest{PodSandboxId: sandbox})
			return err
		}, 137},
		"by a stop with grace": {func(g *rig, _, id string) error {
			_, err := g.CRI.StopContainer(context.Background(), &v1.StopContainerRequest{ContainerId: id, Timeout: 30})
			return err
		}, 143},
		"by a stop without grace": {func(g *rig, _, id string) error {
			_, err := g.CRI.StopContainer(context.Background(), &v1.StopContainerRequest{ContainerId: id})
			return err
		}, 137},
		"by Close": {func(g *rig, _, _ string) error { return g.Close() }, 137},
	}
	for name, tc := range ends {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, embedded.Config{Executor: stubborn{simulated.New(simulated.Config{})}})
				sb := g.RunPod(t, embeddedtest.PodConfig("p"))
				id, err := g.Create(t, sb, nil)
				require.NoError(t, err)
				begin := time.Now()
				go func() { _, _ = g.CRI.StartContainer(t.Context(), &v1.StartContainerRequest{ContainerId: id}) }()
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
		g := newRig(t, embedded.Config{})
		next := g.Events(t)
		sb := g.RunPod(t, embeddedtest.PodConfig("p", "sim.sublet.dev/run-for: 1s"))
		id := g.Start(t, sb, nil)
		time.Sleep(2 * time.Second)
		_, err := g.CRI.RemovePodSandbox(t.Context(), &v1.RemovePodSandboxRequest{PodSandboxId: sb})
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
		g := newRig(t, embedded.Config{EventBufferSize: 10})
		s, err := g.CRI.GetContainerEvents(t.Context(), &v1.GetEventsRequest{})
		require.NoError(t, err)
		_, err = s.Header()
		require.NoError(t, err)
		big := embeddedtest.PodConfig("p")
		big.Annotations["blob"] = string(make([]byte, 100<<10)) // fills the stream's window
		for i := range 150 {
			big.Metadata.Attempt = uint32(i)
			g.RunPod(t, big)
		}
		for err == nil {
			_, err = s.Recv()
		}
		assert.Equal(t, codes.ResourceExhausted, status.Code(err))
	})
}

func TestRuntime_RunEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, embedded.Config{})
		id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), nil)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Hour, cancel)
		require.NoError(t, g.Run(ctx))
		_, err := g.ContainerStatus(t.Context(), &v1.ContainerStatusRequest{ContainerId: id})
		require.NoError(t, err)
		_, err = g.RunPodSandbox(t.Context(), &v1.RunPodSandboxRequest{Config: embeddedtest.PodConfig("q")})
		assert.Equal(t, codes.Unavailable, status.Code(err))
		_, err = g.Dial()
		assert.Error(t, err)
	})
}

// slowCreation is an executor that takes a second to create a container.
type slowCreation struct{ *simulated.Executor }

func (s slowCreation) Create(ctx context.Context, c *embedded.Container) error {
	time.Sleep(time.Second)
	return s.Executor.Create(ctx, c)
}

// A container that is being created is in neither the list nor the status of its pod.
func TestRuntime_ReportsContainersOnceTheyAreCreated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, embedded.Config{Executor: slowCreation{simulated.New(simulated.Config{})}})
		sb := g.RunPod(t, embeddedtest.PodConfig("p"))
		reported := func() (listed, inStatus int) {
			list, err := g.CRI.ListContainers(t.Context(), &v1.ListContainersRequest{})
			require.NoError(t, err)
			st, err := g.CRI.PodSandboxStatus(t.Context(), &v1.PodSandboxStatusRequest{PodSandboxId: sb})
			require.NoError(t, err)
			return len(list.GetContainers()), len(st.GetContainersStatuses())
		}
		created := make(chan error, 1)
		go func() {
			_, err := g.Create(t, sb, nil)
			created <- err
		}()
		time.Sleep(500 * time.Millisecond)
		listed, inStatus := reported()
		assert.Zero(t, listed)
		assert.Zero(t, inStatus, "containers in the status of the pod")
		require.NoError(t, <-created)
		listed, inStatus = reported()
		assert.Equal(t, []int{1, 1}, []int{listed, inStatus})
	})
}

// Executors are not asked to run nothing.
func TestRuntime_ExecNeedsACommand(t *testing.T) {
	g := newRig(t, embedded.Config{})
	id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), nil)
	for name, exec := range map[string]func() error{
		"ExecStreams": func() error { _, err := g.ExecStreams(t.Context(), id, embedded.Exec{}); return err },
		"ExecSync":    func() error { _, err := g.CRI.ExecSync(t.Context(), &v1.ExecSyncRequest{ContainerId: id}); return err },
		"Exec": func() error {
			_, err := g.CRI.Exec(t.Context(), &v1.ExecRequest{ContainerId: id, Stdout: true})
			return err
		},
	} {
		err := exec()
		assert.Equal(t, codes.InvalidArgument, status.Code(err), "%s: %v", name, err)
	}
}

// Without a streaming server the error says which one there is.
func TestRuntime_StreamsNeedAServer(t *testing.T) {
	g := newRig(t, embedded.Config{})
	id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), nil)
	_, err := g.CRI.Exec(t.Context(), &v1.ExecRequest{ContainerId: id, Cmd: []string{"true"}, Stdout: true})
	assert.Equal(t, codes.Unimplemented, status.Code(err))
	assert.ErrorContains(t, err, "package runtime/embedded/stream is one")
}
