package agent_test

import (
	"context"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/internal/logtest"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
)

// podLog is an io.Writer that keeps the lines of a log that name a pod, without values
// that differ between runs.
type podLog struct {
	mu    sync.Mutex
	lines []string
}

var volatile = regexp.MustCompile(` (time|level|podUID|containerID|sandboxID|until|duration|imageID)=("[^"]*"|\S*)`)

func (l *podLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if line := strings.TrimSuffix(string(b), "\n"); strings.Contains(line, " pod=") {
		l.lines = append(l.lines, strings.TrimPrefix(volatile.ReplaceAllString(" "+line, ""), " "))
	}
	return len(b), nil
}

func (l *podLog) take() []string {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := l.lines
	l.lines = nil
	return lines
}

// The log at level Info tells the lifecycle of a pod that crashes and is deleted, one
// line per event however often the pod is synced.
func TestAgent_LogsLifecycleOfPod(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var log podLog
		source := podsource.NewMemory(agenttest.Pod("web", "run-for=2s", "exit-code=3"))
		a, err := agent.New(
			agent.WithNodeName("n"), agent.WithRootDir(root), agent.WithNode(node.Config{DisableCgroups: true}), agent.WithSimulatedRuntime(),
			agent.WithSource("memory", source), agent.WithLogger(slog.New(slog.NewTextHandler(&log, nil))),
		)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		stopped := make(chan error, 1)
		go func() { stopped <- a.Run(ctx) }()

		time.Sleep(25 * time.Second) // it crashes after 2 s, 4 s and, after a back-off of 10 s, 16 s
		source.Delete("default", "web")
		time.Sleep(time.Minute)
		lines := log.take()
		require.Greater(t, len(lines), 2)
		slices.Sort(lines[1:3]) // the image is pulled while the sandbox is created
		assert.Equal(t, []string{
			`msg="pod admitted" pod=default/web source=memory`,
			`msg="image pulled" pod=default/web image=app:1 bytes=1048576`,
			`msg="sandbox created" pod=default/web attempt=0`,
			`msg="container created" pod=default/web containerName=main image=app:1 attempt=0`,
			`msg="container started" pod=default/web containerName=main`,
			`msg="container exited" pod=default/web containerName=main attempt=0 exitCode=3 reason=Error`,
			`msg="container created" pod=default/web containerName=main image=app:1 attempt=1`,
			`msg="container started" pod=default/web containerName=main`,
			`msg="container exited" pod=default/web containerName=main attempt=1 exitCode=3 reason=Error`,
			`msg="back-off started" pod=default/web containerName=main reason=CrashLoopBackOff`,
			`msg="container created" pod=default/web containerName=main image=app:1 attempt=2`,
			`msg="container started" pod=default/web containerName=main`,
			`msg="container exited" pod=default/web containerName=main attempt=2 exitCode=3 reason=Error`,
			`msg="back-off started" pod=default/web containerName=main reason=CrashLoopBackOff`,
			`msg="pod removed from source" pod=default/web source=memory`,
			`msg="pod terminating" pod=default/web reason=Removed gracePeriod=30s`,
			`msg="sandbox stopped" pod=default/web reason=PodDeleted`,
			`msg="pod terminated" pod=default/web reason=Removed`,
			`msg="pod finished" pod=default/web reason=Removed`,
		}, lines)
		cancel()
		require.NoError(t, <-stopped)
	})
}

// AG-2: an agent whose pods do not really run says so once, above the level of what it
// says of pods.
func TestAgent_LogsThatPodsAreSimulated(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var log logtest.Buffer
		a, err := agent.New(
			agent.WithNodeName("n"), agent.WithRootDir(root), agent.WithNode(node.Config{DisableCgroups: true}), agent.WithSimulatedRuntime(),
			agent.WithLogger(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))),
		)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		require.NoError(t, a.Run(ctx))
		assert.Equal(t, 1, strings.Count(log.String(), `level=WARN msg="pods are simulated and no container runs"`))
	})
}
