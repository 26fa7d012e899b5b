package imagegc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// ImageStore lists, measures and removes images, and lists their users. Its methods must
// return when their context is done.
type ImageStore interface {
	Images(ctx context.Context) ([]runtime.Image, error)
	// RemoveImage removes an image with all its names. For an image that does not
	// exist it returns nil or an error that wraps runtime.ErrNotFound.
	RemoveImage(ctx context.Context, id string) error
	// ImageFS measures the file systems of images, and those of the writable layers
	// of containers if they are reported separately. A measurement without a capacity
	// is completed by Config.Statfs.
	ImageFS(ctx context.Context) (images, containers []runtime.FSUsage, err error)
	// ImagesInUse returns the names and ids of the images of all containers in the
	// runtime, including exited ones and those of other clients.
	ImagesInUse(ctx context.Context) ([]string, error)
}

// Recorder records events. It must not block.
type Recorder interface {
	Record(*corev1.Event)
}

// Config is the configuration of a Collector. Images is required.
type Config struct {
	Images ImageStore
	Policy Policy
	// KeepImages are names or ids of images that are never removed, for example the
	// sandbox image if the runtime does not pin it.
	KeepImages []string
	// SandboxImage returns the sandbox image of the runtime, which is never removed,
	// or "" if it is unknown. Default: unknown.
	SandboxImage func(context.Context) (string, error)
	// Ready returns nil once all pods in the runtime are known, for example the Healthy of
	// a syncloop.Loop. Until then Run removes nothing, and Explain returns ErrNotReady. It
	// must not block. Default: ready.
	Ready func() error
	// Unsynced returns an error while desired pods may be unknown, because a source has
	// not synced. Run waits for that too, but no longer than SourcesTimeout: pods that are
	// delivered later may need images that no pod has used before, but the disk of a node
	// whose server stays away must not fill up. It must not block. Default: synced.
	Unsynced func() error
	// SourcesTimeout is how long Run waits for sources that have not synced. Default: 2m.
	SourcesTimeout time.Duration
	// RecordsFile stores image records across restarts. Its directory must exist
	// when Run is called. Default: records are not stored.
	RecordsFile string
	// Period is the interval between collections. Default: 5m.
	Period time.Duration
	// DiskSettleTime is how long the file system may take to reflect the removal of an
	// image. Default: 1s.
	DiskSettleTime time.Duration
	// Statfs measures the file system of a path, for runtimes that do not report its
	// capacity. Default: the statfs system call.
	Statfs func(path string) (runtime.FSUsage, error)

	NodeName string // of the events
	Recorder Recorder
	Logger   *slog.Logger // Default: discard
	Hooks    Hooks
}

// Hooks are called by the Collector and must not block. Each may be nil.
type Hooks struct {
	// Removed is called after the removal of an image, successful or not.
	Removed func(image runtime.Image, reason Reason, duration time.Duration, err error)
	// Collected is called after a collection.
	Collected func(Result, error)
	// RecordsLost is called when image records could not be read or saved.
	RecordsLost func(err error)
}

// Join returns hooks that call those of h and then those of next. A panic of one is logged
// and does not prevent the others from being called. Join allocates; calls do not.
func (h Hooks) Join(log *slog.Logger, next Hooks) Hooks {
	return Hooks{
		Removed:     safe.Hook4(log, "ImageGC.Removed", h.Removed, next.Removed),
		Collected:   safe.Hook2(log, "ImageGC.Collected", h.Collected, next.Collected),
		RecordsLost: safe.Hook1(log, "ImageGC.RecordsLost", h.RecordsLost, next.RecordsLost),
	}
}

// guarded returns hooks that recover panics.
func (h Hooks) guarded(log *slog.Logger) Hooks {
	return Hooks{
		Removed:     safe.Hook4(log, "Removed", h.Removed),
		Collected:   safe.Hook2(log, "Collected", h.Collected),
		RecordsLost: safe.Hook1(log, "RecordsLost", h.RecordsLost),
	}
}

// Result is the result of a collection.
type Result struct {
	Removed     []Decision
	BytesToFree uint64 // 0 if the disk usage was below the high threshold, maybe once images above the maximum age were removed
	BytesFreed  uint64 // measured on the file system
	Duration    time.Duration
}

// InsufficientSpaceError is returned when removing all removable images freed too little.
type InsufficientSpaceError struct{ BytesToFree, BytesFreed uint64 }

// Error implements error.
func (e *InsufficientSpaceError) Error() string {
	return fmt.Sprintf("image garbage collection freed %d of %d bytes", e.BytesFreed, e.BytesToFree)
}

// Collector removes images.
type Collector struct {
	cfg    Config // without the policy
	policy atomic.Pointer[Policy]
	keep   nameSet
	leases *leases
	ready  atomic.Bool // the images that pods need are known

	// collectCh has one token, which the goroutine that collects owns. It guards the
	// fields below.
	collectCh chan struct{}
	known     map[string]ImageRecord // by image id; nil until loaded
	unnamed   map[string]time.Time   // since when an image has had no name, by id
	loaded    bool
}

