package podsource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sublet-dev/agent/internal/notify"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/internal/sleep"
	"github.com/sublet-dev/agent/podspec"
)

// Bounds of the back-off before a failed source is watched again.
const (
	minRetryBackOff = time.Second
	maxRetryBackOff = 30 * time.Second
)

// A Recorder records Kubernetes events. It must not block.
type Recorder interface {
	Record(event *corev1.Event)
}

// Config describes a Mux.
type Config struct {
	// NodeName is the name of this node, a DNS subdomain. Required.
	NodeName string
	// Sources are merged. Their names must be unique.
	Sources []NamedSource
	// Unsupported returns the fields of a static pod that the node does not support, which
	// makes its manifest invalid. Default: podspec.Unsupported.
	Unsupported func(*corev1.Pod) field.ErrorList

	Recorder Recorder     // receives an event for each source error. Default: none
	Logger   *slog.Logger // Default: discard
	Hooks    Hooks
}

// Hooks are called from the goroutines of the Mux and must not block. Any may be nil.
type Hooks struct {
	// SetReceived is called after a Set of a source was processed, which took duration.
	SetReceived func(source string, pods, errors int, duration time.Duration)
	// ChangeDelivered is called after the reader of Changes has received a change.
	ChangeDelivered func(op Op, source string, pods int)
	// SourceFailed is called for each new source error.
	SourceFailed func(source string, err SourceError)
}

// Join returns hooks that call those of h and then those of next. A panic of one is logged
// and does not prevent the others from being called. Join allocates; calls do not.
func (h Hooks) Join(log *slog.Logger, next Hooks) Hooks {
	return Hooks{
		SetReceived:     safe.Hook4(log, "Sources.SetReceived", h.SetReceived, next.SetReceived),
		ChangeDelivered: safe.Hook3(log, "Sources.ChangeDelivered", h.ChangeDelivered, next.ChangeDelivered),
		SourceFailed:    safe.Hook2(log, "Sources.SourceFailed", h.SourceFailed, next.SourceFailed),
	}
}

// guarded returns hooks that recover panics.
func (h Hooks) guarded(log *slog.Logger) Hooks {
	return Hooks{
		SetReceived:     safe.Hook4(log, "SetReceived", h.SetReceived),
		ChangeDelivered: safe.Hook3(log, "ChangeDelivered", h.ChangeDelivered),
		SourceFailed:    safe.Hook2(log, "SourceFailed", h.SourceFailed),
	}
}

// complete validates the Config and sets defaults.
func (c *Config) complete() error {
	var errs []error
	if c.NodeName == "" {
		errs = append(errs, errors.New("podsource: Config.NodeName: required"))
	} else if bad := validation.IsDNS1123Subdomain(strings.ToLower(c.NodeName)); len(bad) > 0 {
		errs = append(errs, fmt.Errorf("podsource: Config.NodeName: invalid name %q: %s", c.NodeName, strings.Join(bad, "; ")))
	}
	errs = append(errs, c.Check())
	if c.Unsupported == nil {
		c.Unsupported = podspec.Unsupported
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Hooks = c.Hooks.guarded(c.Logger)
	c.Recorder = safe.Events(c.Logger, c.Recorder)
	return errors.Join(errs...)
}

// Check returns all errors in the sources, joined. New does so too, and checks what is
// required in addition.
func (c Config) Check() error {
	var errs []error
	names := make(map[string]bool)
	for i, s := range c.Sources {
		switch {
		case s.Name == "":
			errs = append(errs, fmt.Errorf("podsource: Config.Sources: name of source %d required", i))
		case names[s.Name]:
			errs = append(errs, fmt.Errorf("podsource: Config.Sources: duplicate name %q", s.Name))
		}
		names[s.Name] = true
		if s.Source == nil {
			errs = append(errs, fmt.Errorf("podsource: Config.Sources: source %q is nil", s.Name))
		}
	}
	return errors.Join(errs...)
}

// Mux merges the desired sets of sources and delivers the changes. Its methods may be
// called from any goroutine.
type Mux struct {
	cfg     Config
	changes chan Change
	dirty   chan struct{} // one slot: desired state and delivered state may differ
	started atomic.Bool

	mu        sync.Mutex     // guards the fields below; never held during I/O
	startTime time.Time      // when Run was called
	sources   []*sourceState // in the order of cfg.Sources
	merged    mergedSet
	delivered delivered
	reported  map[string]SourceError // reported and not resolved yet
	restored  restoredPods
}

// New returns a Mux. It does no I/O; sources are read by Run.
func New(cfg Config) (*Mux, error) {
	cfg.Sources = append([]NamedSource(nil), cfg.Sources...)
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	m := &Mux{
		cfg: cfg, changes: make(chan Change), dirty: make(chan struct{}, 1),
		sources:   make([]*sourceState, len(cfg.Sources)),
		delivered: delivered{pods: map[types.UID]*entry{}},
		reported:  map[string]SourceError{},
	}
	for i, s := range cfg.Sources {
		m.sources[i] = &sourceState{source: s.Name, unsupported: cfg.Unsupported, static: isStatic(s.Source), podsOnly: isPodsOnly(s.Source)}
	}
	return m, nil
}

// Names returns the names of the sources, in their order.
func (m *Mux) Names() []string {
	names := make([]string, len(m.cfg.Sources))
	for i, s := range m.cfg.Sources {
		names[i] = s.Name
	}
	return names
}

// Changes returns the stream of changes. Changes do not queue up: each one is the
// difference between what the reader last received and the desired state now.
// Removals are delivered before additions. The channel is never closed.
func (m *Mux) Changes() <-chan Change { return m.changes }

// Run watches the sources until ctx is done and then returns nil. A source that fails
// is watched again after a back-off; its last desired set stays until it delivers one
// that is not Incomplete. Run may be called once.
func (m *Mux) Run(ctx context.Context) error {
	if m.started.Swap(true) {
		return errors.New("podsource: Run was called twice")
	}
	m.mu.Lock()
	m.startTime = time.Now()
	m.mu.Unlock()
	var wg sync.WaitGroup
	defer wg.Wait()
	for i := range m.cfg.Sources {
		wg.Go(func() { m.watch(ctx, i) })
	}
	m.deliver(ctx)
	return nil
}

func (m *Mux) watch(ctx context.Context, i int) {
	named := m.cfg.Sources[i]
	backOff := minRetryBackOff
	for {
		previous := m.sources[i].set() // of a Watch that has failed, until this one knows everything
		err := safe.Call(m.cfg.Logger, "watch source "+named.Name, func() error {
			return named.Source.Watch(ctx, func(s Set) {
				backOff = minRetryBackOff
				s, previous = completed(s, previous)
				m.receive(ctx, i, s)
			})
		})
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("Watch returned")
		}
		m.handleSourceFailure(ctx, i, fmt.Errorf("%w: watch source: %w", ErrUnavailable, err))
		if sleep.For(ctx, backOff) != nil {
			return
		}
		backOff = min(2*backOff, maxRetryBackOff)
	}
}

