package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/hostprocess"
	"github.com/sublet-dev/agent/timeline"
)

// quickstart runs the samples until ctx is done, terminates them and prints a
// summary.
func quickstart(ctx context.Context, out *os.File, span time.Duration) (err error) {
	dir, err := os.MkdirTemp("", "sublet-quickstart-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	manifests, notes := filepath.Join(dir, "manifests"), filepath.Join(dir, "notes")
	for _, d := range []string{manifests, notes} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return err
		}
	}
	if err := copySamples(manifests, notes); err != nil {
		return err
	}
	history := timeline.New(timeline.Config{})
	runtime, err := hostRuntime(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, runtime.Close()) }()

	b := newBoard(out)
	servePage, url, err := newPage(ctx, history)
	if err != nil {
		return err
	}
	b.note("a page with the timeline of each pod: " + url)
	a, err := newAgent(runtime, filepath.Join(dir, "root"), manifests, b, history, servePage)
	if err != nil {
		return err
	}
	if span == 0 {
		span = defaultSpan
	}
	script, stop := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() { play(script, manifests, span, b) })
	var sourceErrors []string
	done.Go(func() {
		<-ctx.Done() // while the agent still has its state
		for _, f := range a.SourceErrors() {
			sourceErrors = append(sourceErrors, f.Error())
		}
		b.checkExpectations()
	})
	err = a.Run(ctx)
	stop()
	if ctx.Err() == nil { // the agent stopped by itself, which is a defect
		return err
	}
	done.Wait()
	if !b.summarize(out, sourceErrors) {
		err = errors.Join(err, errNotAll)
	}
	return err
}

// newAgent returns an agent that terminates its pods when it stops.
func newAgent(runtime *embedded.Runtime, root, manifests string, b *board, history *timeline.History, page agent.Runner) (*agent.Agent, error) {
	cc, err := runtime.Dial()
	if err != nil {
		return nil, err
	}
	client, err := cri.New(cc, cri.Config{Recorder: b, Hooks: history.CRI()})
	if err != nil {
		return nil, err
	}
	return agent.New(
		agent.WithNodeName("quickstart"),
		agent.WithNode(node.Config{IPs: []string{"127.0.0.1"}, DisableCgroups: true}),
		agent.WithRootDir(root),
		agent.WithRuntime(client),
		agent.WithSource("file", podsource.File(manifests)),
		agent.WithStatusSink(b),
		agent.WithRecorder(b),
		agent.WithConfig(podworkers.DrainConfig{Timeout: 15 * time.Second}),
		agent.WithHooks(agent.Hooks{
			PodManager: history.PodManager(), PodWorkers: history.PodWorkers(), PodSync: history.PodSync(), Status: history.Status(),
			Housekeeper: history.Housekeeper(), ContainerGC: history.ContainerGC(),
		}),
		agent.WithRunner("timeline", func(c *agent.Components) (agent.Runner, error) {
			return timeline.Sampler{History: history, Usage: c.Stats, Capacity: c.Node.Capacity, Conditions: c.NodeStatus.Conditions}, nil
		}),
		agent.WithRunner("page", func(*agent.Components) (agent.Runner, error) { return page, nil }),
	)
}

// hostRuntime returns a CRI runtime in this process whose containers are processes
// of this machine. Its images are only names: one contains this program, for pods
// that need a server; the other is empty, so that commands are those of the host.
func hostRuntime(dir string) (*embedded.Runtime, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	return embedded.New(embedded.Config{
		Executor: hostprocess.New(hostprocess.Config{Root: filepath.Join(dir, "containers"), Unprivileged: true}),
		Images: []embedded.Image{
			{Ref: "quickstart/self:1", Entrypoint: []string{self}},
			{Ref: "quickstart/host:1"},
		},
	})
}
