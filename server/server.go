package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/loglimit"
	"github.com/sublet-dev/agent/internal/safe"
)

// ErrNotLoopback is wrapped by the error of New for an address that other machines can
// reach.
var ErrNotLoopback = errors.New("not a loopback address")

// HealthCheck is one check of /healthz.
type HealthCheck struct {
	Name string
	// Check returns an error if the node is not healthy. It must not block.
	Check func() error
}

// Hooks are called while a request is served. Each may be nil and must not block.
type Hooks struct {
	// HealthChecked: a check of a request of /healthz, /livez or /readyz, which the
	// endpoint names without its slash, has passed or failed with err.
	HealthChecked func(endpoint, check string, err error)
}

// Problem is one entry of /problems: a source error, or a pod that cannot be inspected
// or does not run. It does not make the node unhealthy.
type Problem struct {
	Location string    `json:"location"`
	Error    string    `json:"error"`
	Since    time.Time `json:"since"`
}

// Config describes a Server.
type Config struct {
	// Addr is host:port, or unix:///path for a socket that only the user of this process can connect to. Required
	Addr string
	// AllowNonLoopback allows an Addr that other machines can reach. Without
	// Authenticators every client can read the specs of all pods.
	AllowNonLoopback bool
	// TLS serves HTTPS, with version 1.2 or later; see CertificateFiles. Default: plain HTTP
	TLS *tls.Config

	// Authenticators identify the user of a request: the first that knows one decides.
	// Requests without a user get status 401. Default: clients are not identified
	Authenticators []Authenticator
	// Authorizer decides what users may do. Default: each identified user may use all
	// paths except those that need an Authorizer
	Authorizer Authorizer
	// Anonymous makes a client without credentials the user system:anonymous. It needs an Authorizer.
	Anonymous bool
	// TrustSocketClients lets clients of a unix socket use all paths: only the user of
	// this process can connect to it.
	TrustSocketClients bool

	NodeName string               // for Authorizer; required with it
	Checks   []HealthCheck        // of /healthz; default: none
	Hooks    Hooks                // default: none
	Warnings func() []string      // of /healthz?verbose; they do not make the node unhealthy; default: none
	Pods     func() []*corev1.Pod // of /pods, each with its status, read-only; default: none
	Problems func() []Problem     // of /problems; default: none
	// Handlers serve further paths, such as /metrics, for all methods. Of equal GET requests of /metrics and below
	// that come at once, one reaches its handler, and the others get its answer.
	Handlers map[string]http.Handler

	// What the node can do besides. A path whose field is nil is disabled: status 405.
	RunningPods  func(context.Context) ([]*corev1.Pod, error) // of /runningpods/: pods of the runtime
	Logs         LogReader                                    // of /containerLogs/
	Streams      Streamer                                     // of /exec/, /attach/, /portForward/
	Commands     CommandRunner                                // of /run/
	Checkpointer Checkpointer                                 // of /checkpoint/
	// Summary returns the JSON of /stats/summary, such as a stats.Summary: that of Agent.Stats or, with
	// onlyCPUAndMemory, of Agent.CPUAndMemoryStats.
	Summary func(ctx context.Context, onlyCPUAndMemory bool) (any, error)
	// Configz returns the configuration, as JSON, of /configz: tools read the fields of a
	// KubeletConfiguration of kubelet.config.k8s.io/v1beta1. It must contain no secret.
	Configz func() any
	Flagz   func() map[string]string // the flags of the process, of /flagz. They must contain no secret
	UI      http.Handler             // of /ui/, a page for people: a ui.Page. Its paths begin after /ui
	LogDir  string                   // of /logs/, such as /var/log. Links that lead out of it are not followed; absolute ones are, if a file is one
	// ServiceLogs answers queries of /logs/, such as ?query=kubelet&tailLines=100. It needs LogDir, where logs of further services
	// are. Journal is one. Default: the query is ignored
	ServiceLogs ServiceLogs
	// KubeAPI serves /api, /apis, /openapi and /version, for kubectl without a cluster, and
	// enables /livez and /readyz. It needs TLS, Authenticators and an Authorizer.
	KubeAPI KubeAPI

	Profiling bool // serves /debug/pprof/: profiles of this process

	MaxConnections    int           // further ones wait, or replace one whose client has used no right; default: 256
	MaxStreams        int           // requests that may last: logs, exec, attach, port-forward, run, checkpoints, watches, pages of UI, profiles; further ones get status 429, and so do those of a namespace that has more than are free; default: half of MaxConnections
	StreamIdleTimeout time.Duration // a stream on which nothing is sent or accepted for so long is closed; default: 4 h
	Logger            *slog.Logger  // default: discard
}

