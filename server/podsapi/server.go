package podsapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/sublet-dev/agent/internal/unixsocket"
	"github.com/sublet-dev/agent/podwatch"
)

const (
	// Calls above this rate are rejected with ResourceExhausted, as by the kubelet.
	maxQPS   = 100
	maxBurst = 10

	maxWatches = 64

	// A client that is gone without a word is found by this ping, and its connection closed.
	pingPeriod, pingTimeout = time.Minute, 20 * time.Second
)

// Config describes a Server. Path, Pods and WatchList are required.
type Config struct {
	// Path is the absolute path of the socket. Its directory is created with mode 0700 if
	// it is missing. Clients usually expect /var/lib/kubelet/pods-api/kubelet.sock.
	Path string
	// Pods returns the pods of the node with their statuses, in any order. They are read-only.
	Pods func() []*corev1.Pod
	// WatchList is that of the podwatch.Hub that the statuses of these pods are sent to.
	WatchList func(ctx context.Context) iter.Seq[podwatch.Event]
	// Ready returns why Pods may lack pods of the node. It is not called again after it has returned
	// nil. Default: they are complete.
	Ready  func() error
	Logger *slog.Logger // default: discard
}

// Server serves the API to the user of its process alone.
type Server struct {
	api.UnimplementedPodsServer

	cfg     Config
	limiter *rate.Limiter
	ready   atomic.Bool
	watches chan struct{} // a slot for each
}

// New returns a Server. It checks cfg and does no I/O.
func New(cfg Config) (*Server, error) {
	var errs []error
	fail := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf("podsapi: "+format, args...))
		}
	}
	fail(!filepath.IsAbs(cfg.Path), "Config.Path: %q must be an absolute path", cfg.Path)
	fail(len(cfg.Path) > 107, "Config.Path: %q is too long: the path of a socket has at most 107 bytes", cfg.Path)
	fail(cfg.Pods == nil, "Config.Pods: required")
	fail(cfg.WatchList == nil, "Config.WatchList: required")
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if cfg.Ready == nil {
		cfg.Ready = func() error { return nil }
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Server{cfg: cfg, limiter: rate.NewLimiter(maxQPS, maxBurst), watches: make(chan struct{}, maxWatches)}, nil
}

// Run serves the socket until ctx is done, and returns nil then. Watches end with it. An error means
// that the socket could not be made or failed, for example because a kubelet serves it.
func (s *Server) Run(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Dir(s.cfg.Path), 0o700); err != nil {
		return fmt.Errorf("podsapi: %w", err)
	}
	listener, err := unixsocket.Listen(ctx, s.cfg.Path)
	if err != nil {
		return fmt.Errorf("podsapi: %w", err)
	}
	s.cfg.Logger.Info("pods API served", slog.String("path", s.cfg.Path))
	return s.serve(ctx, listener)
}

// serve serves a listener until ctx is done.
func (s *Server) serve(ctx context.Context, listener net.Listener) error {
	server := grpc.NewServer(
		grpc.MaxRecvMsgSize(64<<10), grpc.MaxConcurrentStreams(16), grpc.WaitForHandlers(true),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingPeriod, Timeout: pingTimeout}),
		grpc.UnaryInterceptor(s.limit),
	)
	api.RegisterPodsServer(server, s)
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	if err := server.Serve(listener); err != nil && ctx.Err() == nil {
		return fmt.Errorf("podsapi: %w", err)
	}
	return nil
}

// limit rejects calls above the rate. Watches have a limit of their own.
func (s *Server) limit(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if !s.limiter.Allow() {
		return nil, status.Errorf(codes.ResourceExhausted, "more than %d requests per second", maxQPS)
	}
	return handler(ctx, req)
}

// checkReady returns the error of a call that comes before the pods are known.
func (s *Server) checkReady() error {
	if s.ready.Load() {
		return nil
	}
	if err := s.cfg.Ready(); err != nil {
		return status.Errorf(codes.FailedPrecondition, "the pods of this node are not known yet: %v", err)
	}
	s.ready.Store(true)
	return nil
}

// pods returns all pods in the order of their UIDs.
func (s *Server) pods() []*corev1.Pod {
	pods := slices.Clone(s.cfg.Pods())
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return cmp.Compare(a.UID, b.UID) })
	return pods
}

// encode returns a pod as the API has it.
func encode(pod *corev1.Pod) ([]byte, error) {
	b, err := pod.Marshal()
	if err != nil {
		return nil, status.Errorf(codes.Internal, "encode pod %s/%s: %v", pod.Namespace, pod.Name, err)
	}
	return b, nil
}

// ListPods returns all pods, in the order of their UIDs.
func (s *Server) ListPods(context.Context, *api.ListPodsRequest) (*api.ListPodsResponse, error) {
	if err := s.checkReady(); err != nil {
		return nil, err
	}
	r := &api.ListPodsResponse{}
	for _, pod := range s.pods() {
		b, err := encode(pod)
		if err != nil {
			return nil, err
		}
		r.Pods = append(r.Pods, b)
	}
	return r, nil
}

// GetPod returns the pod with a UID. The code of the error is NotFound if there is none.
func (s *Server) GetPod(_ context.Context, req *api.GetPodRequest) (*api.GetPodResponse, error) {
	if err := s.checkReady(); err != nil {
		return nil, err
	}
	for _, pod := range s.cfg.Pods() {
		if string(pod.UID) == req.GetPodUID() {
			b, err := encode(pod)
			return &api.GetPodResponse{Pod: b}, err
		}
	}
	return nil, status.Errorf(codes.NotFound, "this node has no pod with UID %q", req.GetPodUID())
}
