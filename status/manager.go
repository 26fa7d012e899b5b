package status

import (
	"cmp"
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
	// Sinks receive every status, each at its own speed. Default: none.
	Sinks []Sink
	// NodeInfo returns the node's part of statuses. It is called for each status and
	// must not block. Default: the zero value.
	NodeInfo func() NodeInfo
	// MaxParallel is the maximum number of concurrent sends to one sink. Default: 10.
	MaxParallel int
	// Timeout bounds one send. Default: 30s.
	Timeout time.Duration
	// BackOff is the wait after the first failed send of a pod. It doubles up to
	// MaxBackOff. Defaults: 200ms and 5s.
	BackOff, MaxBackOff time.Duration
	// FlushTimeout is how long Run continues to send pending statuses after its context
	// is done. Default: 5s.
	FlushTimeout time.Duration
	Logger       *slog.Logger // Default: discard
	Hooks        Hooks
}

func (c *Config) fill() error {
	var errs []error
	for i, s := range c.Sinks {
		if s == nil {
			errs = append(errs, fmt.Errorf("Config.Sinks[%d] is nil", i))
		}
	}
	for name, d := range map[string]time.Duration{
		"Timeout": c.Timeout, "BackOff": c.BackOff, "MaxBackOff": c.MaxBackOff, "FlushTimeout": c.FlushTimeout,
	} {
		if d < 0 {
			errs = append(errs, fmt.Errorf("%s must not be negative: %v", "Config."+name, d))
		}
	}
	if c.MaxParallel < 0 {
		errs = append(errs, fmt.Errorf("Config.MaxParallel must not be negative: %d", c.MaxParallel))
	}
	c.MaxParallel = cmp.Or(c.MaxParallel, 10)
	c.Timeout = cmp.Or(c.Timeout, 30*time.Second)
	c.BackOff = cmp.Or(c.BackOff, 200*time.Millisecond)
	c.MaxBackOff = max(cmp.Or(c.MaxBackOff, 5*time.Second), c.BackOff)
	c.FlushTimeout = cmp.Or(c.FlushTimeout, 5*time.Second)
	if c.NodeInfo == nil {
		c.NodeInfo = func() NodeInfo { return NodeInfo{} }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Hooks = c.Hooks.guarded(c.Logger)
	return errors.Join(errs...)
}

// Manager keeps the newest status of each pod and sends it to the sinks. Its methods
// may be called from any goroutine, before, during and after Run. None but Run
// blocks.
type Manager struct {
	cfg    Config
	queues []*sinkQueue

	mu      sync.Mutex // guards all below and the queues
	entries map[types.UID]*entry
}

// entry is the record of one pod. It is guarded by Manager.mu. The values that its
// fields point to are read-only.
type entry struct {
	pod           *corev1.Pod
	status        *corev1.PodStatus
	version       uint64          // incremented by each change that sinks must receive
	resendVersion uint64          // this version is sent whatever sinks received before
	restored      bool            // by Restore, and not reported since
	unfinished    bool            // there were reports, and none yet that the pod is finished
	forgotten     bool            // its deletion is sent, or will be once it is finished
	named         bool            // forgotten by its deletion timestamp, and not by Forget
	deleting      int             // queues that have yet to send the deletion; while named, without those that keep the pod
	sent          []sentStatus    // by queue: the last send
	inputs        *generateInputs // of the last status, if it was unchanged; nil: unknown
}

// sentStatus is the last status of a pod that a sink received.
type sentStatus struct {
	version uint64
	status  *corev1.PodStatus // nil: unknown, because a failed send may have been received
}

// New returns a Manager. It does no I/O. The error joins all errors of cfg.
func New(cfg Config) (*Manager, error) {
	if err := cfg.fill(); err != nil {
		return nil, fmt.Errorf("status: %w", err)
	}
	m := &Manager{cfg: cfg, entries: make(map[types.UID]*entry)}
	for i, sink := range cfg.Sinks {
		m.queues = append(m.queues, newSinkQueue(m, i, sink))
	}
	return m, nil
}

// newEntry returns an entry. Version 1 is that of a status that a previous process
// sent, version 0 that of a new pod.
func (m *Manager) newEntry(version uint64) *entry {
	e := &entry{version: version, restored: version > 0, sent: make([]sentStatus, len(m.queues))}
	for i := range e.sent {
		e.sent[i].version = version
	}
	return e
}

// Run sends statuses until ctx is done, and then the pending ones for at most
// Config.FlushTimeout. It blocks until then and returns an error if a status was not
// sent. It must be called once.
func (m *Manager) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	errs := make([]error, len(m.queues))
	for i, l := range m.queues {
		wg.Go(func() { errs[i] = l.run(ctx) })
	}
	<-ctx.Done()
	wg.Wait()
	return errors.Join(errs...)
}

// Observe generates the pod's new status from a report and the previous status, keeps
// it, and queues it for the sinks if it changed. It returns the status, which is
// read-only. With Report.Unreleased, what is kept and sent does not have the terminal
// phase that is returned.
func (m *Manager) Observe(pod *corev1.Pod, r runtime.Report) corev1.PodStatus {
	env := m.env()
	if st, ok := m.unchanged(pod, &r, env); ok {
		return st
	}
	var generated corev1.PodStatus
	kept := m.change(pod, inputs(pod, &r, env), !r.Finished, func(previous corev1.PodStatus) corev1.PodStatus {
		generated = Generate(pod, r, previous, env, time.Now())
		if r.Unreleased {
			return notEnded(generated, &previous)
		}
		return generated
	})
	if r.Unreleased {
		return generated
	}
	return kept
}

