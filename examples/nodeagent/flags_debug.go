package main

import (
	"cmp"
	"flag"
	"maps"
	"net/http"
	"os"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/server"
	"github.com/sublet-dev/agent/server/ui"
	"github.com/sublet-dev/agent/timeline"
)

// debugFlags are about what people look at when something is wrong. All is off by default.
type debugFlags struct {
	ui, profiling, nodeLogs, logQuery bool
	values                            map[string]string // of all flags without secrets
	page                              http.Handler      // with ui
}

const nodeLogDir = "/var/log"

func (f *debugFlags) define(fs *flag.FlagSet) {
	fs.BoolVar(&f.ui, "ui", false, "serve a page for people at /ui/ of -listen and -listen-https: pods and what happened to them, the node, evictions")
	fs.BoolVar(&f.profiling, "enable-profiling-handler", false, "serve /debug/pprof/ at -listen-https: profiles of this process")
	fs.BoolVar(&f.nodeLogs, "enable-system-log-handler", false, "serve /logs/ at -listen-https: the files of "+nodeLogDir)
	fs.BoolVar(&f.logQuery, "enable-system-log-query", false, "let /logs/?query=SERVICE read the journal of systemd; needs -enable-system-log-handler")
}

func (f *debugFlags) check(fail func(bad bool, format string, args ...any)) {
	fail(f.logQuery && !f.nodeLogs, "-enable-system-log-query needs -enable-system-log-handler")
}

// remember keeps the values of all flags but those that have secrets.
func (f *debugFlags) remember(fs *flag.FlagSet) {
	f.values = map[string]string{}
	fs.VisitAll(func(fl *flag.Flag) {
		_, unsupported := fl.Value.(*unsupportedFlag)
		switch {
		case unsupported, fl.Name == "manifest-url-header":
		case fl.Name == "manifest-url":
			f.values[fl.Name] = withoutSecrets(fl.Value.String())
		default:
			f.values[fl.Name] = fl.Value.String()
		}
	})
}

// options make the agent keep what the page shows.
func (f *debugFlags) options(nodeName string) ([]agent.Option, error) {
	if !f.ui {
		return nil, nil
	}
	host, _ := os.Hostname() // of no importance: a title
	h := timeline.New(timeline.Config{})
	page, err := ui.New(ui.Config{NodeName: cmp.Or(nodeName, host), History: h})
	if err != nil {
		return nil, err
	}
	f.page = page
	return []agent.Option{
		agent.WithHooks(agent.Hooks{
			PodManager: h.PodManager(), PodWorkers: h.PodWorkers(), PodSync: h.PodSync(), Status: h.Status(), Housekeeper: h.Housekeeper(),
			CRI: h.CRI(), Eviction: h.Eviction(), ImageGC: h.ImageGC(), ContainerGC: h.ContainerGC(),
		}),
		agent.WithRunner("timeline", func(c *agent.Components) (agent.Runner, error) {
			return timeline.Sampler{History: h, Usage: c.Stats, Capacity: c.Node.Capacity, Conditions: c.NodeStatus.Conditions}, nil
		}),
	}, nil
}

// configure sets what all servers serve of it.
func (f *debugFlags) configure(cfg *server.Config) {
	cfg.UI, cfg.Profiling = f.page, f.profiling
	if f.nodeLogs {
		cfg.LogDir = nodeLogDir
	}
	if f.logQuery {
		cfg.ServiceLogs = server.Journal{}
	}
	cfg.Flagz = func() map[string]string { return maps.Clone(f.values) }
}
