package eviction

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// UsageProvider measures the node and its pods. It is called from one goroutine, which acts
// on nothing meanwhile, so that it should not take long: what does, as counting
// files, is for [DiskUsageRefresher]. Figures should be newer than since where they can be had
// so new; older ones evict nobody. See also [NodeUsageProvider].
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
	// Evict ends the pod and returns when its containers are gone and its
	// resources reclaimed, or with ctx's error if that ends first.
	Evict(ctx context.Context, pod *corev1.Pod, e runtime.Termination) error
}

// Reclaimer frees disk without touching running pods: dead containers, images
// that nobody uses. It is called beside the loop, and its ctx ends after two
// minutes.
type Reclaimer interface {
	Reclaim(ctx context.Context) error
}

// Recorder takes events. It must not block.
type Recorder interface {
	Record(event *corev1.Event)
}

// Config describes a Manager. Node and Pods are required.
type Config struct {
	Usage UsageProvider
	Pods  Pods
	// Reclaimers is tried in order, before any pod is ended for disk or inodes.
	Reclaimers []Reclaimer
	// NodeName is whose events tell that a threshold is met and nobody can be
	// evicted for it. Default: there are no such events.
	NodeName string

	// Hard, Soft, SoftGrace and MinimumReclaim are read by ParseThresholds.
	// Hard defaults to DefaultHard; None is for none.
	Hard, Soft, SoftGracePeriod, MinimumReclaim string
	// EvictCritical has critical pods evicted too, static ones among them, after all
	// others. Default: they never are, as with the kubelet, and neither for limits of
	// their own.
	EvictCritical bool
	// MaxPodGracePeriod bounds the grace period of pods evicted for a soft threshold.
	// Zero gives them the second that hard ones give; below zero, their own.
	MaxPodGracePeriod time.Duration
	// PressureTransitionPeriod is how long a condition holds after its last breach.
	// Default: 5 min.
	PressureTransitionPeriod time.Duration

	// MonitoringPeriod is how often to look when nothing calls, and to hold pods to their local
	// storage limits. A Node that is a [NodeUsageProvider] is looked at sooner where a
	// threshold could be crossed meanwhile, but for what a notice tells of.
	// Default: 10 s.
	MonitoringPeriod time.Duration
	// Notifiers call for a look at once. Default: none.
	Notifiers []ThresholdNotifier
	// PodCleanupTimeout is how long an evicted pod is waited for. Default: 30 s.
	PodCleanupTimeout time.Duration

	Recorder Recorder     // default: no events
	Logger   *slog.Logger // default: nothing is logged
	Hooks    Hooks
}

// Hooks are called from the manager's goroutine and must be fast. Any may be
// nil.
type Hooks struct {
	// Measured is called after each measurement with how long it took.
	Measured func(took time.Duration, err error)
	// Evicting is called before a pod is evicted, with all that were
	// candidates, the chosen one first. The local storage limits have the
	// signal "" and no other candidates.
	Evicting func(signal Signal, ranked []Candidate, e runtime.Termination)
	// Evicted is called when the eviction is over.
	Evicted func(signal Signal, pod *corev1.Pod, took time.Duration, err error)
	// ConditionsChanged is called when the status or the message of a node condition changed.
	ConditionsChanged func([]corev1.NodeCondition)
}

// Manager ends pods under pressure. Admit, Conditions and Look may be called
// from any goroutine.
type Manager struct {
	cfg       Config
	state     *thresholdState // owned by Run's goroutine
	measureCh chan struct{}
	// evicting are pods that were told to go and are not gone. Owned by Run's
	// goroutine.
	evicting map[types.UID]bool
	// kernelSignals are the signals of which the kernel tells as things are; measured is
	// when pods were measured last; reclaimed says that what nobody needs was deleted
	// since the disk ran short or nobody could be evicted for it; effects are of the
	// last evictions; warned of what was logged, by threshold. All owned by Run's goroutine.
	kernelSignals map[Signal]bool
	measured      time.Time
	reclaimed     bool
	effects       map[string]*effect
	warned        map[string]string
	blocked       map[corev1.NodeConditionType]string // why nobody goes

	// What is done beside the loop. Run waits for it.
	beside         sync.WaitGroup
	reclaim, count errand

	mu         sync.Mutex // guards all below
	conditions []corev1.NodeCondition
}

