package cri

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sublet-dev/agent/internal/logtest"
	"github.com/sublet-dev/agent/runtime"
)

// takeLog returns the lines of the log so far and empties it. All lines identify
// the pod, which is left out of what is returned.
func takeLog(t *testing.T, b *bytes.Buffer) []string {
	t.Helper()
	const id = " pod=shop/web podUID=uid-1"
	var lines []string
	for line := range strings.Lines(b.String()) {
		require.Contains(t, line, id)
		lines = append(lines, strings.TrimSpace(strings.Replace(line, id, "", 1)))
	}
	b.Reset()
	return lines
}

func TestClient_LogsLifecycleOfPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		f := newFake()
		f.perCall = time.Second
		c := f.client(t, Config{Logger: logtest.NewLogger(&log, slog.LevelInfo)})
		pod := onePod("main")
		require.Empty(t, c.Apply(t.Context(), pod, startAll(pod), runtime.RunOptions{}).Failures)
		lines := takeLog(t, &log)
		require.Len(t, lines, 4)
		assert.ElementsMatch(t, []string{
			`level=INFO msg="image pulled" image=` + busybox + ` bytes=4321 duration=0s`,
			`level=INFO msg="sandbox created" sandboxID=sb-1 attempt=0 duration=1s`,
		}, lines[:2])
		assert.Equal(t, []string{
			`level=INFO msg="container created" containerName=main containerID=ct-2 sandboxID=sb-1 image=` + busybox + ` attempt=0 duration=1s`,
			`level=INFO msg="container started" containerName=main containerID=ct-2 sandboxID=sb-1 duration=1s`,
		}, lines[2:])

		observed, err := c.Pod(t.Context(), pod.UID)
		require.NoError(t, err)
		assert.Empty(t, takeLog(t, &log), "an inspection changes nothing")

		kill := runtime.Action{
			Type: runtime.KillContainer, Container: "main", ID: observed.Containers[0].ID,
			GracePeriod: 20 * time.Second, Reason: runtime.ReasonUnhealthy,
		}
		require.Empty(t, c.Apply(t.Context(), pod, []runtime.Action{kill}, runtime.RunOptions{}).Failures)
		assert.Equal(t, []string{
			`level=INFO msg="container killed" containerName=main containerID=ct-2 reason=Unhealthy gracePeriod=20s duration=0s`,
		}, takeLog(t, &log))

		require.NoError(t, c.Kill(t.Context(), pod, observed, runtime.Termination{GracePeriod: 5 * time.Second, Deleted: true}))
		assert.Equal(t, []string{
			`level=INFO msg="container killed" containerName=main containerID=ct-2 reason=PodDeleted gracePeriod=5s duration=0s`,
			`level=INFO msg="sandbox stopped" sandboxID=sb-1 reason=PodDeleted`,
		}, takeLog(t, &log))
	})
}

func TestClient_LogsSandboxStoppedByPlan(t *testing.T) {
	var log bytes.Buffer
	c := newFake().client(t, Config{Logger: logtest.NewLogger(&log, slog.LevelInfo)})
	pod := onePod("main")
	plan := []runtime.Action{{Type: runtime.CreateSandbox}, {Type: runtime.KillSandbox, ID: "sb-1", Reason: runtime.ReasonPodTerminal}}
	require.Empty(t, c.Apply(t.Context(), pod, plan, runtime.RunOptions{}).Failures)
	lines := takeLog(t, &log)
	require.Len(t, lines, 2)
	assert.Equal(t, `level=INFO msg="sandbox stopped" sandboxID=sb-1 reason=PodDone`, lines[1])
}

// A failed pull is logged when it was tried, and not at each sync during its back-off.
func TestClient_LogsEachFailedPullOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		f := newFake()
		f.setBefore(func(_ context.Context, rpc string, _ any) error {
			if rpc == "PullImage" {
				time.Sleep(time.Second)
				return status.Error(codes.Unknown, "no route to registry")
			}
			return nil
		})
		c := f.client(t, Config{Logger: logtest.NewLogger(&log, slog.LevelInfo)})
		pod := onePod("main")
		c.Apply(t.Context(), pod, startAll(pod), runtime.RunOptions{})
		log.Reset()
		time.Sleep(time.Hour)
		for range 5 {
			assert.NotEmpty(t, c.Apply(t.Context(), pod, startAll(pod)[1:], runtime.RunOptions{}).Failures)
		}
		lines := takeLog(t, &log)
		require.Len(t, lines, 1)
		assert.Contains(t, lines[0], `level=WARN msg="image pull failed" image=`+busybox+` reason=ErrImagePull duration=1s err=`)
		assert.Contains(t, lines[0], "no route to registry")
	})
}

func TestTerminationReason(t *testing.T) {
	for want, termination := range map[string]runtime.Termination{
		"Evicted":        {Reason: "Evicted", Deleted: true},
		"NodeDraining":   {Drained: true, Deleted: true},
		"PodDeleted":     {Deleted: true},
		"PodTerminating": {},
	} {
		assert.Equal(t, want, terminationReason(termination))
	}
}
