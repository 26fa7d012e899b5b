package embedded_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/internal/embeddedtest"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
)

// clumsy is an executor that panics in one of its methods.
type clumsy struct {
	*simulated.Executor
	in string
}

func (e *clumsy) panicIn(method string) {
	if e.in == method {
		panic("no such luck")
	}
}

func (e *clumsy) Create(ctx context.Context, c *embedded.Container) error {
	e.panicIn("Create")
	return e.Executor.Create(ctx, c)
}

func (e *clumsy) Start(ctx context.Context, c *embedded.Container, sio embedded.IO, exited func(embedded.Exit)) (embedded.Process, error) {
	e.panicIn("Start")
	p, err := e.Executor.Start(ctx, c, sio, exited)
	return clumsyProcess{p, e}, err
}

func (e *clumsy) Remove(c *embedded.Container) {
	e.panicIn("Remove")
	e.Executor.Remove(c)
}

type clumsyProcess struct {
	embedded.Process
	*clumsy
}

func (p clumsyProcess) Exec(ctx context.Context, e embedded.Exec) (int32, error) {
	p.panicIn("Exec")
	return p.Process.Exec(ctx, e)
}

// AG-9: a panic in an executor is the error of the call, and the runtime goes on.
func TestRuntime_SurvivesPanicsOfTheExecutor(t *testing.T) {
	for _, method := range []string{"Create", "Start", "Exec", "Remove"} {
		t.Run(method, func(t *testing.T) {
			e := &clumsy{simulated.New(simulated.Config{}), method}
			g := newRig(t, embedded.Config{Executor: e})
			sb := g.RunPod(t, embeddedtest.PodConfig("p"))
			use := func() (id string, err error) {
				if id, err = g.Create(t, sb, nil, "sleep", "1d"); err != nil {
					return id, err
				}
				if _, err := g.CRI.StartContainer(t.Context(), &v1.StartContainerRequest{ContainerId: id}); err != nil {
					return id, err
				}
				_, err = g.CRI.ExecSync(t.Context(), &v1.ExecSyncRequest{ContainerId: id, Cmd: []string{"true"}, Timeout: 10})
				return id, err
			}
			id, err := use()
			if method != "Remove" {
				require.ErrorContains(t, err, "no such luck")
			}
			if id != "" {
				_, err = g.CRI.RemoveContainer(t.Context(), &v1.RemoveContainerRequest{ContainerId: id})
				require.NoError(t, err)
			}
			e.in = ""
			_, err = use()
			assert.NoError(t, err)
		})
	}
}