// New returns a Collector. It reports all errors in cfg at once and does no I/O.
func New(cfg Config) (*Collector, error) {
	var errs []error
	if cfg.Images == nil {
		errs = append(errs, errors.New("imagegc: Config.Images required"))
	}
	errs = append(errs, cfg.Check())
	cfg.Period, cfg.DiskSettleTime = cmp.Or(cfg.Period, 5*time.Minute), cmp.Or(cfg.DiskSettleTime, time.Second)
	cfg.SourcesTimeout = cmp.Or(cfg.SourcesTimeout, 2*time.Minute)
	if cfg.Statfs == nil {
		cfg.Statfs = statfs
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Hooks = cfg.Hooks.guarded(cfg.Logger)
	cfg.Recorder = safe.Events(cfg.Logger, cfg.Recorder)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	c := &Collector{cfg: cfg, keep: make(nameSet), leases: newLeases(), collectCh: make(chan struct{}, 1)}
	c.setPolicy(cfg.Policy)
	c.ready.Store(cfg.Ready == nil && cfg.Unsynced == nil)
	for _, ref := range cfg.KeepImages {
		c.keep.add(ref)
	}
	return c, nil
}

// Check returns all errors in the policy and the durations, joined. New does so too, and
// checks what is required in addition.
func (c Config) Check() error {
	err := c.Policy.Check()
	if c.Period < 0 || c.DiskSettleTime < 0 || c.SourcesTimeout < 0 {
		err = errors.Join(err, errors.New("imagegc: Config.Period, DiskSettleTime and SourcesTimeout must not be negative"))
	}
	return err
}

// Run waits until the images that pods need are known, collects images at once and then
// in each Period. When ctx is done it saves the image records and returns nil. A
// collection that fails is logged and retried after Period.
func (c *Collector) Run(ctx context.Context) error {
	if c.awaitPods(ctx); !c.ready.Load() {
		return nil
	}
	tick := time.NewTicker(c.cfg.Period)
	defer tick.Stop()
	for {
		if err := safe.Call(c.cfg.Logger, "collect images", func() error { _, err := c.Collect(ctx); return err }); err != nil && ctx.Err() == nil {
			c.cfg.Logger.Warn("image garbage collection failed", logattr.Err(err))
		}
		select {
		case <-ctx.Done():
			c.collectCh <- struct{}{}
			c.save()
			<-c.collectCh
			return nil
		case <-tick.C:
		}
	}
}

// SetPolicy replaces Config.Policy for the collections that begin from now on. The same
// defaults hold; an invalid policy changes nothing. It may be called from any goroutine.
func (c *Collector) SetPolicy(p Policy) error {
	if err := p.Check(); err != nil {
		return err
	}
	c.setPolicy(p)
	return nil
}

func (c *Collector) setPolicy(p Policy) {
	p = p.withDefaults()
	c.policy.Store(&p)
}

// Collect removes images above the maximum age and, if disk usage is at the high
// threshold, as many as necessary to reach the low one. If that is not possible the
// error is an *InsufficientSpaceError. It blocks until other collections have ended.
func (c *Collector) Collect(ctx context.Context) (Result, error) {
	return c.collect(ctx, false)
}

// DeleteUnused removes all removable images regardless of disk usage.
func (c *Collector) DeleteUnused(ctx context.Context) (Result, error) {
	return c.collect(ctx, true)
}

// Reclaim calls DeleteUnused and returns only its error. It implements
// eviction.Reclaimer.
func (c *Collector) Reclaim(ctx context.Context) error {
	_, err := c.DeleteUnused(ctx)
	return err
}

// RemovesOnlyImages returns true. With it a Collector is an eviction.ImageReclaimer, which is not
// called for file systems without images.
func (c *Collector) RemovesOnlyImages() bool { return true }

// Explain returns what a collection would do now, and why, without doing it. If all is
// true, it explains DeleteUnused. The images that would be removed for disk usage are
// estimated by their sizes, as if those above the maximum age did not free enough. Before
// Run has found out which images pods need, it returns ErrNotReady.
func (c *Collector) Explain(ctx context.Context, all bool) ([]Decision, error) {
	if !c.ready.Load() {
		return nil, ErrNotReady
	}
	if err := c.acquire(ctx); err != nil {
		return nil, err
	}
	defer func() { <-c.collectCh }()
	s, err := c.takeSnapshot(ctx, all)
	if err != nil {
		return nil, err
	}
	return Plan(s.images, s.state, s.policy, s.at), nil
}

func (c *Collector) acquire(ctx context.Context) error {
	select {
	case c.collectCh <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// event records an event of the node.
func (c *Collector) event(reason, message string) {
	if c.cfg.Recorder == nil {
		return
	}
	c.cfg.Recorder.Record(podspec.NewNodeEvent(c.cfg.NodeName, corev1.EventTypeWarning, reason, message, time.Now()))
}
