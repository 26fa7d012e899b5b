package eviction

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/notify"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/runtime"
)

// UsageProvider measures the node and its pods. It is called from the manager's
// goroutine and must be quick; slow work such as counting files belongs into a
// [DiskUsageRefresher]. Measurements should be newer than since where possible: older
// ones evict no pod. See also [NodeUsageProvider].
type UsageProvider interface {
	Usage(ctx context.Context, since time.Time) (runtime.NodeUsage, error)
}

// DiskUsageRefresher is an optional interface of a UsageProvider that has to count
// files to measure the disk usage of pods. RefreshDiskUsage counts the files of the
// pods that were not counted since then, and returns early when ctx is done. It is
// called concurrently with Usage, which returns what has been counted so far.
type DiskUsageRefresher interface {
	RefreshDiskUsage(ctx context.Context, since time.Time)
}

// Pods are the pods that can be evicted.
type Pods interface {
	// ActivePods returns the pods that are not terminal, read-only.
	ActivePods() []*corev1.Pod
	// Evict terminates the pod and returns when its containers are removed and its
	// resources released, or with ctx's error if ctx is done before. An error that wraps
	// runtime.ErrNotFound means that the pod no longer exists, which is as good. It is
	// called for several pods at a time.
	Evict(ctx context.Context, pod *corev1.Pod, t runtime.Termination) error
}

// Reclaimer frees disk space without affecting running pods, for example by removing
// exited containers or unused images. It is called on a goroutine of its own. All have two
// minutes together, and each an equal part of what is left of that for its timeout.
type Reclaimer interface {
	Reclaim(ctx context.Context) error
}

// ImageReclaimer is an optional interface of a Reclaimer. One that removes nothing but images is
// not called for file systems on which there are none.
type ImageReclaimer interface {
	RemovesOnlyImages() bool
}

// Recorder records events. It must not block.
type Recorder interface {
	Record(event *corev1.Event)
}

// Config is the configuration of a Manager. Usage and Pods are required. A stats.Provider
// is a UsageProvider.
type Config struct {
	Usage UsageProvider
	Pods  Pods
	// Reclaimers are called in order before a pod is evicted for disk or inodes.
	Reclaimers []Reclaimer
	// NodeName is the node for which events are recorded when a threshold is met and
	// no pod can be evicted. Default: no such events.
	NodeName string

	// Thresholds are those at which pods are evicted. A hard one on MemoryAvailable also
	// holds for AllocatableMemoryAvailable, unless that has one of its own. Default, if
	// nil: DefaultThresholds. An empty list sets none, so that only local storage limits
	// are enforced.
	Thresholds []Threshold
	// EvictCritical allows the eviction of critical pods, including static ones, after
	// all others. Default: they are never evicted, as with the kubelet, and not for
	// exceeding their own limits either.
	EvictCritical bool
	// MaxPodGracePeriod limits the grace period of pods evicted for a soft threshold.
	// Zero: one second, as for hard thresholds. Negative: the pod's own.
	MaxPodGracePeriod time.Duration
	// PressureTransitionPeriod is how long a condition stays true after its threshold
	// was last met. Default: 5m.
	PressureTransitionPeriod time.Duration

	// MonitoringPeriod is the interval between measurements without a notification, and
	// between checks of local storage limits. A UsageProvider that is a
	// [NodeUsageProvider] is polled earlier if a threshold without a notifier could be
	// met before. Default: 10s.
	MonitoringPeriod time.Duration
	// Notifiers request a measurement at once. Default: none.
	Notifiers []ThresholdNotifier
	// PodCleanupTimeout limits the wait for the cleanup of an evicted pod; for a soft threshold,
	// after its grace period. Default: 30s.
	PodCleanupTimeout time.Duration

	Recorder Recorder     // Default: no events
	Logger   *slog.Logger // Default: discard
	Hooks    Hooks
}

// Hooks are called from the manager's goroutine and must not block. Each may be nil.
type Hooks struct {
	// Measured is called after each measurement.
	Measured func(duration time.Duration, err error)
	// Evicting is called before a pod is evicted, with all candidates, the chosen one
	// first. For a local storage limit, signal is that of the limit and the pod is the only
	// candidate; see [Signal.IsLocalStorageLimit].
	Evicting func(signal Signal, ranked []Candidate, t runtime.Termination)
	// Evicted is called after an eviction, successful or not.
	Evicted func(signal Signal, pod *corev1.Pod, duration time.Duration, err error)
	// ConditionsChanged is called when the status or message of a node condition changed.
	ConditionsChanged func([]corev1.NodeCondition)
}

