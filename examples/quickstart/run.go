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
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtime/embedded"
)

// quickstart runs the samples until ctx ends, ends them, and tells what ran.
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
	runtime, err := hostRuntime(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, runtime.Close()) }()

	b := newBoard(out)
	a, err := newAgent(runtime, filepath.Join(dir, "root"), manifests, b)
	if err != nil {
		return err
	}
	if span == 0 {
		span = scripted
	}
	script, stop := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() { play(script, manifests, span, b) })
	var faults []string
	done.Go(func() {
		<-ctx.Done() // what is wrong is asked while the agent still knows
		for _, f := range a.SourceErrors() {
			faults = append(faults, f.Error())
		}
		b.judge()
	})
	err = a.Run(ctx)
	stop()
	if ctx.Err() == nil { // the agent ended by itself, which is a fault
		return err
	}
	done.Wait()
	if !b.verdict(out, faults) {
		err = errors.Join(err, errNotAll)
	}
	return err
}

// newAgent puts an agent together that ends its pods when it ends.
func newAgent(runtime *embedded.Runtime, root, manifests string, b *board) (*agent.Agent, error) {
	cc, err := runtime.Dial()
	if err != nil {
		return nil, err
	}
	client, err := cri.New(cc, cri.Config{})
	if err != nil {
		return nil, err
	}
	return agent.New(
		agent.WithNodeName("quickstart"),
		agent.WithNode(agent.NodeConfig{IPs: []string{"127.0.0.1"}, DisableCgroups: true}),
		agent.WithRootDir(root),
		agent.WithRuntime(client),
		agent.WithSource("file", podsource.File(manifests)),
		agent.WithStatusSink(b),
		agent.WithRecorder(b),
		agent.WithShutdownPolicy(agent.ShutdownPolicy{Drain: true, DrainTimeout: 15 * time.Second}),
	)
}

// hostRuntime is a CRI runtime in this process whose containers are processes of
// this machine. Its images are mere names: one brings this program itself, for
// the pods that need a server, the other nothing, so that commands are the
// host's.
func hostRuntime(dir string) (*embedded.Runtime, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	return embedded.New(embedded.Config{
		Executor: embedded.NewHostProcess(embedded.HostConfig{Root: filepath.Join(dir, "containers"), Unprivileged: true}),
		Images: []embedded.Image{
			{Ref: "quickstart/self:1", Entrypoint: []string{self}},
			{Ref: "quickstart/host:1"},
		},
	})
}
