package embedded_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"syscall"
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

// slow is an executor that takes a second to remove a container and to kill its process.
type slow struct{ *simulated.Executor }

func (s slow) Remove(c *embedded.Container) {
	time.Sleep(time.Second)
	s.Executor.Remove(c)
}

func (s slow) Start(ctx context.Context, c *embedded.Container, sio embedded.IO, exited func(embedded.Exit)) (embedded.Process, error) {
	p, err := s.Executor.Start(ctx, c, sio, exited)
	return slowProcess{p}, err
}

type slowProcess struct{ embedded.Process }

func (p slowProcess) Signal(sig syscall.Signal) error {
	time.AfterFunc(time.Second, func() { _ = p.Process.Signal(sig) })
	return nil
}

// A removal that succeeds has removed the container, whichever of several calls did it.
func TestRuntime_ConcurrentRemovalsEndWithTheRemoval(t *testing.T) {
	removals := map[string]func(g *rig, sandbox, id string) error{
		"of the container": func(g *rig, _, id string) error {
			_, err := g.CRI.RemoveContainer(context.Background(), &v1.RemoveContainerRequest{ContainerId: id})
			return err
		},
		"of its pod": func(g *rig, sandbox, _ string) error {
			_, err := g.CRI.RemovePodSandbox(context.Background(), &v1.RemovePodSandboxRequest{PodSandboxId: sandbox})
			return err
		},
	}
	for name, remove := range removals {
		for first, deadline := range map[string]time.Duration{"one that succeeds": time.Minute, "one that is given up": 500 * time.Millisecond} {
			t.Run(name+" beside "+first, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					g := newRig(t, embedded.Config{Executor: slow{simulated.New(simulated.Config{})}})
					sb := g.RunPod(t, embeddedtest.PodConfig("p"))
					id := g.Start(t, sb, nil)
					ctx, cancel := context.WithTimeout(t.Context(), deadline)
					defer cancel()
					go func() { _, _ = g.CRI.RemoveContainer(ctx, &v1.RemoveContainerRequest{ContainerId: id}) }()
					time.Sleep(100 * time.Millisecond)
					require.NoError(t, remove(g, sb, id))
					list, err := g.CRI.ListContainers(t.Context(), &v1.ListContainersRequest{})
					require.NoError(t, err)
					assert.Empty(t, list.GetContainers())
				})
			})
		}
	}
}

// A stop that was given up and made again is one stop.
func TestRuntime_EmitsTheEndOfASandboxOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, embedded.Config{Executor: slow{simulated.New(simulated.Config{})}})
		next := g.Events(t)
		sb := g.RunPod(t, embeddedtest.PodConfig("p"))
		g.Start(t, sb, nil)
		given, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		_, err := g.CRI.StopPodSandbox(given, &v1.StopPodSandboxRequest{PodSandboxId: sb})
		require.Equal(t, codes.DeadlineExceeded, status.Code(err))
		for range 2 {
			_, err = g.CRI.StopPodSandbox(t.Context(), &v1.StopPodSandboxRequest{PodSandboxId: sb})
			require.NoError(t, err)
		}
		_, err = g.CRI.RemovePodSandbox(t.Context(), &v1.RemovePodSandboxRequest{PodSandboxId: sb})
		require.NoError(t, err)
		var kinds []v1.ContainerEventType
		for !slices.Contains(kinds, v1.ContainerEventType_CONTAINER_DELETED_EVENT) {
			if e := next(); e.GetContainerId() == sb {
				kinds = append(kinds, e.GetContainerEventType())
			}
		}
		assert.Equal(t, []v1.ContainerEventType{
			v1.ContainerEventType_CONTAINER_CREATED_EVENT, v1.ContainerEventType_CONTAINER_STARTED_EVENT,
			v1.ContainerEventType_CONTAINER_STOPPED_EVENT, v1.ContainerEventType_CONTAINER_DELETED_EVENT,
		}, kinds)
	})
}

