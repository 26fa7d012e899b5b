package main

import (
	"errors"
	"flag"
	"log/slog"
	"path/filepath"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/prom"
	"github.com/sublet-dev/agent/server/podsapi"
)

// podsAPIFlags are about the pods API, which a kubelet serves at a fixed path.
type podsAPIFlags struct{ socket string }

func (f *podsAPIFlags) define(fs *flag.FlagSet) {
	fs.StringVar(&f.socket, "pods-api-socket", "", "socket of the pods API, usually /var/lib/kubelet/pods-api/kubelet.sock; without it, or with the feature gate PodsAPI off, the API is not served")
}

func (f *podsAPIFlags) check(fail func(bad bool, format string, args ...any)) {
	fail(f.socket != "" && !filepath.IsAbs(f.socket), "-pods-api-socket %q: must be an absolute path", f.socket)
}

// options returns what serves the pods API, if it is enabled.
func (f *podsAPIFlags) options(enabled bool, metrics *prom.Metrics, log *slog.Logger) []agent.Option {
	if f.socket == "" {
		return nil
	}
	if !enabled {
		log.Info("pods API not served: its feature gate is off", slog.String("path", f.socket))
		return nil
	}
	return []agent.Option{agent.WithRunner("pods API", func(c *agent.Components) (agent.Runner, error) {
		return podsapi.New(podsapi.Config{
			Path: f.socket, Pods: c.Operator.Pods, WatchList: c.Watchers.WatchList, Ready: func() error { return podsKnown(c) },
			Hooks: podsapi.Hooks{Requested: metrics.PodsAPIRequested, StatesMissed: metrics.PodsAPIStatesMissed}, Logger: log,
		})
	})}
}

// podsKnown returns why pods of this node may not be known yet.
func podsKnown(c *agent.Components) error {
	err := c.Sources.Healthy()
	if !c.RuntimeState.PodsKnown() {
		err = errors.Join(err, agent.ErrPodsNotListed)
	}
	return err
}