// Limits for clients.
const (
	headerTimeout   = 5 * time.Second
	responseTimeout = 30 * time.Second
	idleTimeout     = time.Minute
	maxHeader       = 256 << 10 // the words of a command are in the URL
	maxBody         = 64 << 10  // only requests to KubeAPI need a body
	stopTimeout     = 2 * time.Second

	defaultMaxConnections    = 256
	defaultStreamIdleTimeout = 4 * time.Hour
)

// Server serves the state of an agent over HTTP.
type Server struct {
	cfg           Config
	mux           *http.ServeMux
	routes        map[string]route // by pattern of mux
	streams       *streamSlots
	runtime       *http.Transport // to the runtime's streaming server
	started       time.Time
	headerTimeout time.Duration
	stallPeriod   time.Duration
	undecided     loglimit.Limit // requests that could not be authorized
}

// New returns a Server. It does no I/O; Run fails if the address is in use.
func New(cfg Config) (*Server, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	cfg.MaxConnections = cmp.Or(cfg.MaxConnections, defaultMaxConnections)
	cfg.MaxStreams = cmp.Or(cfg.MaxStreams, max(1, cfg.MaxConnections/2))
	cfg.StreamIdleTimeout = cmp.Or(cfg.StreamIdleTimeout, defaultStreamIdleTimeout)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Hooks.HealthChecked = safe.Hook3(cfg.Logger, "HealthChecked", cfg.Hooks.HealthChecked)
	s := &Server{
		cfg: cfg, mux: http.NewServeMux(), routes: map[string]route{}, streams: newStreamSlots(cfg.MaxStreams),
		runtime: runtimeTransport(), started: time.Now(), headerTimeout: headerTimeout, stallPeriod: stallPeriod,
	}
	s.register()
	return s, nil
}

// check returns all that is wrong with a Config.
func (cfg *Config) check() error {
	var errs []error
	fail := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf("server: "+format, args...))
		}
	}
	err := checkAddr(cfg.Addr)
	fail(err != nil && (!cfg.AllowNonLoopback || !errors.Is(err, ErrNotLoopback)), "Config.Addr: %q: %w", cfg.Addr, err)
	names := map[string]bool{}
	for _, c := range cfg.Checks {
		fail(c.Name == "" || c.Check == nil, "health check %q: Name and Check required", c.Name)
		fail(strings.ContainsFunc(c.Name, func(r rune) bool { return !validInName(r) }), "health check %q: Name must consist of letters, digits, '-', '_' and '.'", c.Name)
		fail(names[c.Name] || c.Name == pingCheck || c.Name == logCheck, "health check %q: name already used", c.Name)
		names[c.Name] = true
	}
	for path, h := range cfg.Handlers {
		fail(!strings.HasPrefix(path, "/") || h == nil || used(path), "handler %q: path already used or handler nil", path)
	}
	fail(slices.Contains(cfg.Authenticators, nil), "Config.Authenticators: one is nil")
	fail(cfg.Authorizer != nil && len(cfg.Authenticators) == 0 && !cfg.Anonymous, "Config.Authorizer needs Authenticators")
	fail(cfg.Authorizer != nil && cfg.NodeName == "", "Config.Authorizer needs NodeName")
	fail(cfg.KubeAPI != nil && (cfg.TLS == nil || len(cfg.Authenticators) == 0 || cfg.Authorizer == nil), "Config.KubeAPI needs TLS, Authenticators and an Authorizer")
	fail(cfg.Anonymous && cfg.Authorizer == nil, "Config.Anonymous needs an Authorizer")
	fail(cfg.ServiceLogs != nil && cfg.LogDir == "", "Config.ServiceLogs needs LogDir")
	fail(cfg.MaxConnections < 0 || cfg.MaxStreams < 0 || cfg.StreamIdleTimeout < 0, "Config.MaxConnections, MaxStreams, StreamIdleTimeout: must not be negative")
	fail(cfg.MaxStreams >= cmp.Or(cfg.MaxConnections, defaultMaxConnections), "Config.MaxStreams: must be less than MaxConnections, so that other requests are answered")
	return errors.Join(errs...)
}