// completed returns a Set with what previous has and it may lack, and what may lack in the next one.
func completed(s, previous Set) (current, next Set) {
	if !s.Incomplete || len(previous.Pods)+len(previous.Objects) == 0 {
		return s, Set{}
	}
	current = supplement(s, previous)
	current.Cached = s.Cached || previous.Cached
	return current, previous
}

// Restore names the pods of the previous process, with their statuses. Of two pods with one full name the one that ran
// before keeps it: another source does not get the name while the source of that pod may still deliver it. Restore must be
// called before Run.
func (m *Mux) Restore(pods ...*corev1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.restored = newRestoredPods(pods)
}

// receive replaces the desired set of source i.
func (m *Mux) receive(ctx context.Context, i int, s Set) {
	startTime := time.Now()
	// Only this goroutine changes m.sources[i], so it can be read without the lock.
	next := m.sources[i].update(s, m.cfg.NodeName, startTime)
	m.publish(ctx, i, next)
	if h := m.cfg.Hooks.SetReceived; h != nil {
		h(next.source, len(next.entries), len(next.errors), time.Since(startTime))
	}
}

// handleSourceFailure records that source i cannot be watched. Its desired set stays.
func (m *Mux) handleSourceFailure(ctx context.Context, i int, err error) {
	next := *m.sources[i]
	next.errors = []SourceError{{Location: next.source, Err: err, Since: time.Now()}}
	for _, f := range m.sources[i].errors {
		if f.Location != next.source {
			next.errors = append(next.errors, f)
		}
	}
	m.publish(ctx, i, &next)
}

// publish replaces the state of source i, merges, and reports new and resolved errors.
func (m *Mux) publish(ctx context.Context, i int, next *sourceState) {
	added, resolved := m.replace(i, next)
	notify.Send(m.dirty)
	m.report(ctx, added, resolved)
}

// replace replaces the state of source i and merges. It returns the new and resolved errors.
func (m *Mux) replace(i int, next *sourceState) (added []rejectedPod, resolved []SourceError) {
	m.mu.Lock()
	defer m.mu.Unlock()
	previous := m.sources[i]
	m.sources[i] = next
	if !m.merged.apply(m.sources, previous, next) {
		m.merged = merge(m.sources, m.merged.owner, m.restored)
	}
	return m.updateErrors()
}

// deliver sends the difference between delivered and desired state, one change at a
// time, until ctx is done.
func (m *Mux) deliver(ctx context.Context) {
	unsynced := time.NewTimer(maxUnsynced)
	defer unsynced.Stop()
	for {
		m.mu.Lock()
		change, ok := m.delivered.next(&m.merged)
		m.mu.Unlock()
		out := m.changes
		if !ok {
			out = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-m.dirty: // the change may be out of date
		case <-unsynced.C:
			m.mu.Lock()
			added, resolved := m.updateErrors()
			m.mu.Unlock()
			m.report(ctx, added, resolved)
		case out <- change.Change:
			m.mu.Lock()
			m.delivered.add(change)
			m.mu.Unlock()
			if h := m.cfg.Hooks.ChangeDelivered; h != nil {
				h(change.Op, change.Source, len(change.Pods))
			}
		}
	}
}
