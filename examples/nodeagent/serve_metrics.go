package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/cgroup"
	"github.com/sublet-dev/agent/kube"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/prom"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/stats"
	"github.com/sublet-dev/agent/volume"
)

// metrics are those of the agent. Each path has a registry of its own, because some
// metrics of a kubelet have one name and several sets of labels.
type metrics struct {
	agent, resource, cadvisor, probes, slis *prometheus.Registry
	all                                     *prom.Metrics
	node                                    prom.Node // what the options of the agent have made
}

func newMetrics() (*metrics, error) {
	m := &metrics{agent: prometheus.NewRegistry(), resource: prometheus.NewRegistry(), cadvisor: prometheus.NewRegistry(), probes: prometheus.NewRegistry(), slis: prometheus.NewRegistry()}
	var err error
	if m.all, err = prom.New(m.agent); err != nil {
		return nil, err
	}
	for _, c := range []prometheus.Collector{collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})} {
		if err := m.agent.Register(c); err != nil {
			return nil, err
		}
	}
	return m, errors.Join(m.all.RegisterProbes(m.probes), m.all.RegisterSLIs(m.slis))
}

// hooks set the metrics.
func (m *metrics) hooks() agent.Hooks {
	a := m.all
	return agent.Hooks{
		Sources: a.Sources(), SyncLoop: a.SyncLoop(), PodManager: a.PodManager(), Housekeeper: a.Housekeeper(), PodWorkers: a.PodWorkers(),
		PLEG: a.PLEG(), Status: a.Status(), Probe: a.Probe(), Eviction: a.Eviction(), ImageGC: a.ImageGC(), ContainerGC: a.ContainerGC(), LogRotation: a.LogRotation(),
		PodSync: a.PodSync(), Cgroups: a.Cgroups(), Volumes: a.Volumes(), CRI: cri.Hooks{Call: a.RuntimeCall, OperationEnded: a.RuntimeOperation},
	}
}

// scrapeTimeout bounds the measurement for one scrape. Prometheus waits 10 seconds for an answer by default.
const scrapeTimeout = 8 * time.Second

// forScrape gives a measurement a context.
func forScrape(measure func(context.Context) (stats.Summary, error)) func() (stats.Summary, error) {
	return func() (stats.Summary, error) {
		ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
		defer cancel()
		return measure(ctx)
	}
}

// handlers serve the metrics, those that query the agent included.
func (m *metrics) handlers(a *agent.Agent, log *slog.Logger) (map[string]http.Handler, error) {
	usage := prom.Usage{
		Summary: forScrape(a.Stats), Pods: a.Pods,
		Capacity: func() corev1.ResourceList { return a.Components().Node.Capacity },
	}
	cheap := prom.Usage{Summary: forScrape(a.CPUAndMemoryStats)}
	for _, register := range []func() error{
		func() error { return prom.RegisterPods(m.agent, a.Pods) },
		func() error {
			return prom.RegisterProblems(m.agent, prom.Problems{
				SourceErrors: a.SourceErrors, InspectionErrors: a.InspectionErrors,
				RejectedPods: func() int { return len(a.PodProblems()) },
			})
		},
		func() error { return prom.RegisterNode(m.agent, m.describe(a)) },
		func() error { return m.registerVolumes(a) },
		func() error { return prom.RegisterResources(m.resource, cheap) },
		func() error { return prom.RegisterContainers(m.cadvisor, usage) },
	} {
		if err := register(); err != nil {
			return nil, err
		}
	}
	handlers := map[string]http.Handler{}
	for path, reg := range map[string]*prometheus.Registry{
		"/metrics": m.agent, "/metrics/resource": m.resource, "/metrics/cadvisor": m.cadvisor, "/metrics/probes": m.probes,
		"/metrics/slis": m.slis,
	} {
		// As with a kubelet, what is wrong with one metric does not hide the others.
		handlers[path] = promhttp.HandlerFor(reg, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, ErrorLog: scrapeLog{log}})
	}
	return handlers, nil
}

// registerVolumes registers the metrics of volumes. Their usage does not wait for the runtime: the metrics of the agent are there
// while it hangs.
func (m *metrics) registerVolumes(a *agent.Agent) error {
	v, ok := a.Components().Volumes.(*volume.Manager)
	if !ok {
		return nil
	}
	usage := prom.Usage{Summary: func() (stats.Summary, error) { return stats.VolumeSummary(a.Pods(), v), nil }}
	return errors.Join(prom.RegisterVolumes(m.agent, usage), m.all.RegisterVolumeCounts(m.agent, v.Counts))
}

// scrapeLog logs the errors of scrapes.
type scrapeLog struct{ *slog.Logger }

// Println implements promhttp.Logger.
func (l scrapeLog) Println(v ...any) {
	l.Error("metrics incomplete", slog.String("err", fmt.Sprint(v...)))
}

// describe returns what is counted of the node.
func (m *metrics) describe(a *agent.Agent) prom.Node {
	c, n := a.Components(), m.node
	n.Name, n.KubeletVersion, n.CgroupVersion = c.NodeName, kube.Version, cgroup.Version(os.DirFS("/"))
	if w, ok := c.PodWorkers.(*podworkers.Workers); ok {
		n.Workers, n.DesiredUIDs = w.Snapshot, func() map[types.UID]struct{} { return c.PodManager.AddDesiredUIDs(nil) }
	}
	return n
}
