// Package server tells over HTTP how a node agent is: /healthz, /pods, /faults,
// and whatever else is handed to it, such as /metrics.
//
// It serves on loopback unless it is told otherwise: what it shows is for the
// node's own operators, and /pods has the pods' specs with all that is in them.
package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ErrNotLoopback is wrapped by the error of New for an address that others than
// this machine could reach.
var ErrNotLoopback = errors.New("not a loopback address")

// Check is one thing that has to be well for the node to be healthy.
type Check struct {
	Name string
	// Well returns what is wrong, or nil. It must answer from memory.
	Well func() error
}

// Fault is something wrong that harms nobody else.
type Fault struct {
	Where string    `json:"where"`
	Error string    `json:"error"`
	Since time.Time `json:"since"`
}

// Config describes a Server.
type Config struct {
	Addr string // host:port. Required
	// Anywhere allows an Addr that other machines can reach. Whoever can reach it
	// can read every pod's spec.
	Anywhere bool

	Checks   []Check                 // of /healthz; default: always well
	Pods     func() []*corev1.Pod    // of /pods, each with its status; default: none
	Faults   func() []Fault          // of /faults; default: none
	Handlers map[string]http.Handler // further paths: /metrics, /stats/summary
	Logger   *slog.Logger            // default: discard
}

// Limits of what a client may cost.
const (
	headerTimeout = 5 * time.Second
	answerTimeout = 30 * time.Second
	idleTimeout   = time.Minute
	maxHeader     = 16 << 10
	stopTimeout   = 2 * time.Second
)

// Server answers over HTTP.
type Server struct {
	cfg Config
	mux *http.ServeMux
}

// New returns a Server. It does no I/O: whether the address is free is seen by
// Run.
func New(cfg Config) (*Server, error) {
	var errs []error
	if err := checkAddr(cfg.Addr); err != nil && (!cfg.Anywhere || !errors.Is(err, ErrNotLoopback)) {
		errs = append(errs, fmt.Errorf("server: address %q: %w", cfg.Addr, err))
	}
	for _, c := range cfg.Checks {
		if c.Name == "" || c.Well == nil {
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
	s := &Server{cfg: cfg, mux: http.NewServeMux()}
	s.mux.HandleFunc("GET /healthz", s.healthz)
	s.mux.HandleFunc("GET /pods", s.pods)
	s.mux.HandleFunc("GET /faults", s.faults)
	for path, h := range cfg.Handlers {
		s.mux.Handle("GET "+path, h)
	}
	return s, nil
}

func checkAddr(addr string) error {
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
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", s.cfg.Addr)
	if err != nil {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	return s.Serve(ctx, listener)
}

// Serve is Run on a listener, which it closes.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	srv := &http.Server{
		Handler: s, ReadHeaderTimeout: headerTimeout, ReadTimeout: headerTimeout, WriteTimeout: answerTimeout,
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
	<-served
	return nil
}

// healthz answers 200 and ok, or 500 and what is wrong; with ?verbose each check.
func (s *Server) healthz(w http.ResponseWriter, r *http.Request) {
	var text strings.Builder
	well := true
	for _, c := range s.cfg.Checks {
		if err := c.Well(); err != nil {
			well = false
			fmt.Fprintf(&text, "[-] %s: %v\n", c.Name, err)
		} else if r.URL.Query().Has("verbose") {
			fmt.Fprintf(&text, "[+] %s\n", c.Name)
		}
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if !well {
		w.WriteHeader(http.StatusInternalServerError)
	} else {
		text.WriteString("ok\n")
	}
	s.write(w, []byte(text.String()))
}

// pods answers a v1.PodList, sorted by namespace, name and UID.
func (s *Server) pods(w http.ResponseWriter, _ *http.Request) {
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: []corev1.Pod{}}
	if s.cfg.Pods != nil {
		for _, p := range s.cfg.Pods() {
			list.Items = append(list.Items, *p)
		}
	}
	slices.SortFunc(list.Items, func(a, b corev1.Pod) int {
		return strings.Compare(a.Namespace+"/"+a.Name+"/"+string(a.UID), b.Namespace+"/"+b.Name+"/"+string(b.UID))
	})
	s.json(w, list)
}

func (s *Server) faults(w http.ResponseWriter, _ *http.Request) {
	faults := []Fault{}
	if s.cfg.Faults != nil {
		faults = append(faults, s.cfg.Faults()...)
	}
	s.json(w, faults)
}

func (s *Server) json(w http.ResponseWriter, v any) {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	s.write(w, append(b, '\n'))
}

func (s *Server) write(w http.ResponseWriter, b []byte) {
	if _, err := w.Write(b); err != nil {
		s.cfg.Logger.Debug("a client went away", slog.Any("error", err))
	}
}
