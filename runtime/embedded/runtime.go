package embedded

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/capability"
	"github.com/sublet-dev/agent/internal/logattr"
)

// maxMessage bounds a gRPC message on connections of Dial, as the kubelet does.
const maxMessage = 16 << 20

// Runtime is a CRI v1 runtime. Its methods may be called from any goroutine.
type Runtime struct {
	v1.UnimplementedRuntimeServiceServer
	v1.UnimplementedImageServiceServer

	cfg    Config
	images *imageStore
	events *broadcaster

	// mu guards the rest and the mutable state of sandboxes and containers. It is
	// never held while an Executor, a log or a stream is called.
	mu         sync.Mutex
	closed     bool
	sandboxes  map[string]*sandbox
	containers map[string]*container
	pods       struct { // the same, by pod
		sandboxes  podIndex[*sandbox]
		containers podIndex[*container]
	}
	listCache encodedLists
	names     map[string]string // reserved name to the id it is reserved for
	ips       *pool
	podCIDR   string
	streams   StreamingServer
	open      sync.Once // the executor

	// dial guards the in-process server, which the first Dial starts.
	dial struct {
		sync.Mutex
		lis    *bufconn.Listener
		server *grpc.Server
		served sync.WaitGroup
	}
}

// New returns a Runtime without pods. It does no I/O and starts nothing.
func New(cfg Config) (*Runtime, error) {
	cfg, err := cfg.fill()
	images, ierr := newImageStore(cfg.Images, cfg.DefaultImage, cfg.ImageKey)
	if err := errors.Join(err, ierr); err != nil {
		return nil, fmt.Errorf("embedded runtime: %w", err)
	}
	r := &Runtime{
		cfg:        cfg,
		images:     images,
		events:     newBroadcaster(cfg.EventBufferSize),
		sandboxes:  map[string]*sandbox{},
		containers: map[string]*container{},
		names:      map[string]string{},
		ips:        newPool(cfg.PodCIDR),
	}
	r.pods.sandboxes, r.pods.containers = podIndex[*sandbox]{}, podIndex[*container]{}
	return r, nil
}

// Register registers both services of the CRI with s.
func (r *Runtime) Register(s *grpc.Server) {
	v1.RegisterRuntimeServiceServer(s, r)
	v1.RegisterImageServiceServer(s, r)
}

// Dial returns an in-memory connection to the runtime. The caller closes it. In a testing/synctest bubble, New, Dial and Close must all
// be called in the bubble.
func (r *Runtime) Dial() (*Conn, error) {
	lis, err := r.listen()
	if err != nil {
		return nil, err
	}
	r.openExecutor()
	cc, err := grpc.NewClient("passthrough:///embedded",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(maxMessage), grpc.WithInitialConnWindowSize(maxMessage), // a large list without waiting for window updates
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return nil, err
	}
	return &Conn{ClientConn: cc, rt: r}, nil
}

// listen starts the in-process server when there is none yet.
func (r *Runtime) listen() (*bufconn.Listener, error) {
	r.dial.Lock()
	defer r.dial.Unlock()
	r.mu.Lock()
	closed := r.closed
	r.mu.Unlock()
	if closed {
		return nil, errors.New("dial embedded runtime: runtime is closed")
	}
	if r.dial.lis == nil {
		r.dial.lis = bufconn.Listen(256 << 10)
		r.dial.server = grpc.NewServer(append(r.recovering(), grpc.MaxRecvMsgSize(maxMessage), grpc.WaitForHandlers(true))...)
		r.Register(r.dial.server)
		lis, server := r.dial.lis, r.dial.server
		r.dial.served.Go(func() {
			if err := server.Serve(lis); err != nil && !errors.Is(err, grpc.ErrServerStopped) { // that is one closed before it began
				r.cfg.Logger.Error("embedded runtime server failed", logattr.Err(err))
			}
		})
	}
	return r.dial.lis, nil
}

func (r *Runtime) openExecutor() {
	r.open.Do(func() {
		if o, ok := capability.Of[Opener](r.cfg.Executor); ok {
			if err := o.Open(); err != nil {
				r.cfg.Logger.Warn("executor not opened", logattr.Err(err))
			}
		}
	})
}

// Run blocks until ctx ends, then closes the runtime.
func (r *Runtime) Run(ctx context.Context) error {
	r.openExecutor()
	<-ctx.Done()
	return r.Close()
}