// env returns Config.NodeInfo, or the zero value if it panics.
func (m *Manager) env() (env NodeInfo) {
	safe.Do(m.cfg.Logger, "get node info", func() { env = m.cfg.NodeInfo() })
	return env
}

// Reject sets the pod to Failed with a reason and a message. It is for pods that were
// never admitted, so that none of their containers can run.
func (m *Manager) Reject(pod *corev1.Pod, reason, message string) corev1.PodStatus {
	env := m.env()
	return m.change(pod, nil, false, func(previous corev1.PodStatus) corev1.PodStatus {
		return rejectedStatus(pod, previous, reason, message, env, time.Now())
	})
}

// change replaces the status of a pod. The new one is generated and compared without
// the lock, and again if the previous one changed meanwhile. in are its inputs, or nil
// if they must not be kept.
func (m *Manager) change(pod *corev1.Pod, in *generateInputs, open bool, make func(previous corev1.PodStatus) corev1.PodStatus) corev1.PodStatus {
	m.mu.Lock()
	for {
		e := m.entries[pod.UID]
		if e != nil && e.forgotten && e.named && !open && pod.DeletionTimestamp != nil {
			st := *e.status // its deletion was sent because of the timestamp
			m.mu.Unlock()
			return st
		}
		previous, version := pod.Status, uint64(0)
		if e != nil && (!e.forgotten || e.unfinished) {
			previous, version = *e.status, e.version
		} else if e != nil {
			version = e.version // it was forgotten and is recreated
		}
		m.mu.Unlock()
		st := make(previous)
		same := version > 0 && equality.Semantic.DeepEqual(previous, st)
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
			m.cfg.Hooks.Changed(pod, previous, st)
		}
		return st
	}
}

// put stores a status, queues it if sinks must receive it, and reports whether they
// must. same means that it equals the previous one. m.mu is held.
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

// enqueue adds the pod to the queue of every sink. m.mu is held.
func (m *Manager) enqueue(uid types.UID) {
	for _, l := range m.queues {
		l.add(uid)
	}
}

// Get returns the pod's newest status, whether or not it has been sent. It is
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

// Pods returns a copy of each known pod with its newest status, in no order. The
// values that the copies point to are read-only.
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

// IsRestored reports whether the pod's status is the one from Restore, without a
// report since.
func (m *Manager) IsRestored(uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.entries[uid]
	return ok && e.restored
}

// PodUIDs returns the UIDs of all pods with a status, also restored ones, in no order.
// The caller must call Forget for those that no source contains.
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

// withStatus returns a shallow copy of pod with the status.
func withStatus(pod *corev1.Pod, st corev1.PodStatus) *corev1.Pod {
	out := *pod
	out.Status = st
	return &out
}

// Resend sends the pod's status again, for example because a sink was found to have
// another one.
func (m *Manager) Resend(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e, ok := m.entries[uid]; ok && !e.forgotten {
		e.version++
		e.resendVersion = e.version
		m.enqueue(uid)
	}
}

// Forget must be called when no source contains the pod any more. The pod's last
// status is still sent, then its deletion to the sinks that are Deleters; then the pod
// is removed from memory.
//
// If the last report of the pod was not Finished, it may still have containers or
// resources, and its deletion waits for the report that is. A restored pod without a
// report does not wait.
//
// The deletion of a finished pod with a deletion timestamp is sent without Forget: an
// API server contains the pod until it receives the deletion. Forget then only
// removes it from memory, and from the sinks that keep it until then: see Retainer.
func (m *Manager) Forget(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.entries[uid]
	switch {
	case !ok:
	case e.named: // its deletion was sent, or is being sent
		e.named = false
		m.queueDeletion(e, func(l *sinkQueue) bool { return l.keeps })
	case !e.forgotten:
		e.forgotten = true
		if !e.unfinished {
			m.startDeletion(e)
		}
	}
}

// drop removes a pod from memory once all sinks have its deletion and no source
// contains it. m.mu is held.
func (m *Manager) drop(uid types.UID, e *entry) {
	if e.deleting == 0 && !e.named && m.entries[uid] == e {
		delete(m.entries, uid)
	}
}

// startDeletion queues a deletion for all sinks that do not keep the pod. m.mu is held.
func (m *Manager) startDeletion(e *entry) {
	e.version++
	e.deleting = 0
	m.queueDeletion(e, func(l *sinkQueue) bool { return l.isDeleted(e) })
}

// queueDeletion queues a deletion for some sinks. m.mu is held.
func (m *Manager) queueDeletion(e *entry, to func(*sinkQueue) bool) {
	for _, l := range m.queues {
		if to(l) {
			e.deleting++
			l.add(e.pod.UID)
		}
	}
	m.drop(e.pod.UID, e)
}

// deletionDelivered counts a sink that has the deletion. m.mu is held.
func (m *Manager) deletionDelivered(uid types.UID, e *entry) {
	e.deleting--
	m.drop(uid, e)
}

// Restore loads the statuses that a previous process sent, from the pods that are not
// known yet. Each is sent again only after the first report of the pod.
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
