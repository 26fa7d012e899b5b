package kube

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
)

// AgentConfig says how an agent is a node of the cluster. The zero value has defaults.
type AgentConfig struct {
	// CacheDir is the directory of podsource.Cached, which keeps the pods on disk for a
	// start without the API server, or "" for none. A directory below the agent's root
	// directory is a good one.
	CacheDir string
	// Node describes the Node object. The default of its Reporter is the agent, and that
	// of its Recorder is Events.
	Node NodeConfig
	// NoNode leaves the Node object to others: it is neither registered nor updated.
	NoNode bool
}

// Options returns the options that make an agent a node of the cluster: the node and
// its lease, the pods that are bound to it, their statuses, mirror pods of static pods,
// and events. The agent runs all of it, and k must not be used for another.
//
//	k, err := kube.New(kube.Config{Client: client, NodeName: name})
//	...
//	opts, err := k.Options(kube.AgentConfig{CacheDir: "/var/lib/sublet/api"})
//	...
//	a, err := agent.New(append(opts, agent.WithRuntimeEndpoint(endpoint), agent.WithRootDir(dir))...)
func (k *Kube) Options(cfg AgentConfig) ([]agent.Option, error) {
	var pods podsource.Source = k.pods
	if cfg.CacheDir != "" {
		if !filepath.IsAbs(cfg.CacheDir) {
			return nil, fmt.Errorf("kube: AgentConfig.CacheDir: %q must be an absolute path", cfg.CacheDir)
		}
		pods = podsource.Cached(pods, cfg.CacheDir)
	}
	self := &components{}
	k.setAgent(self)
	options := []agent.Option{
		agent.WithNodeName(k.cfg.NodeName),
		agent.WithSource(podspec.SourceAPI, pods),
		agent.WithStatusSink(k.statuses),
		agent.WithRecorder(k.events),
		agent.WithRunner("kube", func(c *agent.Components) (agent.Runner, error) {
			self.Components = c
			return k, nil
		}),
	}
	if cfg.NoNode {
		return options, nil
	}
	if cfg.Node.Reporter == nil {
		cfg.Node.Reporter = self
	}
	if cfg.Node.Recorder == nil {
		cfg.Node.Recorder = k.events
	}
	node, err := k.Node(cfg.Node)
	if err != nil {
		return nil, err
	}
	return append(options, agent.WithNodeLabels(node.Labels),
		agent.WithRunner("kube node", func(*agent.Components) (agent.Runner, error) { return node, nil })), nil
}

// components are what a Kube needs of an agent. They are set by agent.New, and used when it
// runs.
type components struct{ *agent.Components }

var (
	_ nodeAgent    = (*components)(nil)
	_ NodeReporter = (*components)(nil)
)

// Resend implements nodeAgent.
func (c *components) Resend(uid types.UID) { c.StatusManager.Resend(uid) }

// Pods implements nodeAgent.
func (c *components) Pods() (desired []*corev1.Pod, synced bool) {
	synced = len(c.Sources.Unsynced()) == 0 // first: what syncs meanwhile is in the pods
	return c.Sources.Pods(), synced
}

// At implements NodeReporter.
func (c *components) At(ctx context.Context, now time.Time) (corev1.NodeStatus, error) {
	return c.NodeStatus.At(ctx, now)
}

// Conditions implements NodeReporter.
func (c *components) Conditions() []corev1.NodeCondition { return c.NodeStatus.Conditions() }