// Close stops every container, waits until all have exited, and closes the in-process
// server with its connections. A container gets its stop signal and is killed after
// the grace period of its pod, which kubelets and this module's agent write to an
// annotation of the container, or after Config.Grace if that is shorter. One without
// the annotation is killed at once. Hooks of the pod are not run: stop the pod first if
// they must. A container that cannot be killed is an error, and is not waited for. Close may be
// called more than once. Nothing can be created or started after it, with code Unavailable; what
// there was can be read and removed.
func (r *Runtime) Close() error {
	r.mu.Lock()
	r.closed = true
	var live []*container
	for _, c := range r.containers {
		if c.alive() {
			live = append(live, c)
		}
	}
	var ports []*hostPorts
	for _, s := range r.sandboxes {
		ports = append(ports, s.ports)
		s.ports = nil
	}
	r.mu.Unlock()

	for _, p := range ports {
		p.close()
	}
	errs := make([]error, len(live), len(live)+1)
	var stopping sync.WaitGroup
	for i, c := range live {
		stopping.Go(func() { errs[i] = r.terminate(c) })
	}
	stopping.Wait()
	r.events.close()

	r.dial.Lock()
	defer r.dial.Unlock()
	if r.dial.server != nil {
		r.dial.server.Stop()
		r.dial.served.Wait()
		r.dial.server, r.dial.lis = nil, nil
	}
	if c, ok := capability.Of[io.Closer](r.cfg.Executor); ok {
		errs = append(errs, r.closeExecutor(c))
	}
	return errors.Join(errs...)
}

// terminate stops a container within its grace period.
func (r *Runtime) terminate(c *container) error {
	grace, err := strconv.ParseInt(c.Config.GetAnnotations()[gracePeriod], 10, 32)
	if err == nil && grace > 0 && r.cfg.Grace > 0 && r.kill(c, stopSignal(c)) == nil {
		t := time.NewTimer(min(time.Duration(grace)*time.Second, r.cfg.Grace))
		defer t.Stop()
		select {
		case <-c.done:
			return nil
		case <-t.C:
		}
	}
	if err = r.kill(c, syscall.SIGKILL); err == nil {
		<-c.done
		return nil
	}
	t := time.NewTimer(failedKillTimeout)
	defer t.Stop()
	select {
	case <-c.done:
	case <-t.C:
	}
	return fmt.Errorf("kill container %s: %w", c.ID, err)
}

// failedKillTimeout bounds the wait in Close for a container that could not be killed, and may
// never exit.
const failedKillTimeout = 5 * time.Second

// errClosed is the error of every call after Close.
func errClosed() error { return status.Error(codes.Unavailable, "the embedded runtime is closed") }

// newID returns a random id in the form that CRI clients expect.
func newID() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// lookup finds id in m, also by a prefix of exactly one key, as command line clients
// send it.
func lookup[T any](m map[string]T, id string) (T, bool) {
	if v, ok := m[id]; ok {
		return v, true
	}
	var zero, found T
	if id == "" || len(id) >= 64 {
		return zero, false
	}
	n := 0
	for k, v := range m {
		if strings.HasPrefix(k, id) {
			found = v
			n++
		}
	}
	if n != 1 {
		return zero, false
	}
	return found, true
}

// lookupIfAny is lookup for calls that succeed without an object. An id that may mean several is
// their error.
func lookupIfAny[T any](m map[string]T, kind, id string) (T, bool, error) {
	v, ok := lookup(m, id)
	if ok || id == "" || len(id) >= 64 {
		return v, ok, nil
	}
	for k := range m {
		if strings.HasPrefix(k, id) {
			return v, false, status.Errorf(codes.InvalidArgument, "%s %q: more than one id begins with it", kind, id)
		}
	}
	return v, false, nil
}

// reserve reserves a name for id. The caller holds mu.
func (r *Runtime) reserve(kind, name, id string) error {
	if other, taken := r.names[name]; taken {
		return status.Errorf(codes.AlreadyExists, "%s name %q is reserved for %q", kind, name, other)
	}
	r.names[name] = id
	return nil
}

// statusError returns err with its gRPC code, or one derived from it.
func statusError(what string, err error) error {
	if err == nil {
		return nil
	}
	if s, ok := status.FromError(err); ok {
		return status.Errorf(s.Code(), "%s: %s", what, s.Message())
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return status.Errorf(codes.DeadlineExceeded, "%s: %v", what, err)
	case errors.Is(err, context.Canceled):
		return status.Errorf(codes.Canceled, "%s: %v", what, err)
	}
	return status.Errorf(codes.Unknown, "%s: %v", what, err)
}
