// Package lazycri has a CRI client that connects late. Components are built before
// anything on the node is touched, and the owner id that the client needs is only known
// once the root directory is locked.
package lazycri

import (
	"errors"
	"io"
	"os"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
)

// Runtime is a cri.Client, with all its capabilities, from Connect on. Its other methods
// must not be called before.
type Runtime struct {
	*cri.Client
	connect func(*Runtime) (disconnect func() error, err error)
}

// New returns the client of the chosen runtime. cfg is completed by Connect: with owner and,
// for fields of Config.Node of a real runtime that are zero, with what cri.DetectNode finds.
func New(choice Choice, cfg cri.Config, owner func() string) *Runtime {
	return &Runtime{connect: func(r *Runtime) (func() error, error) {
		cfg.Owner = owner()
		if choice.Simulated {
			return r.simulate(cfg)
		}
		cfg.Node = cfg.Node.WithDetected(cri.DetectNode(os.DirFS("/")))
		return r.dial(choice, cfg)
	}}
}

func (r *Runtime) dial(choice Choice, cfg cri.Config) (disconnect func() error, err error) {
	conn, err := cri.Dial(choice.Endpoint)
	if err != nil {
		return nil, err
	}
	opened := []io.Closer{conn}
	if choice.Image != "" {
		images, err := cri.Dial(choice.Image)
		if err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		cfg.ImageConn = images
		opened = append(opened, images)
	}
	r.Client, err = cri.New(conn, cfg)
	return closeAll(opened...), err
}

// simulate makes the client of an embedded runtime that simulates pods. It logs a warning:
// a node on which an option for tests was left looks healthy otherwise.
func (r *Runtime) simulate(cfg cri.Config) (disconnect func() error, err error) {
	if cfg.Logger != nil {
		cfg.Logger.Warn("pods are simulated and no container runs")
	}
	// Simulated pods need no grace period when the agent ends.
	inside, err := embedded.New(embedded.Config{Executor: simulated.New(simulated.Config{LogsAtStart: true}), Logger: cfg.Logger, Grace: -1})
	if err != nil {
		return nil, err
	}
	conn, err := inside.Dial()
	if err != nil {
		return nil, errors.Join(err, inside.Close())
	}
	r.Client, err = cri.New(conn, cfg)
	return closeAll(conn, inside), err
}

// Connect makes the client. It does not wait for the runtime to answer. If disconnect is
// not nil, it must be called in the end, even after an error.
func (r *Runtime) Connect() (disconnect func() error, err error) { return r.connect(r) }

// Connect connects to rt if it is a Runtime, whatever decorates it, or else tells it its
// owner. If disconnect is not nil, it must be called in the end, even after an error.
func Connect(rt any, owner string, adoptSources []string) (disconnect func() error, err error) {
	if r, ok := runtime.Capability[interface{ Connect() (func() error, error) }](rt); ok {
		return r.Connect()
	}
	if r, ok := runtime.Capability[runtime.OwnerSetter](rt); ok {
		r.SetOwner(owner, adoptSources)
	}
	return nil, nil
}

func closeAll(all ...io.Closer) func() error {
	return func() error {
		var errs []error
		for _, c := range all {
			errs = append(errs, c.Close())
		}
		return errors.Join(errs...)
	}
}
