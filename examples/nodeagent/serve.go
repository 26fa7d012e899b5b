package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/server"
)

// newServers serve the agent's health, pods and metrics over HTTP, and the kubelet's API
// over HTTPS, as the flags say. c is nil without a cluster.
func newServers(f *flags, c *cluster, a *agent.Agent, m *metrics, socket *socketServer, log *slog.Logger) (servers []*server.Server, err error) {
	handlers, err := m.handlers(a)
	if err != nil {
		return nil, err
	}
	handlers["/conditions"] = asJSON(func(*http.Request) (any, error) { return a.Conditions(), nil })
	handlers["/gc"] = asJSON(func(r *http.Request) (any, error) { return explain(r.Context(), a, r.URL.Query().Has("all")) })
	base := server.Config{
		NodeName: f.nodeName, Pods: a.Pods, Problems: problems(a), Logger: log, Handlers: handlers,
		Checks: []server.HealthCheck{{Name: "syncloop", Check: a.Healthy}}, Warnings: conditionMessages(a),
		Logs: a.Operator(), Streams: a.Operator(), Commands: a.Operator(),
		Summary: func(ctx context.Context, _ bool) (any, error) { return a.Stats(ctx) },
	}
	f.debug.configure(&base)
	add := func(configure func(*server.Config) error) {
		cfg := base
		srv, errServer := (*server.Server)(nil), configure(&cfg)
		if errServer == nil {
			srv, errServer = server.New(cfg)
		}
		servers, err = append(servers, srv), errors.Join(err, errServer)
	}
	if f.listen.addr != "" {
		add(f.listen.configure)
	}
	if f.listen.https != "" {
		add(func(cfg *server.Config) error {
			err := f.listen.configureHTTPS(cfg)
			if c != nil {
				err = errors.Join(err, c.secure(cfg))
			}
			return err
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
