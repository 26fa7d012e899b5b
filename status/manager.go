package status

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/runtime"
)

// Config describes a Manager. Every field is optional.
type Config struct {
	// Sinks hear every status, each at its own speed. Default: nobody does.
	Sinks []Sink
	// NodeInfo tells about the node. It is called for each status and must not
	// block. Default: nothing is known.
	NodeInfo func() NodeInfo
	// MaxParallel is how many pods are sent to one sink at once. Default: 10.
	MaxParallel int
	// Timeout ends the context of one send. Default: 30 s.
	Timeout time.Duration
	// BackOff is the wait after a first failed send of a pod; it doubles up to
	// MaxBackOff. Defaults: 200 ms and 5 s.
	BackOff, MaxBackOff time.Duration
	// FlushTimeout is how long Run goes on sending what is left after its context
	// ended. Default: 5 s.
	FlushTimeout time.Duration
	Logger       *slog.Logger // default: nothing is logged
	Hooks        Hooks
}

// Hooks are called as things happen, from the goroutine that makes them
// happen. They must be fast. Any may be nil.
type Hooks struct {
	// Changed is called when a pod's status became another one. Both are
	// read-only. now is the first status of this process when former is zero.
	Changed func(pod *corev1.Pod, former, now corev1.PodStatus)
	// Sent is called after each send, with how long it took and how long the
	// status had waited for it.
	Sent func(pod *corev1.Pod, took, waited time.Duration, err error)
}

func (c *Config) fill() error {
	var errs []error
	for i, s := range c.Sinks {
		if s == nil {
			errs = append(errs, fmt.Errorf("sink %d is nil", i))
		}
	}
	for name, d := range map[string]time.Duration{
		"Timeout": c.Timeout, "BackOff": c.BackOff, "MaxBackOff": c.MaxBackOff, "Flush": c.FlushTimeout,
	} {
		if d < 0 {
			errs = append(errs, fmt.Errorf("%s is negative: %v", name, d))
		}
	}
	if c.MaxParallel < 0 {
		errs = append(errs, fmt.Errorf("parallel is negative: %d", c.MaxParallel))
	}
	c.MaxParallel = orDefault(c.MaxParallel, 10)
	c.Timeout = orDefault(c.Timeout, 30*time.Second)
	c.BackOff = orDefault(c.BackOff, 200*time.Millisecond)
	c.MaxBackOff = max(orDefault(c.MaxBackOff, 5*time.Second), c.BackOff)
	c.FlushTimeout = orDefault(c.FlushTimeout, 5*time.Second)
	if c.NodeInfo == nil {
		c.NodeInfo = func() NodeInfo { return NodeInfo{} }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Hooks = safe.Hooks(c.Logger, c.Hooks)
	return errors.Join(errs...)
}

func orDefault[T int | time.Duration](v, def T) T {
	if v == 0 {
		return def
	}
	return v
}

// Manager keeps the newest status of each pod and tells it to the sinks. All
// its methods may be called from any goroutine, before, during and after Run,
// and none but Run blocks.
type Manager struct {
	cfg   Config
	lanes []*sinkQueue

	mu      sync.Mutex // guards all below and the lanes' queues
	entries map[types.UID]*entry
}

// entry is what is kept of one pod. It is guarded by Manager.mu; what its
// fields point to is read-only.
type entry struct {
	pod           *corev1.Pod
	status        *corev1.PodStatus
	version       uint64          // rises with each change that sinks must hear of
	resendVersion uint64          // the version that is told whatever sinks heard before
	restored      bool            // by a former process, not told by this one
	unfinished    bool            // reports came, and none yet that the pod is finished
	forgotten     bool            // it is told as deleted, or will be when it is not open any more
	named         bool            // gone by its deletion timestamp, and not by Forget
	deleting      int             // lanes that have yet to tell the deletion
	sent          []sentStatus    // by lane: what its sink has heard
	inputs        *generateInputs // what the status was made from again; nil if that is not known
}

// sentStatus is what a sink has heard of a pod.
type sentStatus struct {
	version uint64
	status  *corev1.PodStatus // nil when that is not known: a send that failed may have come through
}

// New returns a Manager. It tells all faults of cfg at once.
func New(cfg Config) (*Manager, error) {
	if err := cfg.fill(); err != nil {
		return nil, fmt.Errorf("status: %w", err)
	}
	m := &Manager{cfg: cfg, entries: make(map[types.UID]*entry)}
	for i, sink := range cfg.Sinks {
		m.lanes = append(m.lanes, newLane(m, i, sink))
	}
	return m, nil
}

// newEntry returns an entry whose first version, if it is 1, was told by a
// former process.
func (m *Manager) newEntry(version uint64) *entry {
	e := &entry{version: version, restored: version > 0, sent: make([]sentStatus, len(m.lanes))}
	for i := range e.sent {
		e.sent[i].version = version
	}
	return e
}

// Run tells statuses until ctx ends and then, for at most Config.Flush, what is
// left. It returns an error if something was left untold. Run it once.
func (m *Manager) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	errs := make([]error, len(m.lanes))
	for i, l := range m.lanes {
		wg.Go(func() { errs[i] = l.run(ctx) })
	}
	<-ctx.Done()
	wg.Wait()
	return errors.Join(errs...)
}

