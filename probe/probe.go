package probe

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/runtime"
)

//go:generate go tool stringer -type=ProbeType -output=probe_type_string.go

// ProbeType is the kind of a probe.
type ProbeType uint8 //nolint:revive // the name that the kubelet uses

// The types of probes.
const (
	Startup ProbeType = iota
	Readiness
	Liveness

	numKinds
)

// PodCache returns the last observed state of a pod. It must not block and not call the Manager.
type PodCache interface {
	Get(uid types.UID) (runtime.Pod, bool)
}

// Execer runs a command in a container and returns at most limit bytes of its output. It
// returns when ctx ends, which is a minute after the timeout. An exit code other than 0 is
// not an error. A command that exceeds the timeout, counted from its start, is ended, and an
// error that wraps runtime.ErrDeadlineExceeded.
type Execer interface {
	Exec(ctx context.Context, containerID string, cmd []string, timeout time.Duration, limit int) (output []byte, exitCode int, err error)
}

// Recorder receives Kubernetes events. It must not block.
type Recorder interface {
	Record(event *corev1.Event)
}

// Config describes a Manager. PodCache is required.
type Config struct {
	PodCache PodCache
	Execer   Execer // Default: exec probes have no result

	// Dial connects httpGet and tcpSocket probes. Default: a net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// GRPC returns nil if the gRPC server at host:port reports the service as healthy; see
	// package grpchealth. Default: grpc probes have no result.
	GRPC func(ctx context.Context, address, service string) error
	// HostIP returns the address of pods with hostNetwork at the time. It must not block. Default: 127.0.0.1, also for "".
	HostIP func() string
	// UserAgent of HTTP probes. Default: kube-probe/1.37.
	UserAgent string

	Recorder Recorder     // Default: events are dropped
	Logger   *slog.Logger // Default: discard
	Hooks    Hooks
}

// Hooks are called from the goroutines of the probes. Any may be nil. They must not
// block.
type Hooks struct {
	Probed func(ProbeRun)
}

// Join returns hooks that call those of h and then those of next. A panic of one is logged
// and does not prevent the others from being called. Join allocates; calls do not.
func (h Hooks) Join(log *slog.Logger, next Hooks) Hooks {
	return Hooks{
		Probed: safe.Hook1(log, "Probe.Probed", h.Probed, next.Probed),
	}
}

// guarded returns hooks that recover panics.
func (h Hooks) guarded(log *slog.Logger) Hooks {
	return Hooks{
		Probed: safe.Hook1(log, "Probed", h.Probed),
	}
}

// ProbeRun is one run of a probe.
type ProbeRun struct { //nolint:revive // Run is the method that runs the manager
	Pod         *corev1.Pod
	Container   string
	Type        ProbeType
	Result      runtime.ProbeResult // ProbeUnknown: the probe could not be run
	ScheduledAt time.Time           // when it was due
	StartedAt   time.Time
	Duration    time.Duration
}

// ResultChange is a result that differs from the previous one of the probe.
type ResultChange struct {
	UID         types.UID
	Container   string
	ContainerID string
	Type        ProbeType
	Result      runtime.ProbeResult
	Message     string // why it failed
	// GracePeriod of the container by the probe that has failed; nil if the probe does not
	// set it, so that the one of the pod applies.
	GracePeriod *time.Duration
}

func (c *Config) fill() error {
	var errs []error
	if c.PodCache == nil {
		errs = append(errs, errors.New("probe: Config.PodCache required"))
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
	c.Hooks = c.Hooks.guarded(c.Logger)
	c.Recorder = safe.Events(c.Logger, c.Recorder)
	c.Dial = safe.Dial(c.Logger, c.Dial)
	hostIP := c.HostIP
	c.HostIP = func() (ip string) {
		if hostIP != nil {
			safe.Do(c.Logger, "get address of the host", func() { ip = hostIP() })
		}
		return ip
	}
	return errors.Join(errs...)
}

// Manager runs the probes of all pods. Its methods may be called from any goroutine.
// Only Run blocks.
type Manager struct {
	cfg    Config
	http   *http.Client
	notify chan struct{} // one slot: backlog has changes

	// mu guards what follows. It is held over memory only.
	mu      sync.Mutex
	ctx     context.Context // of Run; nil before and after it, when no timer is set
	done    bool
	wg      sync.WaitGroup // of probes that run
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

// Run runs probes until ctx is done, waits for those that are running, and returns nil.
// It must be called once only.
func (m *Manager) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.mu.Lock()
	if m.ctx != nil || m.done {
		m.mu.Unlock()
		return errors.New("probe: Run was called twice")
	}
	m.ctx = ctx
	uids := slices.Collect(maps.Keys(m.pods))
	m.mu.Unlock()
	for _, uid := range uids {
		m.startProbes(uid)
	}

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

// Notify returns a channel that receives a value when Drain has changes. It is for one
// reader.
func (m *Manager) Notify() <-chan struct{} { return m.notify }

// Drain returns the results that have changed since its last call: the latest change of
// each probe, grouped by pod.
func (m *Manager) Drain() []ResultChange {
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-m.notify: // the reader has nothing left to drain
	default:
	}
	return m.backlog.drain()
}