// New returns a Manager. It tells all faults of cfg at once and does no I/O.
func New(cfg Config) (*Manager, error) {
	var errs []error
	if cfg.Usage == nil {
		errs = append(errs, errors.New("node is required"))
	}
	if cfg.Pods == nil {
		errs = append(errs, errors.New("pods is required"))
	}
	if cfg.Hard == "" {
		cfg.Hard = DefaultHardThresholds
	}
	thresholds, err := ParseThresholds(cfg.Hard, cfg.Soft, cfg.SoftGracePeriod, cfg.MinimumReclaim)
	errs = append(errs, err)
	for name, d := range map[string]*time.Duration{"Transition": &cfg.PressureTransitionPeriod, "Poll": &cfg.MonitoringPeriod, "ReclaimWait": &cfg.PodCleanupTimeout} {
		if *d < 0 {
			errs = append(errs, fmt.Errorf("%s is negative: %v", name, *d))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("eviction: %w", err)
	}
	fillDuration(&cfg.PressureTransitionPeriod, 5*time.Minute)
	fillDuration(&cfg.MonitoringPeriod, 10*time.Second)
	fillDuration(&cfg.PodCleanupTimeout, 30*time.Second)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Hooks = safe.Hooks(cfg.Logger, cfg.Hooks)
	cfg.Recorder = safe.Events(cfg.Logger, cfg.Recorder)
	m := &Manager{
		cfg: cfg, state: newState(thresholds, cfg.PressureTransitionPeriod),
		measureCh: make(chan struct{}, 1), evicting: make(map[types.UID]bool),
	}
	m.kernelSignals, m.conditions = make(map[Signal]bool), nodeConditions(nil, nil, nil, time.Time{})
	m.effects, m.warned = make(map[string]*effect), make(map[string]string)
	return m, nil
}

func fillDuration(d *time.Duration, def time.Duration) {
	if *d == 0 {
		*d = def
	}
}

// RequestMeasurement has the manager measure at once. It does not block.
func (m *Manager) RequestMeasurement() {
	select {
	case m.measureCh <- struct{}{}:
	default:
	}
}

// Run watches the node until ctx is done.
func (m *Manager) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer m.beside.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, n := range m.cfg.Notifiers {
		wg.Go(func() { m.watch(ctx, n) })
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	breath := time.NewTimer(0)
	defer breath.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-m.measureCh:
		}
		next := m.cfg.MonitoringPeriod
		safe.Do(m.cfg.Logger, "look at the node's pressure", func() { next = m.iterate(ctx) })
		// A figure that swings around a threshold calls all the time.
		breath.Reset(minIterationInterval)
		select {
		case <-ctx.Done():
			return nil
		case <-breath.C:
		}
		timer.Reset(max(next-minIterationInterval, 0))
	}
}

// minIterationInterval is the least time between two turns.
const minIterationInterval = 20 * time.Millisecond

// watch keeps one notice going. One that cannot be had is told once.
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
			m.cfg.Logger.Info("the kernel does not have a notice of memory pressure", slog.Any("error", err))
			return
		}
		m.cfg.Logger.Warn("notice of memory pressure ended", slog.Any("error", err))
		pause.Reset(m.cfg.MonitoringPeriod)
	}
}

// iterate looks and acts until no threshold calls for more, and returns when to look
// again.
func (m *Manager) iterate(ctx context.Context) time.Duration {
	if wait, calm := m.checkNode(ctx); calm {
		return wait
	}
	failed := make(map[types.UID]bool) // evictions that failed in this turn
	for ctx.Err() == nil {
		u, err := m.measure(ctx)
		if err != nil {
			m.cfg.Logger.Warn("usage of the node could not be measured", slog.Any("error", err))
			return m.cfg.MonitoringPeriod
		}
		due, next := m.handleUsage(&u)
		pods := m.candidates(failed)
		if m.enforceLocal(ctx, &u, pods, failed) {
			continue
		}
		if len(due) == 0 {
			m.reclaimed = false
			m.settle(nil)
			return m.until(next, &u)
		}
		if wait := m.evictOne(ctx, due, pods, &u, failed); wait > 0 {
			if !next.IsZero() {
				wait = min(wait, max(time.Until(next), minPollInterval))
			}
			return wait
		}
	}
	return m.cfg.MonitoringPeriod
}

// measure measures the node and its pods.
func (m *Manager) measure(ctx context.Context) (runtime.NodeUsage, error) {
	since := m.state.lastEvictionAt
	u, err := m.measureBy(ctx, func(ctx context.Context) (runtime.NodeUsage, error) { return m.cfg.Usage.Usage(ctx, since) })
	m.measured = time.Now()
	return u, err
}

func (m *Manager) measureBy(ctx context.Context, how func(context.Context) (runtime.NodeUsage, error)) (runtime.NodeUsage, error) {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.PodCleanupTimeout)
	defer cancel()
	began := time.Now()
	u, err := how(ctx)
	if m.cfg.Hooks.Measured != nil {
		m.cfg.Hooks.Measured(time.Since(began), err)
	}
	return u, err
}

// candidates are the active pods that are not on their way out and may go.
func (m *Manager) candidates(failed map[types.UID]bool) []*corev1.Pod {
	active := m.cfg.Pods.ActivePods()
	still := make(map[types.UID]bool, len(m.evicting))
	out := make([]*corev1.Pod, 0, len(active))
	for _, pod := range active {
		switch {
		case m.evicting[pod.UID]:
			still[pod.UID] = true
		case failed[pod.UID], pod.DeletionTimestamp != nil, !m.cfg.EvictCritical && podspec.IsCritical(pod):
		default:
			out = append(out, pod)
		}
	}
	m.evicting = still
	return out
}
