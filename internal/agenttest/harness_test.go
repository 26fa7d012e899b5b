package agenttest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/runtimetest"
)

func TestMain(m *testing.M) { Main(m) }

// inBubble runs a test on a node with a running agent.
func inBubble(t *testing.T, config Config, test func(t *testing.T, h *Harness)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := New(t, config)
		h.Start()
		test(t, h)
		h.Stop()
		h.ShutDown()
	})
}

func TestHarness_KilledAgentChangesNothing(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, h *Harness) {
		h.Memory.Put(Pod("web"))
		synctest.Wait()
		require.Equal(t, corev1.PodRunning, h.LastStatus("web").Phase)
		h.Kill()
		assert.True(t, h.Killed())
		assert.Nil(t, h.Agent())
		h.Memory.Set()
		assert.True(t, h.StopContainer("web", "main"))
		assert.False(t, h.StopContainer("web", "main"))
		time.Sleep(time.Hour)
		assert.Equal(t, corev1.PodRunning, h.LastStatus("web").Phase)
		assert.NotEqual(t, Empty, h.Left())
		h.Start()
		time.Sleep(time.Minute)
		assert.Empty(t, h.Statuses())
		assert.Equal(t, Empty, h.Left())
		h.AssertNothingLeaked(func(string, string) bool { return false })
	})
}

func TestHarness_Breakpoints(t *testing.T) {
	for name, tt := range map[string]struct {
		b    Breakpoint
		want string
	}{
		"kill the agent":      {Breakpoint{RPC: "StartContainer", Moment: Before, Count: 2, Action: KillAgent, For: time.Minute}, "before StartContainer of app: kill-agent 1m"},
		"restart the runtime": {Breakpoint{RPC: "RunPodSandbox", Moment: After, Count: 1, Action: RestartRuntime, For: time.Second}, "after RunPodSandbox of "},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Config{}, func(t *testing.T, h *Harness) {
				h.AddBreakpoint(tt.b)
				h.Memory.Put(Pod("web"))
				synctest.Wait()
				h.Memory.Put(Pod("app"))
				time.Sleep(5 * time.Minute)
				assert.Len(t, h.Running(), 2)
				assert.Len(t, h.ReadySandboxes(), 2)
				assert.Contains(t, h.Trace.String(), tt.want)
			})
		})
	}
}

func TestHarness_EndFaults(t *testing.T) {
	inBubble(t, Config{Faults: &FaultPlan{rules: []runtimetest.Rule{{RPC: "CreateContainer", Fault: runtimetest.Fail}}, hits: []int{0}}}, func(t *testing.T, h *Harness) {
		h.SetFaults(runtimetest.Rule{RPC: "StartContainer", Fault: runtimetest.Fail})
		h.SetSinkError(errors.New("on purpose"))
		h.Memory.Put(Pod("web"))
		time.Sleep(time.Minute)
		h.SetListDelay(time.Hour)
		h.Down()
		time.Sleep(time.Minute)
		assert.Empty(t, h.Running())
		assert.Empty(t, h.Statuses())
		assert.Len(t, h.Faults(), 1)
		h.EndFaults()
		assert.Empty(t, h.Faults())
		time.Sleep(5 * time.Minute)
		assert.Len(t, h.Running(), 1)
		assert.Equal(t, corev1.PodRunning, h.LastStatus("web").Phase)
		assert.Positive(t, h.config.Faults.Hits()[runtimetest.Fail])
	})
}

func TestHarness_ManifestsAreWatched(t *testing.T) {
	const manifest = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: main, image: app}]}\n"
	inBubble(t, Config{}, func(t *testing.T, h *Harness) {
		require.NoError(t, h.Manifests.Write("web.yaml", manifest))
		time.Sleep(time.Second) // notifications within 100 ms are one scan
		assert.Len(t, h.Running(), 1)
		require.NoError(t, h.Manifests.Remove("web.yaml"))
		time.Sleep(time.Minute)
		assert.Empty(t, h.Running())
		assert.ErrorIs(t, h.Manifests.Remove("web.yaml"), os.ErrNotExist)
	})
}

