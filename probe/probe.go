package probe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/runtime"
)

//go:generate go tool stringer -type=ProbeType -output=probe_type_string.go

// ProbeType says what a probe is about.
type ProbeType uint8

// The kinds of probe.
const (
	Startup ProbeType = iota
	Readiness
	Liveness

	numKinds
)

// PodCache tells what is known of a pod in the runtime. It must be quick, and is called
// under a lock: it must not call the Manager.
type PodCache interface {
	Get(uid types.UID) (runtime.Pod, bool)
}

// Execer runs a command in a container, returns at most limit bytes of what it
// wrote, and ends when ctx does. An exit code other than 0 is no error. A command
// that outlived the timeout is an error that wraps runtime.ErrDeadline.
type Execer interface {
	Exec(ctx context.Context, containerID string, cmd []string, timeout time.Duration, limit int) (output []byte, exitCode int, err error)
}

// Recorder takes Kubernetes events. It must not block.
type Recorder interface {
	Record(event *corev1.Event)
}

// Config describes a Manager. Seen is required.
type Config struct {
	PodCache PodCache
	Execer   Execer // default: exec probes say nothing

	// Dial makes the connections of httpGet and tcpSocket probes; default: a
	// net.Dialer's.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// GRPC asks a gRPC server at host:port whether service is well: see package
	// grpchealth. Default: grpc probes say nothing.
	GRPC func(ctx context.Context, address, service string) error
	// HostIP is where pods of the host's network are probed; default 127.0.0.1.
	HostIP string
	// UserAgent of HTTP probes; default kube-probe/1.37.
	UserAgent string

	Recorder Recorder     // default: events are dropped
	Logger   *slog.Logger // default: discard
	Hooks    Hooks
}

// Hooks are called as probes run, from their own goroutines. Any may be nil. They
// must not block.
type Hooks struct {
	Probed func(ProbeRun)
}

// ProbeRun is one run of a probe.
type ProbeRun struct {
	Pod         *corev1.Pod
	Container   string
	Type        ProbeType
	Result      runtime.ProbeResult // Unproven: the probe could not be run
	ScheduledAt time.Time           // when it was to run
	StartedAt   time.Time
	Duration    time.Duration
}

// ResultChange is a result that differs from the one before. Drain keeps the newest of
// each probe.
type ResultChange struct {
	UID         types.UID
	Container   string
	ContainerID string
	Type        ProbeType
	Result      runtime.ProbeResult
	Message     string // why it failed
	// GracePeriod is how long the container has to end, by the probe that failed; nil
	// where the probe leaves that to the pod.
	GracePeriod *time.Duration
}

func (c *Config) fill() error {
	var errs []error
	if c.PodCache == nil {
		errs = append(errs, errors.New("probe: nil Seen"))
	}
	if c.HostIP == "" {
		c.HostIP = "127.0.0.1"
	}
	if net.ParseIP(c.HostIP) == nil {
		errs = append(errs, fmt.Errorf("probe: HostIP %q is no IP address", c.HostIP))
	}
	if c.UserAgent == "" {
		c.UserAgent = "kube-probe/1.37"
	}
	if c.Dial == nil {
		c.Dial = (&net.Dialer{KeepAlive: -1}).DialContext
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Hooks = safe.Hooks(c.Logger, c.Hooks)
	c.Recorder = safe.Events(c.Logger, c.Recorder)
	c.Dial = safe.Dial(c.Logger, c.Dial)
	return errors.Join(errs...)
}

// Manager runs the probes of all pods. Its methods may be called from any
// goroutine, and none but Run blocks.
type Manager struct {
	cfg    Config
	http   *http.Client
	notify chan struct{} // one slot: there is something to drain

	// mu guards what follows. It is held over memory only.
	mu      sync.Mutex
	ctx     context.Context // of Run; nil before and after: no timer is set then
	done    bool
	wg      sync.WaitGroup // of probes under way
	pods    map[types.UID]*pod
	backlog backlog
}

// New returns a Manager. It does no I/O.
func New(cfg Config) (*Manager, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	return &Manager{
		cfg:    cfg,
		http:   newHTTPClient(cfg.Dial),
		notify: make(chan struct{}, 1),
		pods:   map[types.UID]*pod{},
	}, nil
}

// Run lets probes fire until ctx is done, then waits for those under way and
// returns nil. It can be called once.
func (m *Manager) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.mu.Lock()
	if m.ctx != nil || m.done {
		m.mu.Unlock()
		return errors.New("probe: Run was called twice")
	}
	m.ctx = ctx
	now := time.Now()
	for _, p := range m.pods {
		view := m.updatePod(p)
		for _, b := range p.probes {
			m.reconcilePod(b, &view, now)
		}
	}
	m.mu.Unlock()

	<-ctx.Done()

	m.mu.Lock()
	m.ctx, m.done = nil, true
	for _, p := range m.pods {
		for _, b := range p.probes {
			b.stop()
		}
	}
	m.mu.Unlock()
	m.wg.Wait()
	return nil
}

// Notify returns a channel that can be received from when Drain has something to
// return. It has one reader.
func (m *Manager) Notify() <-chan struct{} { return m.notify }

// Drain returns the results that changed since it was called last, in order for
// each probe but only the newest of each.
func (m *Manager) Drain() []ResultChange {
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-m.notify: // it would wake the reader for nothing
	default:
	}
	return m.backlog.drain()
}
