// Package server serves the state of a node agent over HTTP: /healthz, /pods,
// /problems, and further handlers such as /metrics.
//
// It serves on a loopback address unless configured otherwise, because the state is
// for the operators of the node. /pods returns pods without the values of environment
// variables unless these are enabled. On loopback, requests whose Host header is not
// localhost or an IP address are rejected, which prevents DNS rebinding. The server
// changes nothing, and the resources used by clients are bounded.
package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/netutil"
	corev1 "k8s.io/api/core/v1"
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
	// AllowNonLoopback allows an Addr that other machines can reach. Every client can
	// read the specs of all pods.
	AllowNonLoopback bool
	// TLS serves HTTPS, with the client certificates that it requires. Default: plain HTTP
	TLS *tls.Config
	// Authenticate returns an error for a request that is not answered, except with status 401. Default: every client is answered
	Authenticate func(*http.Request) error

	Checks   []HealthCheck           // of /healthz; default: none
	Warnings func() []string         // of /healthz?verbose; they do not make the node unhealthy; default: none
	Pods     func() []*corev1.Pod    // of /pods, each with its status; default: none
	Problems func() []Problem        // of /problems; default: none
	Handlers map[string]http.Handler // further paths, such as /metrics, for all methods
	// Environment includes the values of environment variables, and the annotation of
	// kubectl apply, in /pods. By default they are left out, because every local user
	// and every container on the host network can connect to a loopback port.
	Environment bool
	Logger      *slog.Logger // default: discard
}

// Limits for clients.
const (
	headerTimeout   = 5 * time.Second
	responseTimeout = 30 * time.Second
	idleTimeout     = time.Minute
	maxHeader       = 16 << 10
	stopTimeout     = 2 * time.Second
	maxClients      = 64 // concurrent connections; further ones wait
)

// Server serves the state of an agent over HTTP.
type Server struct {
	cfg           Config
	mux           *http.ServeMux
	headerTimeout time.Duration
}

// New returns a Server. It does no I/O; Run fails if the address is in use.
func New(cfg Config) (*Server, error) {
	var errs []error
	if err := checkAddr(cfg.Addr); err != nil && (!cfg.AllowNonLoopback || !errors.Is(err, ErrNotLoopback)) {
		errs = append(errs, fmt.Errorf("server: Config.Addr: %q: %w", cfg.Addr, err))
	}
	for _, c := range cfg.Checks {
		if c.Name == "" || c.Check == nil {
			errs = append(errs, fmt.Errorf("server: health check %q: Name and Check required", c.Name))
		}
	}
	for path, h := range cfg.Handlers {
		if !strings.HasPrefix(path, "/") || h == nil || slices.Contains([]string{"/healthz", "/pods", "/problems"}, path) {
			errs = append(errs, fmt.Errorf("server: handler %q: path already used or handler nil", path))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{cfg: cfg, mux: http.NewServeMux(), headerTimeout: headerTimeout}
	s.mux.HandleFunc("GET /healthz", s.healthz)
	s.mux.HandleFunc("GET /pods", s.pods)
	s.mux.HandleFunc("GET /problems", s.problems)
	for path, h := range cfg.Handlers {
		s.mux.Handle(path, h)
	}
	return s, nil
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

// ServeHTTP implements http.Handler, for use in another server.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

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
		handler = http.HandlerFunc(s.local)
	}
	if s.cfg.Authenticate != nil {
		handler = s.authenticated(handler)
	}
	listener = netutil.LimitListener(listener, maxClients)
	if s.cfg.TLS != nil {
		listener = tls.NewListener(listener, s.cfg.TLS)
	}
	srv := &http.Server{
		Handler: handler, ReadHeaderTimeout: s.headerTimeout, ReadTimeout: s.headerTimeout, WriteTimeout: responseTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(s.cfg.Logger.Handler(), slog.LevelWarn),
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