// undying is an executor of which the containers named undying cannot be killed while isUndying is true.
type undying struct {
	*simulated.Executor
	isUndying *atomic.Bool
}

func (e undying) Start(ctx context.Context, c *embedded.Container, sio embedded.IO, exited func(embedded.Exit)) (embedded.Process, error) {
	p, err := e.Executor.Start(ctx, c, sio, exited)
	if err != nil || c.Config.GetMetadata().GetName() != "undying" {
		return p, err
	}
	return undyingProcess{p, e.isUndying}, nil
}

type undyingProcess struct {
	embedded.Process
	isUndying *atomic.Bool
}

func (p undyingProcess) Signal(sig syscall.Signal) error {
	if p.isUndying.Load() {
		return errImmortal
	}
	return p.Process.Signal(sig)
}

// The others of its pod do not run on for a container that cannot be killed.
func TestRuntime_StopKillsTheOthersAfterAFailedKill(t *testing.T) {
	e := undying{simulated.New(simulated.Config{}), new(atomic.Bool)}
	e.isUndying.Store(true)
	defer e.isUndying.Store(false)
	g := newRig(t, embedded.Config{Executor: e})
	sb := g.RunPod(t, embeddedtest.PodConfig("p"))
	id := g.Start(t, sb, func(c *v1.ContainerConfig) { c.Metadata.Name = "undying" })
	other := g.Start(t, sb, nil)
	_, err := g.CRI.StopPodSandbox(t.Context(), &v1.StopPodSandboxRequest{PodSandboxId: sb})
	require.ErrorContains(t, err, "kill container "+id)
	assert.Equal(t, int32(137), g.AwaitExit(t, other).GetExitCode())
	assert.Equal(t, v1.ContainerState_CONTAINER_RUNNING, g.Inspect(t, id).GetState())

	e.isUndying.Store(false)
	_, err = g.CRI.RemovePodSandbox(t.Context(), &v1.RemovePodSandboxRequest{PodSandboxId: sb})
	require.NoError(t, err)
}

// twice makes ids until two begin with the same digit, which it returns.
func twice(make func(attempt uint32) (id string)) string {
	digits := map[string]bool{}
	for attempt := uint32(0); ; attempt++ {
		digit := make(attempt)[:1]
		if digits[digit] {
			return digit
		}
		digits[digit] = true
	}
}

// A command line client learns that the beginning of an id that it was given says too little.
func TestRuntime_RejectsAnIDThatMayMeanSeveral(t *testing.T) {
	g := newRig(t, embedded.Config{})
	var sb string
	pod := twice(func(attempt uint32) string {
		sb = g.RunPod(t, embeddedtest.PodConfig(fmt.Sprint("p", attempt)))
		return sb
	})
	container := twice(func(attempt uint32) string {
		return g.Start(t, sb, func(c *v1.ContainerConfig) { c.Metadata.Attempt = attempt })
	})
	_, stop := g.CRI.StopContainer(t.Context(), &v1.StopContainerRequest{ContainerId: container})
	_, remove := g.CRI.RemoveContainer(t.Context(), &v1.RemoveContainerRequest{ContainerId: container})
	_, stopPod := g.CRI.StopPodSandbox(t.Context(), &v1.StopPodSandboxRequest{PodSandboxId: pod})
	_, removePod := g.CRI.RemovePodSandbox(t.Context(), &v1.RemovePodSandboxRequest{PodSandboxId: pod})
	for _, err := range []error{stop, remove, stopPod, removePod} {
		assert.Equal(t, codes.InvalidArgument, status.Code(err))
		assert.ErrorContains(t, err, "more than one id begins with it")
	}
	_, err := g.CRI.StopContainer(t.Context(), &v1.StopContainerRequest{ContainerId: "x"})
	assert.NoError(t, err, "of none")
}