func TestHarness_FirstStops(t *testing.T) {
	inBubble(t, Config{CollectExited: true}, func(t *testing.T, h *Harness) {
		h.Memory.Put(Pod("web"), Pod("other"))
		time.Sleep(time.Minute)
		h.Memory.Delete("default", "web")
		time.Sleep(time.Minute)
		assert.Equal(t, map[string]time.Duration{"web/main": time.Minute}, h.FirstStops())
	})
}

// reportsFailure reports whether a function fails its test.
func reportsFailure(t *testing.T, h *Harness, f func()) bool {
	t.Helper()
	real, probe := h.t, new(testing.T)
	h.t = probe
	f()
	h.t = real
	return probe.Failed()
}

// Each invariant fails the test that breaks it.
func TestHarness_InvariantsCanFail(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, h *Harness) {
		pod := Pod("web")
		pod.UID = "u1"
		h.Kill() // an agent would remove this pod, which it does not know
		ctx := context.Background()
		rs := v1.NewRuntimeServiceClient(h.Runtime())
		config := &v1.PodSandboxConfig{Metadata: &v1.PodSandboxMetadata{Name: "web", Namespace: "default", Uid: "u1"}}
		box, err := rs.RunPodSandbox(ctx, &v1.RunPodSandboxRequest{Config: config})
		require.NoError(t, err)
		_, err = v1.NewImageServiceClient(h.Runtime()).PullImage(ctx, &v1.PullImageRequest{Image: &v1.ImageSpec{Image: "app:1"}})
		require.NoError(t, err)
		var ids []string
		for attempt := range uint32(2) {
			made, err := rs.CreateContainer(ctx, &v1.CreateContainerRequest{PodSandboxId: box.GetPodSandboxId(), SandboxConfig: config, Config: &v1.ContainerConfig{
				Metadata: &v1.ContainerMetadata{Name: "main", Attempt: attempt}, Image: &v1.ImageSpec{Image: "app:1"},
				Labels: map[string]string{"io.kubernetes.pod.uid": "u1", "io.kubernetes.pod.name": "web"},
			}})
			require.NoError(t, err)
			ids = append(ids, made.GetContainerId())
		}
		start := func(id string) func() {
			return func() { h.checkStart("StartContainer", &v1.StartContainerRequest{ContainerId: id}) }
		}
		assert.False(t, reportsFailure(t, h, start(ids[0])))
		_, err = rs.StartContainer(ctx, &v1.StartContainerRequest{ContainerId: ids[0]})
		require.NoError(t, err)
		assert.True(t, reportsFailure(t, h, start(ids[1])), "another container of the name runs")
		assert.Equal(t, "main#1", h.ContainerName(ids[1]))

		never := func(string, string) bool { return false }
		assert.True(t, reportsFailure(t, h, func() { h.AssertNothingLeaked(never) }), "a sandbox without a pod")
		s := &sink{h: h, interceptor: newInterceptor(h, nil), sent: map[types.UID]bool{}}
		require.NoError(t, s.SetStatus(ctx, pod, corev1.PodStatus{Phase: corev1.PodRunning}))
		assert.False(t, reportsFailure(t, h, func() { h.AssertNothingLeaked(never) }))
		require.NoError(t, os.MkdirAll(filepath.Join(h.Dir, "pods", "u2"), 0o700))
		assert.True(t, reportsFailure(t, h, func() { h.AssertNothingLeaked(never) }), "a directory of a deleted pod")

		send := func(phase corev1.PodPhase) func() {
			return func() { assert.NoError(t, s.SetStatus(ctx, pod, corev1.PodStatus{Phase: phase})) }
		}
		assert.False(t, reportsFailure(t, h, send(corev1.PodRunning)), "another process may send the status of the previous one")
		assert.True(t, reportsFailure(t, h, send(corev1.PodRunning)), "the same status twice")
		assert.False(t, reportsFailure(t, h, send(corev1.PodFailed)))
		assert.True(t, reportsFailure(t, h, send(corev1.PodRunning)), "a final phase is left")
		assert.True(t, reportsFailure(t, h, func() { assert.NoError(t, s.DeleteStatus(ctx, pod)) }), "a container runs")
	})
}
