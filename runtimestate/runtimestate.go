// Package runtimestate tracks whether the container runtime can run pods, as runtimeState
// and updateRuntimeUp in pkg/kubelet do in the kubelet. It caches the status of the runtime
// as long as no other call fails, so that an idle node needs almost no calls.
//
// A [Tracker] is the RuntimeState of a syncloop.Config. The PLEG reports to it by hooks:
//
//	tracker := runtimestate.New(client)
//	generator, err := pleg.New(pleg.Config{Runtime: client, Cache: &cache, Hooks: pleg.Hooks{
//		Relisted: tracker.Relisted, Inspected: tracker.Inspected, StreamChanged: tracker.StreamChanged,
//	}})
package runtimestate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/notify"
	"github.com/sublet-dev/agent/runtime"
)

// Reasons why a runtime is not ready.
var (
	ErrPodsNotListed   = errors.New("runtime pods not listed yet")
	ErrRuntimeNotReady = errors.New("runtime reports RuntimeReady=false")
	ErrNetworkNotReady = errors.New("runtime reports NetworkReady=false")
)

const (
	// statusTTL is how long a ready status is valid while no call fails.
	statusTTL = 2 * time.Minute
	// startupTimeout bounds the wait for the first inspections, so that one pod whose
	// inspection hangs does not prevent the agent from starting.
	startupTimeout = 5 * time.Second
)

// Runtime returns the status of the container runtime.
type Runtime interface {
	Status(ctx context.Context) (runtime.Status, error)
}

// Tracker tracks whether the runtime is ready. Its methods may be called from any
// goroutine; only Ready blocks.
type Tracker struct {
	rt      Runtime
	recheck chan struct{} // one slot: the result of Ready may have changed

	mu            sync.Mutex     // guards the fields below; never held during I/O
	good          time.Time      // time of the last ready status
	network       error          // network error of the last status
	lastErr       error          // result of the last Ready
	status        runtime.Status // the last ready one
	recheckNeeded bool           // a call failed since
	listed        time.Time      // time of the first relist
	missing       int            // pods of the first relist that are not inspected yet
	inspected     map[types.UID]struct{}
}

// New returns a Tracker. It does no I/O.
func New(rt Runtime) *Tracker {
	return &Tracker{rt: rt, recheck: make(chan struct{}, 1), network: ErrNetworkNotReady, inspected: map[types.UID]struct{}{}}
}

// Recheck receives a value when the result of Ready may have changed.
func (t *Tracker) Recheck() <-chan struct{} { return t.recheck }

// Network returns nil if pods can have their own network.
func (t *Tracker) Network() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.network
}

// Name returns the name that the runtime reports, or "" before the first status.
func (t *Tracker) Name() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.status.Name
}

// Status returns the last status in which the runtime was ready, or none before the
// first. It is read-only.
func (t *Tracker) Status() runtime.Status {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.status
}

// StrictGroups reports whether pods may have the supplementalGroupsPolicy Strict: the last status
// says so. Before the first, and with a runtime.PodSyncer, which rejects what it does not
// support, they may.
func (t *Tracker) StrictGroups() bool {
	st := t.Status()
	return st.Name == "" || st.SupplementalGroupsPolicy || runtime.RunsPods(t.rt)
}

// PodsKnown reports whether the pods in the runtime are known.
func (t *Tracker) PodsKnown() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.known(time.Now()) == nil
}

// Ready returns nil if the runtime is ready and its pods are known. It gets the status
// of the runtime after two minutes, after a failed call, and while the network is not
// ready; otherwise it uses the last one.
func (t *Tracker) Ready(ctx context.Context) error {
	err := t.check(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lastErr = err
	return err
}

// Healthy returns the result of the last Ready or, if that is nil, of Network.
func (t *Tracker) Healthy() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lastErr != nil {
		return t.lastErr
	}
	return t.network
}

func (t *Tracker) check(ctx context.Context) error {
	if ok, err := t.cached(time.Now()); ok {
		return err
	}
	h, err := t.rt.Status(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case err != nil:
		t.recheckNeeded = true
		return fmt.Errorf("get runtime status: %w", err)
	case !h.RuntimeReady:
		t.recheckNeeded = true
		return conditionError(ErrRuntimeNotReady, h, "RuntimeReady")
	}
	t.good, t.recheckNeeded, t.network, t.status = time.Now(), false, nil, h
	if !h.NetworkReady {
		t.network = conditionError(ErrNetworkNotReady, h, "NetworkReady")
	}
	return t.known(time.Now())
}

// cached returns the result of Ready if the last status is still valid.
func (t *Tracker) cached(now time.Time) (ok bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.recheckNeeded || t.network != nil || t.good.IsZero() || now.Sub(t.good) >= statusTTL {
		return false, nil
	}
	return true, t.known(now)
}

// known returns nil if the pods in the runtime are known.
// held: t.mu
func (t *Tracker) known(now time.Time) error {
	if t.listed.IsZero() || t.missing > 0 && now.Sub(t.listed) < startupTimeout {
		return ErrPodsNotListed
	}
	return nil
}

// Relisted is the PLEG hook for a relist, after which changed pods must be inspected.
func (t *Tracker) Relisted(_ time.Duration, _, changed int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case err != nil:
		t.recheckNeeded = true
	case t.listed.IsZero():
		t.listed = time.Now()
		t.missing = max(0, changed-len(t.inspected))
	default:
		return
	}
	notify.Send(t.recheck)
}

// Inspected is the PLEG hook for an inspection.
func (t *Tracker) Inspected(uid types.UID, _, _ time.Duration, _ error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.inspected == nil {
		return
	}
	if _, ok := t.inspected[uid]; ok {
		return
	}
	t.inspected[uid] = struct{}{}
	if t.listed.IsZero() {
		return
	}
	if t.missing--; t.missing <= 0 {
		t.inspected = nil
		notify.Send(t.recheck)
	}
}

// StreamChanged is the PLEG hook for the event stream.
func (t *Tracker) StreamChanged(open bool, err error) {
	if errors.Is(err, runtime.ErrUnsupported) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.recheckNeeded = t.recheckNeeded || !open
	notify.Send(t.recheck)
}

// conditionError adds reason and message of a condition to err.
func conditionError(err error, h runtime.Status, condition string) error {
	for _, c := range h.Conditions {
		if text := strings.TrimSpace(c.Reason + " " + c.Message); c.Type == condition && text != "" {
			return fmt.Errorf("%w: %s", err, text)
		}
	}
	return err
}
