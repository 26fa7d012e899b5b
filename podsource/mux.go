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

	"github.com/sublet-dev/agent/internal/safe"
)

// How long a source that broke waits until it is watched again.
const (
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
)

// A Recorder takes Kubernetes events. It must not block.
type Recorder interface {
	Record(event *corev1.Event)
}

// Config describes a Mux.
type Config struct {
	// NodeName is the name of this node, a DNS subdomain. Required.
	NodeName string
	// Sources are united. Their names differ.
	Sources []NamedSource

	Recorder Recorder     // told of faults; default: nobody
	Logger   *slog.Logger // default: discard
	Hooks    Hooks
}

// Hooks are called as the Mux works, from its goroutines; they must be fast. Any
// may be nil.
type Hooks struct {
	// SetReceived: a source has told what it wants, which took so long to take in.
	SetReceived func(source string, pods, faults int, took time.Duration)
	// ChangeDelivered: a change was handed to the reader of Changes.
	ChangeDelivered func(op Op, source string, pods int)
	// SourceFailed: something new is wrong with what a source wants.
	SourceFailed func(source string, fault SourceError)
}

func (c *Config) fill() error {
	var errs []error
	if c.NodeName == "" {
		errs = append(errs, errors.New("podsource: no NodeName"))
	} else if bad := validation.IsDNS1123Subdomain(strings.ToLower(c.NodeName)); len(bad) > 0 {
		errs = append(errs, fmt.Errorf("podsource: NodeName %q: %s", c.NodeName, strings.Join(bad, "; ")))
	}
	names := make(map[string]bool)
	for i, s := range c.Sources {
		switch {
		case s.Name == "":
			errs = append(errs, fmt.Errorf("podsource: source %d has no name", i))
		case names[s.Name]:
			errs = append(errs, fmt.Errorf("podsource: two sources named %q", s.Name))
		}
		names[s.Name] = true
		if s.Source == nil {
			errs = append(errs, fmt.Errorf("podsource: source %q is nil", s.Name))
		}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Hooks = safe.Hooks(c.Logger, c.Hooks)
	c.Recorder = safe.Events(c.Logger, c.Recorder)
	return errors.Join(errs...)
}

// Mux unites what sources want and tells its changes. Its methods may be called
// from any goroutine.
type Mux struct {
	cfg     Config
	changes chan Change
	dirty   chan struct{} // one slot: what is wanted may differ from what was told
	ran     atomic.Bool

	mu        sync.Mutex     // guards what follows; held over memory only
	began     time.Time      // when Run was called
	sources   []*sourceState // in the order of cfg.Sources
	merged    mergedSet
	delivered delivered
	reported  map[string]SourceError // the faults that were reported and still stand
}

// New returns a Mux. Nothing is read before Run.
func New(cfg Config) (*Mux, error) {
	cfg.Sources = append([]NamedSource(nil), cfg.Sources...)
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	m := &Mux{
		cfg: cfg, changes: make(chan Change), dirty: make(chan struct{}, 1),
		sources:   make([]*sourceState, len(cfg.Sources)),
		delivered: delivered{pods: map[types.UID]*entry{}},
		reported:  map[string]SourceError{},
	}
	for i, s := range cfg.Sources {
		m.sources[i] = &sourceState{source: s.Name, static: isStatic(s.Source)}
	}
	return m, nil
}

// Changes returns the stream of changes. While nobody receives, they do not pile
// up: the next one leads from what was received last to what is wanted by then.
// What went is told before what came. The channel is never closed.
func (m *Mux) Changes() <-chan Change { return m.changes }

// Run watches the sources until ctx ends, and returns nil then. A source that
// breaks is watched again, and what it wanted last stays. Run may be called
// once.
func (m *Mux) Run(ctx context.Context) error {
	if m.ran.Swap(true) {
		return errors.New("podsource: Run was called before")
	}
	m.mu.Lock()
	m.began = time.Now()
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
	wait := firstRetry
	for {
		err := safe.Call(m.cfg.Logger, "watch source "+named.Name, func() error {
			return named.Source.Watch(ctx, func(s Set) {
				wait = firstRetry
				m.receive(ctx, i, s)
			})
		})
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("ended")
		}
		m.handleSourceFailure(ctx, i, fmt.Errorf("%w: watch the source: %w", ErrUnavailable, err))
		retry := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			retry.Stop()
			return
		case <-retry.C:
		}
		wait = min(2*wait, lastRetry)
	}
}

// receive gives source i what it wants now.
func (m *Mux) receive(ctx context.Context, i int, s Set) {
	began := time.Now()
	// Only this goroutine changes m.sources[i], so that it may be read here.
	next := m.sources[i].update(s, m.cfg.NodeName, began)
	m.publish(ctx, i, next)
	if h := m.cfg.Hooks.SetReceived; h != nil {
		h(next.source, len(next.entries), len(next.errors), time.Since(began))
	}
}

// handleSourceFailure notes that source i cannot be watched. What it wanted stays.
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

func (m *Mux) publish(ctx context.Context, i int, next *sourceState) {
	m.mu.Lock()
	was := m.sources[i]
	m.sources[i] = next
	if !m.merged.follow(m.sources, was, next) {
		m.merged = merge(m.sources, m.merged.owner)
	}
	news, mended := m.updateErrors()
	m.mu.Unlock()

	select {
	case m.dirty <- struct{}{}:
	default:
	}
	m.report(ctx, news, mended)
}

// deliver tells the way from what was told to what is wanted, one change at a
// time, until ctx ends.
func (m *Mux) deliver(ctx context.Context) {
	silent := time.NewTimer(silentAfter)
	defer silent.Stop()
	for {
		m.mu.Lock()
		step, ok := m.delivered.next(&m.merged)
		m.mu.Unlock()
		out := m.changes
		if !ok {
			out = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-m.dirty: // look again: the step may be out of date
		case <-silent.C:
			m.mu.Lock()
			news, mended := m.updateErrors()
			m.mu.Unlock()
			m.report(ctx, news, mended)
		case out <- step.Change:
			m.mu.Lock()
			m.delivered.add(step)
			m.mu.Unlock()
			if h := m.cfg.Hooks.ChangeDelivered; h != nil {
				h(step.Op, step.Source, len(step.Pods))
			}
		}
	}
}
