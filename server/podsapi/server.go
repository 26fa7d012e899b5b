package podsapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/sublet-dev/agent/internal/grpcsocket"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/internal/unixsocket"
	"github.com/sublet-dev/agent/podwatch"
)

const maxWatches = 64

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
	Hooks  Hooks
	Logger *slog.Logger // default: discard
}

// Hooks observe a Server. They must not block. A panic in one is logged.
type Hooks struct {
	// Requested is called at the end of each call of the API, with its version (v1alpha1), its method (ListPods, GetPod,
	// WatchPods) and its gRPC status, such as NotFound. A call above the rate is left out.
	Requested func(version, method, code string)
	// StatesMissed is called when a watch was too slow for states of a pod, with their number.
	StatesMissed func(count int)
}

// Server serves the API to the user of its process alone.
type Server struct {
	api.UnimplementedPodsServer

	cfg     Config
	ready   atomic.Bool
	watches chan struct{} // a slot for each
}

// New returns a Server. It checks cfg and does no I/O.
func New(cfg Config) (*Server, error) {
	var errs []error
	if err := unixsocket.CheckPath(cfg.Path); err != nil {
		errs = append(errs, fmt.Errorf("podsapi: Config.Path: %w", err))
	}
	if cfg.Pods == nil {
		errs = append(errs, errors.New("podsapi: Config.Pods: required"))
	}
	if cfg.WatchList == nil {
		errs = append(errs, errors.New("podsapi: Config.WatchList: required"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if cfg.Ready == nil {
		cfg.Ready = func() error { return nil }
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Hooks = Hooks{
		Requested:    safe.Hook3(cfg.Logger, "Requested", cfg.Hooks.Requested),
		StatesMissed: safe.Hook1(cfg.Logger, "StatesMissed", cfg.Hooks.StatesMissed),
	}
	return &Server{cfg: cfg, watches: make(chan struct{}, maxWatches)}, nil
}

// Run serves the socket until ctx is done, and returns nil then. Watches end with it. An error means
// that the socket could not be made or failed, for example because a kubelet serves it.
func (s *Server) Run(ctx context.Context) error {
	if err := grpcsocket.ListenAndServe(ctx, s.cfg.Path, s.socket()); err != nil {
		return fmt.Errorf("podsapi: %w", err)
	}
	return nil
}

func (s *Server) socket() grpcsocket.Config {
	cfg := grpcsocket.Config{
		Name:          "pods API",
		Register:      func(r grpc.ServiceRegistrar) { api.RegisterPodsServer(r, s) },
		LimitsClients: true, Logger: s.cfg.Logger,
	}
	if requested := s.cfg.Hooks.Requested; requested != nil {
		cfg.Ended = func(version, method string, err error) { requested(version, method, status.Code(err).String()) }
	}
	return cfg
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