// Join returns hooks that call those of h and then those of next. A panic of one is logged
// and does not prevent the others from being called. Join allocates; calls do not.
func (h Hooks) Join(log *slog.Logger, next Hooks) Hooks {
	return Hooks{
		Measured:          safe.Hook2(log, "Eviction.Measured", h.Measured, next.Measured),
		Evicting:          safe.Hook3(log, "Eviction.Evicting", h.Evicting, next.Evicting),
		Evicted:           safe.Hook4(log, "Eviction.Evicted", h.Evicted, next.Evicted),
		ConditionsChanged: safe.Hook1(log, "Eviction.ConditionsChanged", h.ConditionsChanged, next.ConditionsChanged),
	}
}

// guarded returns hooks that recover panics.
func (h Hooks) guarded(log *slog.Logger) Hooks {
	return Hooks{
		Measured:          safe.Hook2(log, "Measured", h.Measured),
		Evicting:          safe.Hook3(log, "Evicting", h.Evicting),
		Evicted:           safe.Hook4(log, "Evicted", h.Evicted),
		ConditionsChanged: safe.Hook1(log, "ConditionsChanged", h.ConditionsChanged),
	}
}

// Manager evicts pods under pressure. Admit, Conditions, RequestMeasurement and SetPolicy may be
// called from any goroutine.
type Manager struct {
	cfg       Config
	state     *thresholdState // owned by Run's goroutine
	measureCh chan struct{}

	// All below are owned by Run's goroutine.
	evicting      map[types.UID]*evictedPod           // evicted pods that are still active
	kernelSignals map[Signal]bool                     // signals of which a notifier reports the next threshold
	measuredAt    time.Time                           // of the pods
	urgent        bool                                // the next measurement of the pods does not wait for the runtime
	reclaimed     reclaimScope                        // of the last reclaim since a disk threshold was met
	leftAt        time.Time                           // when the last evicted pod was cleaned up or left
	effects       map[string]*effect                  // of the last evictions, by effectGroup
	warned        map[string]string                   // last logged reason, by threshold
	blocked       map[corev1.NodeConditionType]string // why no pod is evicted

	background      sync.WaitGroup // of the tasks; Run waits for it
	reclaim, count  task
	reclaimTimedOut atomic.Bool // a reclaimer took all of its time in the last reclaim

	mu         sync.Mutex // guards all below
	conditions []corev1.NodeCondition
	next       *Policy // of SetPolicy; nil: no other one
}

// New returns a Manager. It reports all errors in cfg at once and does no I/O.
func New(cfg Config) (*Manager, error) {
	var errs []error
	if cfg.Usage == nil {
		errs = append(errs, errors.New("eviction: Config.Usage required"))
	}
	if cfg.Pods == nil {
		errs = append(errs, errors.New("eviction: Config.Pods required"))
	}
	if err := errors.Join(append(errs, cfg.Check())...); err != nil {
		return nil, err
	}
	cfg.PressureTransitionPeriod = cmp.Or(cfg.PressureTransitionPeriod, defaultTransitionPeriod)
	cfg.MonitoringPeriod = cmp.Or(cfg.MonitoringPeriod, 10*time.Second)
	cfg.PodCleanupTimeout = cmp.Or(cfg.PodCleanupTimeout, 30*time.Second)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Hooks = cfg.Hooks.guarded(cfg.Logger)
	cfg.Recorder = safe.Events(cfg.Logger, cfg.Recorder)
	m := &Manager{
		cfg: cfg, state: newState(thresholdsOf(cfg.Thresholds), cfg.PressureTransitionPeriod),
		measureCh: make(chan struct{}, 1), evicting: make(map[types.UID]*evictedPod),
	}
	m.kernelSignals, m.conditions = make(map[Signal]bool), nodeConditions(nil, nil, nil, time.Time{})
	m.effects, m.warned = make(map[string]*effect), make(map[string]string)
	return m, nil
}

// Needs returns what the usage that an agent measures depends on.
func (c Config) Needs() []runtime.Need {
	if c.Usage != nil {
		return nil
	}
	return []runtime.Need{
		runtime.NeedFor[runtime.ImageFSReporter]("figures of the image file system"),
		runtime.NeedFor[runtime.ContainerStatsReporter]("figures of containers"),
	}
}