func validInName(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r)
}

func checkAddr(addr string) error {
	if socket, ok := strings.CutPrefix(addr, socketPrefix); ok {
		if !filepath.IsAbs(socket) {
			return errors.New("must be unix:///path")
		}
		return nil
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("must be host:port: %w", err)
	}
	if host == "localhost" {
		return nil
	}
	if ip, err := netip.ParseAddr(host); err != nil || !ip.IsLoopback() {
		return fmt.Errorf("%w: use 127.0.0.1", ErrNotLoopback)
	}
	return nil
}

// Run serves until ctx is done. Requests in progress then have two seconds to finish.
func (s *Server) Run(ctx context.Context) error {
	listener, err := listen(ctx, s.cfg.Addr)
	if err != nil {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	return s.Serve(ctx, listener)
}

// Serve is like Run with a listener, which it closes.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	var handler http.Handler = s
	if !s.cfg.AllowNonLoopback {
		if err := checkListener(listener.Addr()); err != nil {
			return errors.Join(err, listener.Close())
		}
		if listener.Addr().Network() != "unix" { // to which no name in DNS leads
			handler = http.HandlerFunc(s.local)
		}
	}
	listener = limitConnections(listener, s.cfg.MaxConnections)
	if s.cfg.TLS != nil {
		listener = tls.NewListener(listener, s.tlsConfig())
	}
	// Requests end with live: Shutdown and Close do not know the streams.
	live, end := context.WithCancel(context.WithoutCancel(ctx))
	var requests sync.WaitGroup
	defer requests.Wait()
	defer end()
	defer s.runtime.CloseIdleConnections()
	srv := &http.Server{
		Handler: tracked(&requests, handler), ReadHeaderTimeout: s.headerTimeout, ReadTimeout: s.headerTimeout, WriteTimeout: responseTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog:    log.New(&errorLog{log: s.cfg.Logger}, "", 0),
		BaseContext: func(net.Listener) context.Context { return live },
		ConnContext: withConnection,
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve HTTP: %w", err)
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if err := srv.Shutdown(last); err != nil {
		_ = srv.Close() // requests that exceed stopTimeout are aborted
	}
	if err := <-served; err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	return nil
}

// tracked counts the requests in progress, including those that took over their
// connection.
func tracked(requests *sync.WaitGroup, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		defer requests.Done()
		next.ServeHTTP(w, r)
	})
}

// checkListener rejects a localhost that resolves to a non-loopback address.
func checkListener(addr net.Addr) error {
	tcp, ok := addr.(*net.TCPAddr)
	if ok && !tcp.IP.IsLoopback() {
		return fmt.Errorf("serve HTTP on %s: %w", addr, ErrNotLoopback)
	}
	return nil
}

// local rejects requests whose Host header is neither localhost nor an IP address.
func (s *Server) local(w http.ResponseWriter, r *http.Request) {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err != nil && host != "localhost" && host != "" {
		http.Error(w, "use 127.0.0.1 or localhost as the host", http.StatusMisdirectedRequest)
		return
	}
	s.ServeHTTP(w, r)
}