// Observe makes the pod's new status from a report and the status before it,
// keeps it, and has it told if it changed. It returns the status, which is
// read-only.
func (m *Manager) Observe(pod *corev1.Pod, r runtime.Report) corev1.PodStatus {
	env := m.env()
	in := inputs(pod, &r, env)
	if st, ok := m.unchanged(in); ok {
		return st
	}
	return m.change(pod, in, !r.Finished, func(former corev1.PodStatus) corev1.PodStatus {
		return Generate(pod, r, former, env, time.Now())
	})
}

// env asks for what is known about the node.
func (m *Manager) env() (env NodeInfo) {
	safe.Do(m.cfg.Logger, "ask for the node's environment", func() { env = m.cfg.NodeInfo() })
	return env
}

// Reject makes the pod failed with a reason and a message. It is for pods that
// were never admitted, so that nothing of them can run.
func (m *Manager) Reject(pod *corev1.Pod, reason, message string) corev1.PodStatus {
	env := m.env()
	return m.change(pod, nil, false, func(former corev1.PodStatus) corev1.PodStatus {
		return refused(pod, former, reason, message, env, time.Now())
	})
}

// change puts a new status in the place of the former one. It is made and
// compared without the lock, and again if the former one changed meanwhile. in is
// what it is made from, if it may be kept.
func (m *Manager) change(pod *corev1.Pod, in *generateInputs, open bool, make func(former corev1.PodStatus) corev1.PodStatus) corev1.PodStatus {
	m.mu.Lock()
	for {
		e := m.entries[pod.UID]
		if e != nil && e.forgotten && e.named && !open && pod.DeletionTimestamp != nil {
			st := *e.status // it was told as deleted for just that
			m.mu.Unlock()
			return st
		}
		former, version := pod.Status, uint64(0)
		if e != nil && (!e.forgotten || e.unfinished) {
			former, version = *e.status, e.version
		} else if e != nil {
			version = e.version // it was forgotten and lives again
		}
		m.mu.Unlock()
		st := make(former)
		same := version > 0 && equality.Semantic.DeepEqual(former, st)
		m.mu.Lock()
		now := m.entries[pod.UID]
		switch {
		case now == nil && e == nil:
			now = m.newEntry(0)
			m.entries[pod.UID] = now
		case now != e || now.version != version:
			continue
		}
		changed := m.put(now, pod, st, same, open)
		now.inputs = nil
		if !changed {
			now.inputs = in
		}
		m.mu.Unlock()
		if changed && m.cfg.Hooks.Changed != nil {
			m.cfg.Hooks.Changed(pod, former, st)
		}
		return st
	}
}

// put stores a status, queues it if it is news, and reports whether it is. same
// says that it is the one before. m.mu is held.
func (m *Manager) put(e *entry, pod *corev1.Pod, st corev1.PodStatus, same, open bool) bool {
	reborn := e.forgotten && !e.unfinished
	same = same && !reborn
	news := !same || e.restored
	e.pod, e.unfinished = pod, open
	if !same {
		keep := st // on the heap only then
		e.status = &keep
	}
	e.restored = false
	if news {
		e.version++
		m.enqueue(pod.UID)
	}
	if reborn {
		e.forgotten, e.named, e.deleting, e.resendVersion = false, false, 0, e.version
	}
	if !e.forgotten && !e.unfinished && pod.DeletionTimestamp != nil {
		e.forgotten, e.named = true, true
	}
	if e.forgotten && !e.unfinished {
		m.startDeletion(e)
	}
	return news
}

