package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/prom"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/server"
)

// metrics returns a registry with the agent's metrics, and the hooks that set them.
func metrics() (*prometheus.Registry, agent.Hooks, error) {
	reg := prometheus.NewRegistry()
	m, err := prom.New(reg)
	if err != nil {
		return nil, agent.Hooks{}, err
	}
	for _, c := range []prometheus.Collector{collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})} {
		if err := reg.Register(c); err != nil {
			return nil, agent.Hooks{}, err
		}
	}
	return reg, agent.Hooks{
		Sources: m.Sources(), SyncLoop: m.SyncLoop(), PodManager: m.PodManager(), Housekeeper: m.Housekeeper(), PodWorkers: m.PodWorkers(),
		PLEG: m.PLEG(), Status: m.Status(), Probe: m.Probe(), Eviction: m.Eviction(), ImageGC: m.ImageGC(), ContainerGC: m.ContainerGC(), LogRotation: m.LogRotation(),
		CRI: cri.Hooks{Call: m.RuntimeCall},
	}, nil
}

// newServer serves the agent's health, pods and metrics over HTTP.
func newServer(f *listenFlags, a *agent.Agent, reg *prometheus.Registry, log *slog.Logger) (*server.Server, error) {
	if err := prom.RegisterPods(reg, a.Pods); err != nil {
		return nil, err
	}
	if err := prom.RegisterProblems(reg, prom.Problems{
		SourceErrors: a.SourceErrors, InspectionErrors: a.InspectionErrors,
		RejectedPods: func() int { return len(a.PodProblems()) },
	}); err != nil {
		return nil, err
	}
	cfg := server.Config{
		Pods: a.Pods, Problems: problems(a), Logger: log,
		Checks: []server.HealthCheck{{Name: "syncloop", Check: a.Healthy}}, Warnings: conditionMessages(a),
		Summary: func(ctx context.Context, _ bool) (any, error) { return a.Stats(ctx) },
		Handlers: map[string]http.Handler{
			"/metrics":    promhttp.HandlerFor(reg, promhttp.HandlerOpts{}),
			"/conditions": asJSON(func(*http.Request) (any, error) { return a.Conditions(), nil }),
			"/gc":         asJSON(func(r *http.Request) (any, error) { return explain(r.Context(), a, r.URL.Query().Has("all")) }),
		},
	}
	if err := f.configure(&cfg); err != nil {
		return nil, err
	}
	return server.New(cfg)
}

// conditionMessages returns the node's conditions as text.
func conditionMessages(a *agent.Agent) func() []string {
	return func() (all []string) {
		for _, c := range a.Conditions() {
			all = append(all, fmt.Sprintf("%s %s: %s", c.Type, c.Status, c.Message))
		}
		return all
	}
}

func asJSON(query func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, err := query(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v) // the client may have disconnected
	}
}

// problems returns source errors, pods that the node has rejected or evicted, and pods
// that cannot be inspected.
func problems(a *agent.Agent) func() []server.Problem {
	return func() (all []server.Problem) {
		for _, f := range a.SourceErrors() {
			all = append(all, server.Problem{Location: f.Location, Error: f.Err.Error(), Since: f.Since})
		}
		for _, p := range a.PodProblems() {
			all = append(all, server.Problem{Location: fmt.Sprintf("pod %s/%s with UID %s", p.Pod.Namespace, p.Pod.Name, p.Pod.UID), Error: p.Error(), Since: p.Since})
		}
		failing := a.InspectionErrors()
		if len(failing) == 0 {
			return all
		}
		pods := map[types.UID]*corev1.Pod{}
		for _, pod := range a.Pods() {
			pods[pod.UID] = pod
		}
		for _, f := range failing {
			location := fmt.Sprintf("pod with UID %s", f.UID)
			if pod := pods[f.UID]; pod != nil {
				location = fmt.Sprintf("pod %s/%s with UID %s", pod.Namespace, pod.Name, f.UID)
			}
			all = append(all, server.Problem{Location: location, Error: f.Error(), Since: f.Since})
		}
		return all
	}
}
