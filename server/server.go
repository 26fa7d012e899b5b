// Package server tells over HTTP how a node agent is: /healthz, /pods, /faults,
// and whatever else is handed to it, such as /metrics.
//
// It serves on loopback unless it is told otherwise: what it shows is for the
// node's own operators. /pods has the pods' specs, without the values of
// environment variables unless these are asked for.
// On loopback it answers only to who asks for this machine by number or as
// localhost, so that no web page that a browser here has open can read along
// under a name of its own. It changes nothing, and what a client may cost is
// bounded.
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

// ErrNotLoopback is wrapped by the error of New for an address that others than
// this machine could reach.
var ErrNotLoopback = errors.New("not a loopback address")

// HealthCheck is one thing that has to be well for the node to be healthy.
type HealthCheck struct {
	Name string
	// Check returns what is wrong, or nil. It must answer from memory.
	Check func() error
}

// Problem is something wrong that harms nobody else.
type Problem struct {
	Location string    `json:"where"`
	Error    string    `json:"error"`
	Since    time.Time `json:"since"`
}

// Config describes a Server.
type Config struct {
	// Addr is host:port, or unix:///path for a socket that only the user of this process can connect to. Required
	Addr string
	// AllowNonLoopback allows an Addr that other machines can reach. Whoever can reach it
	// can read every pod's spec.
	AllowNonLoopback bool
	// TLS serves HTTPS, with the client certificates that it requires. Default: plain HTTP
	TLS *tls.Config
	// Authenticate returns an error for a request that is not answered, except with status 401. Default: every client is answered
	Authenticate func(*http.Request) error

	Checks   []HealthCheck           // of /healthz; default: always well
	Warnings func() []string         // of /healthz?verbose: what is worth knowing and makes nothing unwell; default: none
	Pods     func() []*corev1.Pod    // of /pods, each with its status; default: none
	Problems func() []Problem        // of /faults; default: none
	Handlers map[string]http.Handler // further paths, such as /metrics and /stats/summary, with every method
	// Environment has /pods show the values of environment variables. Every local user can connect to a loopback port, and so can every
	// container on the host's network, so by default they are left out, and the annotation of kubectl apply with them.
	Environment bool
	Logger      *slog.Logger // default: discard
}

// Limits of what a client may cost.
const (
	headerTimeout = 5 * time.Second
	answerTimeout = 30 * time.Second
	idleTimeout   = time.Minute
	maxHeader     = 16 << 10
	stopTimeout   = 2 * time.Second
	maxClients    = 64 // connections at a time; further ones wait
)

// Server answers over HTTP.
type Server struct {
	cfg           Config
	mux           *http.ServeMux
	headerTimeout time.Duration
}

// New returns a Server. It does no I/O: whether the address is free is seen by
// Run.
func New(cfg Config) (*Server, error) {
	var errs []error
	if err := checkAddr(cfg.Addr); err != nil && (!cfg.AllowNonLoopback || !errors.Is(err, ErrNotLoopback)) {
		errs = append(errs, fmt.Errorf("server: address %q: %w", cfg.Addr, err))
	}
	for _, c := range cfg.Checks {
		if c.Name == "" || c.Check == nil {
			errs = append(errs, fmt.Errorf("server: check %q is not complete", c.Name))
		}
	}
	for path, h := range cfg.Handlers {
		if !strings.HasPrefix(path, "/") || h == nil || slices.Contains([]string{"/healthz", "/pods", "/faults"}, path) {
			errs = append(errs, fmt.Errorf("server: handler %q: wants a free path and a handler", path))
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
	s.mux.HandleFunc("GET /faults", s.faults)
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
		return fmt.Errorf("want host:port: %w", err)
	}
	if host == "localhost" {
		return nil
	}
	if ip, err := netip.ParseAddr(host); err != nil || !ip.IsLoopback() {
		return fmt.Errorf("%w: use 127.0.0.1", ErrNotLoopback)
	}
	return nil
}

// ServeHTTP implements http.Handler, for those who have a server already.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// Run serves until ctx is done, then gives answers under way two seconds.
func (s *Server) Run(ctx context.Context) error {
	listener, err := listen(ctx, s.cfg.Addr)
	if err != nil {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	return s.Serve(ctx, listener)
}

// Serve is Run on a listener, which it closes.
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
		Handler: handler, ReadHeaderTimeout: s.headerTimeout, ReadTimeout: s.headerTimeout, WriteTimeout: answerTimeout,
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
		_ = srv.Close() // whoever still reads has had his time
	}
	if err := <-served; err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	return nil
}

// checkListener catches a localhost that is somewhere else.
func checkListener(addr net.Addr) error {
	tcp, ok := addr.(*net.TCPAddr)
	if ok && !tcp.IP.IsLoopback() {
		return fmt.Errorf("serve HTTP on %s: %w", addr, ErrNotLoopback)
	}
	return nil
}

// local refuses requests for a name that anybody may have pointed here.
func (s *Server) local(w http.ResponseWriter, r *http.Request) {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err != nil && host != "localhost" && host != "" {
		http.Error(w, "ask for 127.0.0.1 or localhost", http.StatusMisdirectedRequest)
		return
	}
	s.ServeHTTP(w, r)
}
