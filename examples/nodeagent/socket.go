package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"path/filepath"
	"time"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/podops"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/server"
)

// socketName is the socket in the root directory to which the commands of this program connect.
const socketName = "nodeagent.sock"

// maxSocketPath is what all systems allow.
const maxSocketPath = 100

func socketPath(rootDir string) string { return filepath.Join(rootDir, socketName) }

// socketServer serves the commands on the socket. It runs inside of the agent, so that the
// root directory is locked and no other agent uses the socket.
type socketServer struct {
	rootDir string
	log     *slog.Logger
	srv     *server.Server // set before the agent runs
}

// Run implements agent.Runner.
func (s *socketServer) Run(ctx context.Context) error {
	err := errors.New("path is too long for a socket; choose a shorter -root-dir")
	if path := socketPath(s.rootDir); len(path) <= maxSocketPath {
		if err = s.srv.Run(ctx); err == nil {
			return nil
		}
	}
	// Pods do not depend on it.
	s.log.Warn("commands not available", slog.String("socket", socketPath(s.rootDir)), slog.Any("err", err))
	<-ctx.Done()
	return nil
}

// configureSocket makes a server that of the socket.
func configureSocket(cfg *server.Config, rootDir string, a *agent.Agent) {
	cfg.Addr, cfg.TrustSocketClients = "unix://"+socketPath(rootDir), true
	cfg.Handlers = map[string]http.Handler{
		"/restart/{namespace}/{pod}": change(func(r *http.Request) error {
			return a.Restart(r.Context(), r.PathValue("namespace"), r.PathValue("pod"), r.URL.Query().Get("container"))
		}),
		"/evict/{namespace}/{pod}": change(func(r *http.Request) error {
			grace, err := gracePeriod(r)
			if err != nil {
				return err
			}
			return a.Evict(r.Context(), r.PathValue("namespace"), r.PathValue("pod"), grace)
		}),
		"/drain": change(func(r *http.Request) error {
			grace, err := gracePeriod(r)
			if err != nil {
				return err
			}
			return a.Drain(r.Context(), podops.DrainOptions{GracePeriod: grace})
		}),
	}
}

func gracePeriod(r *http.Request) (time.Duration, error) {
	text := r.URL.Query().Get("gracePeriod")
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err == nil && d < 0 {
		err = errors.New("grace period must not be negative")
	}
	return d, err
}

// change responds when a change is complete, however long that takes.
func change(do func(*http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			http.Error(w, "use POST", http.StatusMethodNotAllowed)
			return
		}
		control := http.NewResponseController(w)
		_ = control.SetReadDeadline(time.Time{}) // without support there is no deadline
		_ = control.SetWriteDeadline(time.Time{})
		err := do(r)
		switch {
		case errors.Is(err, runtime.ErrNotFound):
			http.Error(w, err.Error(), http.StatusNotFound)
		case err != nil:
			http.Error(w, err.Error(), http.StatusInternalServerError)
		default:
			_ = json.NewEncoder(w).Encode(map[string]string{"status": "done"})
		}
	}
}
