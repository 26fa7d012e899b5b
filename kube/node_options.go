package kube

import (
	"context"
	"path/filepath"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/runtime"
)

// NodeOptions returns the options that make an agent with Options a whole node: its Node
// object and lease, and the objects, tokens and services of its pods. The agent reports
// the status of the node and runs all of it. cacheDir is as for Options: what pods need
// of objects is kept in a directory beside the pods, and so are the labels of the Node. New
// pods wait until the Node is known.
func (k *Kube) NodeOptions(cfg NodeConfig, cacheDir string) ([]agent.Option, error) {
	reporter := &lateReporter{}
	if cfg.Reporter == nil {
		cfg.Reporter = reporter
	}
	if cfg.Recorder == nil {
		cfg.Recorder = k.events
	}
	n, err := k.Node(cfg)
	if err != nil {
		return nil, err
	}
	n.dir = objectDir(cacheDir)
	objects := cfg.Objects
	if objects == nil {
		var objectsCfg ObjectsConfig
		if cacheDir != "" {
			objectsCfg.Dir = filepath.Join(cacheDir, "objects")
		}
		if objects, err = k.Objects(objectsCfg); err != nil {
			return nil, err
		}
	}
	runner := func(f func(context.Context) error) agent.Constructor[agent.Runner] {
		return func(c *agent.Components) (agent.Runner, error) {
			reporter.NodeReporter = c.NodeStatus
			if u, ok := runtime.Capability[runtime.PodCIDRUpdater](c.Runtime); ok && n.cfg.UpdatePodCIDRs == nil {
				n.cfg.UpdatePodCIDRs = u.UpdatePodCIDRs
			}
			return runFunc(f), nil
		}
	}
	k.store.awaitNode()
	return append(k.Options(cacheDir),
		agent.WithObjects(objects),
		agent.WithNodeLabels(n.Labels),
		agent.WithRunner("kube node", runner(n.Run)),
		agent.WithRunner("kube objects", runner(objects.Run)),
	), nil
}

// lateReporter is the status of the agent, which is built after the Node.
type lateReporter struct{ NodeReporter }

// runFunc is a Runner.
type runFunc func(context.Context) error

// Run implements agent.Runner.
func (f runFunc) Run(ctx context.Context) error { return f(ctx) }