// Check returns all errors in the thresholds and durations, joined. New does so too, and
// checks what is required in addition.
func (c Config) Check() error {
	var errs []error
	for _, t := range c.Thresholds {
		if err := t.check(); err != nil {
			errs = append(errs, fmt.Errorf("eviction: Config.Thresholds: %q: %w", t, err))
		}
	}
	for _, field := range []struct {
		name  string
		value time.Duration
	}{
		{"PressureTransitionPeriod", c.PressureTransitionPeriod}, {"MonitoringPeriod", c.MonitoringPeriod}, {"PodCleanupTimeout", c.PodCleanupTimeout},
	} {
		if field.value < 0 {
			errs = append(errs, fmt.Errorf("eviction: Config.%s: must not be negative: %v", field.name, field.value))
		}
	}
	return errors.Join(errs...)
}

// RequestMeasurement requests a measurement. It does not block.
func (m *Manager) RequestMeasurement() {
	notify.Send(m.measureCh)
}

// Run monitors the node until ctx is done, and returns nil then. It also waits for
// running reclaimers and counts, whose contexts are cancelled.
func (m *Manager) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer m.background.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, n := range m.cfg.Notifiers {
		wg.Go(func() { m.watch(ctx, n) })
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-m.measureCh:
		}
		next := m.cfg.MonitoringPeriod
		safe.Do(m.cfg.Logger, "eviction iteration", func() { next = m.iterate(ctx) })
		// Usage that oscillates around a threshold notifies without a pause.
		pause.Reset(minIterationInterval)
		select {
		case <-ctx.Done():
			return nil
		case <-pause.C:
		}
		timer.Reset(max(next-minIterationInterval, 0))
	}
}

// defaultTransitionPeriod is that of Config.PressureTransitionPeriod.
const defaultTransitionPeriod = 5 * time.Minute

// minIterationInterval is the minimum time between two iterations.
const minIterationInterval = 20 * time.Millisecond

// watch runs one notifier and retries it until ctx is done or it is unsupported.
func (m *Manager) watch(ctx context.Context, n ThresholdNotifier) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
		err := safe.Call(m.cfg.Logger, "watch memory pressure", func() error { return n.Watch(ctx, m.RequestMeasurement) })
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, runtime.ErrUnsupported) {
			m.cfg.Logger.Info("memory pressure notification unsupported", logattr.Err(err))
			return
		}
		m.cfg.Logger.Warn("memory pressure notification failed, retrying", logattr.Err(err))
		pause.Reset(m.cfg.MonitoringPeriod)
	}
}

// iterate measures and acts until no threshold requires more, and returns how long to
// wait for the next iteration.
func (m *Manager) iterate(ctx context.Context) time.Duration {
	m.adoptPolicy()
	m.updateEvicting()
	if wait, done := m.checkNode(ctx); done {
		return wait
	}
	failed := make(map[types.UID]bool) // evictions that failed in this iteration
	for ctx.Err() == nil {
		m.updateEvicting()
		u, err := m.measure(ctx)
		if err != nil {
			m.cfg.Logger.Warn("measuring node and pod usage failed", logattr.Err(err))
			return m.cfg.MonitoringPeriod
		}
		due, next := m.handleUsage(&u)
		pods := m.candidates(failed)
		if m.enforceLocal(ctx, &u, pods.running, failed) {
			continue
		}
		if len(due) == 0 {
			return m.until(next, &u)
		}
		if wait := m.evictOne(ctx, due, pods, &u, failed); wait > 0 {
			if !next.IsZero() {
				wait = min(wait, max(time.Until(next), minPollInterval))
			}
			return wait
		}
	}
	return 0 // ctx is done
}

// measure measures the node and its pods.
func (m *Manager) measure(ctx context.Context) (runtime.NodeUsage, error) {
	since := m.state.lastEvictionAt
	if m.urgent {
		m.urgent = false
		if u, ok := m.measureUrgently(ctx, since); ok {
			m.measuredAt = time.Now()
			return u, nil
		}
	}
	u, err := m.measureWith(ctx, func(ctx context.Context) (runtime.NodeUsage, error) { return m.cfg.Usage.Usage(ctx, since) })
	m.measuredAt = time.Now()
	return u, err
}

func (m *Manager) measureWith(ctx context.Context, measure func(context.Context) (runtime.NodeUsage, error)) (runtime.NodeUsage, error) {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.PodCleanupTimeout)
	defer cancel()
	startTime := time.Now()
	u, err := measure(ctx)
	if m.cfg.Hooks.Measured != nil {
		m.cfg.Hooks.Measured(time.Since(startTime), err)
	}
	return u, err
}
