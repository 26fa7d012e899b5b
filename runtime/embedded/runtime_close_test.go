package embedded_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/logtest"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/internal/embeddedtest"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
)

func TestRuntime_CloseWaitsForTheGracePeriod(t *testing.T) {
	tests := map[string]struct {
		annotation string
		config     embedded.Config
		script     []string
		takes      time.Duration
		code       int32
	}{
		"it ends in time":             {"20", embedded.Config{}, []string{"sim.sublet.dev/stop-after: 5s"}, 5 * time.Second, 143},
		"it does not":                 {"20", embedded.Config{}, []string{"sim.sublet.dev/ignore-term: true"}, 20 * time.Second, 137},
		"it wants more than there is": {"1000", embedded.Config{Grace: time.Minute}, []string{"sim.sublet.dev/ignore-term: true"}, time.Minute, 137},
		"more than by default":        {"1000", embedded.Config{}, []string{"sim.sublet.dev/ignore-term: true"}, 30 * time.Second, 137},
		"it wants none":               {"0", embedded.Config{}, []string{"sim.sublet.dev/stop-after: 5s"}, 0, 137},
		"it says nothing":             {"", embedded.Config{}, []string{"sim.sublet.dev/stop-after: 5s"}, 0, 137},
		"it says nonsense":            {"soon", embedded.Config{}, []string{"sim.sublet.dev/stop-after: 5s"}, 0, 137},
		"nobody gets any":             {"20", embedded.Config{Grace: -1}, []string{"sim.sublet.dev/stop-after: 5s"}, 0, 137},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, tc.config)
				id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p", tc.script...)), func(c *v1.ContainerConfig) {
					if tc.annotation != "" {
						c.Annotations = map[string]string{"io.kubernetes.pod.terminationGracePeriod": tc.annotation}
					}
				})
				begin := time.Now()
				require.NoError(t, g.Close())
				assert.Equal(t, tc.takes, time.Since(begin))
				st, err := g.ContainerStatus(t.Context(), &v1.ContainerStatusRequest{ContainerId: id})
				require.NoError(t, err)
				assert.Equal(t, tc.code, st.GetStatus().GetExitCode())
			})
		})
	}
}

// immortal is an executor whose containers cannot be signalled, as an ordinary user cannot signal
// a program that has become root.
type immortal struct {
	*simulated.Executor
	processes chan embedded.Process
}

var errImmortal = errors.New("operation not permitted")

func (e immortal) Start(ctx context.Context, c *embedded.Container, sio embedded.IO, exited func(embedded.Exit)) (embedded.Process, error) {
	p, err := e.Executor.Start(ctx, c, sio, exited)
	e.processes <- p
	return immortalProcess{p}, err
}

type immortalProcess struct{ embedded.Process }

func (immortalProcess) Signal(syscall.Signal) error { return errImmortal }

func TestRuntime_CloseGivesUpAfterAFailedKill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		executor := immortal{simulated.New(simulated.Config{}), make(chan embedded.Process, 1)}
		rt, err := embedded.New(embedded.Config{Executor: executor})
		require.NoError(t, err)
		g := &rig{&embeddedtest.Fixture{Runtime: rt}}
		conn, err := rt.Dial()
		require.NoError(t, err)
		g.CRI, g.Images = v1.NewRuntimeServiceClient(conn), v1.NewImageServiceClient(conn)
		id := g.Start(t, g.RunPod(t, embeddedtest.PodConfig("p")), nil)
		begin := time.Now()
		err = rt.Close()
		require.ErrorIs(t, err, errImmortal)
		assert.ErrorContains(t, err, "kill container "+id)
		assert.Equal(t, 5*time.Second, time.Since(begin))
		require.NoError(t, conn.Close())
		require.NoError(t, (<-executor.processes).Signal(syscall.SIGKILL))
	})
}

// A server that is closed before it has begun has not failed.
func TestRuntime_CloseDuringDial(t *testing.T) {
	var log logtest.Buffer
	for range 1000 {
		rt, err := embedded.New(embedded.Config{Executor: simulated.New(simulated.Config{}), Logger: logtest.NewLogger(&log, slog.LevelInfo)})
		require.NoError(t, err)
		var closing sync.WaitGroup
		closing.Go(func() { assert.NoError(t, rt.Close()) })
		if conn, err := rt.Dial(); err == nil {
			_ = conn.Close()
		}
		closing.Wait()
	}
	require.Empty(t, log.String())
}
