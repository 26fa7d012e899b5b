package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"golang.org/x/sync/errgroup"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/server"
)

// serverConfig returns what all servers of the agent have: its health, pods and metrics, and what the
// kubelet's API has besides.
func serverConfig(f *flags, a *agent.Agent, m *metrics, log *slog.Logger) (server.Config, error) {
	handlers, err := m.handlers(a, log)
	if err != nil {
		return server.Config{}, err
	}
	handlers["/conditions"] = asJSON(func(*http.Request) (any, error) { return a.Conditions(), nil })
	handlers["/gc"] = asJSON(func(r *http.Request) (any, error) { return explain(r.Context(), a, r.URL.Query().Has("all")) })
	cfg := server.Config{
		NodeName: f.nodeName, Pods: a.Pods, Problems: problems(a), Logger: log, Handlers: handlers,
		Checks: []server.HealthCheck{{Name: "syncloop", Check: a.Healthy}}, Warnings: conditionMessages(a),
		Hooks: server.Hooks{HealthChecked: m.all.HealthChecked},
		Logs:  a, Streams: a, Commands: a, Checkpointer: a, RunningPods: a.RunningPods,
		Summary: func(ctx context.Context, onlyCPUAndMemory bool) (any, error) {
			if onlyCPUAndMemory {
				return a.CPUAndMemoryStats(ctx)
			}
			return a.Stats(ctx)
		},
		Configz: func() any { return f.kubeletConfiguration() },
	}
	if f.runtimeEndpoint == "" {
		cfg.Streams = simulatedPods{}
	}
	f.debug.configure(&cfg)
	return cfg, nil
}

// newServers serve what base has over HTTP, and the kubelet's API over HTTPS, as the flags say. c is nil
// without a cluster.
func newServers(f *flags, c *cluster, a *agent.Agent, base server.Config, socket *socketServer) (servers []*server.Server, err error) {
	add := func(configure func(*server.Config) error) {
		cfg := base
		srv, errServer := (*server.Server)(nil), configure(&cfg)
		if errServer == nil {
			srv, errServer = server.New(cfg)
		}
		servers, err = append(servers, srv), errors.Join(err, errServer)
	}
	if f.listen.addr != "" {
		add(func(cfg *server.Config) error {
			return errors.Join(f.listen.configure(cfg), f.config.limitTLS(cfg))
		})
	}
	if f.listen.https != "" {
		add(func(cfg *server.Config) error {
			err := f.listen.configureHTTPS(cfg)
			if c != nil {
				err = errors.Join(err, c.secure(cfg, f.config.effective.Kubelet()))
			}
			return errors.Join(err, f.config.limit(cfg))
		})
	}
	configureSocket(&base, f.rootDir, a)
	var errSocket error
	socket.srv, errSocket = server.New(base)
	return servers, errors.Join(err, errSocket)
}

// serve runs all servers until ctx is done or one of them ends.
func serve(ctx context.Context, servers []*server.Server) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, srv := range servers {
		group.Go(func() error { return srv.Run(ctx) })
	}
	return group.Wait()
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

// problems returns what is wrong with what the node should run.
func problems(a *agent.Agent) func() []server.Problem {
	return func() (all []server.Problem) {
		for _, p := range a.Problems() {
			all = append(all, server.Problem{Location: p.Location, Error: p.Err.Error(), Since: p.Since})
		}
		return all
	}
}