// enqueue has every lane look at the pod. m.mu is held.
func (m *Manager) enqueue(uid types.UID) {
	for _, l := range m.lanes {
		l.add(uid)
	}
}

// Get returns the pod's newest status, whether or not it has been told. It is
// read-only.
func (m *Manager) Get(uid types.UID) (corev1.PodStatus, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.entries[uid]
	if !ok || e.forgotten && !e.unfinished {
		return corev1.PodStatus{}, false
	}
	return *e.status, true
}

// Pods returns a copy of each known pod with its newest status in it, in no
// order. What the copies point to is read-only.
func (m *Manager) Pods() []*corev1.Pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]*corev1.Pod, 0, len(m.entries))
	for _, e := range m.entries {
		if !e.forgotten || e.unfinished {
			out = append(out, withStatus(e.pod, *e.status))
		}
	}
	return out
}

// IsRestored reports whether the pod's status is the one that a former process
// told: nothing was reported of it since.
func (m *Manager) IsRestored(uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.entries[uid]
	return ok && e.restored
}

// PodUIDs returns the pods that a status is kept of, those of a former process
// too, in no order: Forget those that no source names.
func (m *Manager) PodUIDs() []types.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]types.UID, 0, len(m.entries))
	for uid, e := range m.entries {
		if !e.forgotten || e.named {
			out = append(out, uid)
		}
	}
	return out
}

// withStatus returns a shallow copy of pod that has the status.
func withStatus(pod *corev1.Pod, st corev1.PodStatus) *corev1.Pod {
	out := *pod
	out.Status = st
	return &out
}

// Resend has the pod's status told again although sinks have heard it, as when one
// turned out to hold another.
func (m *Manager) Resend(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e, ok := m.entries[uid]; ok && !e.forgotten {
		e.version++
		e.resendVersion = e.version
		m.enqueue(uid)
	}
}

// Forget is called when no source names the pod any more. The pod's last
// status is still told, then its deletion to the sinks that are Deleters, then
// nothing is left of it. A pod with a deletion timestamp that has finished is told as
// deleted while its source goes on to name it, as an API server does until it is told
// so; Forget then only ends what is remembered of it. A pod whose last report did not say that it is
// finished may still hold containers or resources: its deletion waits for the
// report that does. Of a pod restored from a former process, of which no report
// ever came, there is nothing to wait for.
func (m *Manager) Forget(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.entries[uid]
	switch {
	case !ok:
	case e.named: // that it is deleted was told, or is being told
		e.named = false
		m.drop(uid, e)
	case !e.forgotten:
		e.forgotten = true
		if !e.unfinished {
			m.startDeletion(e)
		}
	}
}

// drop forgets a pod when all lanes have told its deletion and no source names it.
// m.mu is held.
func (m *Manager) drop(uid types.UID, e *entry) {
	if e.deleting == 0 && !e.named && m.entries[uid] == e {
		delete(m.entries, uid)
	}
}

// startDeletion starts the telling of a deletion. m.mu is held.
func (m *Manager) startDeletion(e *entry) {
	e.version++
	e.deleting = len(m.lanes)
	m.enqueue(e.pod.UID)
	m.drop(e.pod.UID, e)
}

// deletionDelivered notes that one lane has told the deletion. m.mu is held.
func (m *Manager) deletionDelivered(uid types.UID, e *entry) {
	e.deleting--
	m.drop(uid, e)
}

// Restore takes up what a former process told: of each pod that is not known
// yet, the status in it. It is told again only after the pod's first report.
func (m *Manager) Restore(pods ...*corev1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, pod := range pods {
		if pod == nil || pod.UID == "" || m.entries[pod.UID] != nil {
			continue
		}
		e := m.newEntry(1)
		e.pod, e.status = pod, &pod.Status
		m.entries[pod.UID] = e
	}
}
