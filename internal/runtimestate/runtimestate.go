// Package runtimestate answers from memory whether a runtime can run pods, for as
// long as what else is heard of it proves that it is well, so that an idle node
// costs next to no calls.
package runtimestate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// Errors that tell why a runtime is not ready.
var (
	ErrPodsNotListed   = errors.New("the pods in the runtime are not known yet")
	ErrRuntimeNotReady = errors.New("the runtime says that it is not ready")
	ErrNetworkNotReady = errors.New("the runtime says that its network is not ready")
)

const (
	// statusTTL is how long a good answer of the runtime counts while nothing
	// speaks against it.
	statusTTL = 2 * time.Minute
	// startupTimeout bounds the wait for the first inspections, so that one pod that
	// hangs does not keep the agent from starting.
	startupTimeout = 5 * time.Second
)

// Runtime is asked how it is.
type Runtime interface {
	Status(ctx context.Context) (runtime.Status, error)
}

// Tracker knows whether the runtime is ready. Its methods may be called from any
// goroutine; only Ready blocks.
type Tracker struct {
	rt      Runtime
	recheck chan struct{} // one slot: Ready may have something new to say

	mu            sync.Mutex // guards what follows; held over memory only
	good          time.Time  // when Health last said that the runtime is ready
	network       error      // what Health last said of the network
	fault         error      // what the last Ready said
	name          string     // what the runtime calls itself
	recheckNeeded bool       // something failed since
	listed        time.Time  // first time that all pods were listed
	missing       int        // pods of the first listing that were not inspected yet
	seen          map[types.UID]struct{}
}

// New returns a Checker.
func New(rt Runtime) *Tracker {
	return &Tracker{rt: rt, recheck: make(chan struct{}, 1), network: ErrNetworkNotReady, seen: map[types.UID]struct{}{}}
}

// Recheck has a value when Ready may have something new to say.
func (c *Tracker) Recheck() <-chan struct{} { return c.recheck }

// Network returns nil if pods can have a network of their own.
func (c *Tracker) Network() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.network
}

// Name returns what the runtime calls itself; empty before it was asked.
func (c *Tracker) Name() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.name
}

// PodsKnown reports whether it is known what runs in the runtime.
func (c *Tracker) PodsKnown() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known(time.Now()) == nil
}

// Ready returns nil if the runtime is ready and what runs in it is known. It asks
// the runtime when two minutes have passed, when something failed since, and while
// the network is not ready.
func (c *Tracker) Ready(ctx context.Context) error {
	err := c.check(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fault = err
	return err
}

// Healthy returns what the last Ready said, or what is wrong with the network.
func (c *Tracker) Healthy() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fault != nil {
		return c.fault
	}
	return c.network
}

func (c *Tracker) check(ctx context.Context) error {
	if ok, err := c.remembered(time.Now()); ok {
		return err
	}
	h, err := c.rt.Status(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err != nil:
		c.recheckNeeded = true
		return fmt.Errorf("ask the runtime how it is: %w", err)
	case !h.RuntimeReady:
		c.recheckNeeded = true
		return conditionError(ErrRuntimeNotReady, h, "RuntimeReady")
	}
	c.good, c.recheckNeeded, c.network, c.name = time.Now(), false, nil, h.Name
	if !h.NetworkReady {
		c.network = conditionError(ErrNetworkNotReady, h, "NetworkReady")
	}
	return c.known(time.Now())
}

// remembered is the answer where the runtime need not be asked.
func (c *Tracker) remembered(now time.Time) (ok bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.recheckNeeded || c.network != nil || c.good.IsZero() || now.Sub(c.good) >= statusTTL {
		return false, nil
	}
	return true, c.known(now)
}

// known is whether it is known what runs. The caller holds mu.
func (c *Tracker) known(now time.Time) error {
	if c.listed.IsZero() || c.missing > 0 && now.Sub(c.listed) < startupTimeout {
		return ErrPodsNotListed
	}
	return nil
}

// Relisted takes that all pods were listed, of which so many have to be inspected,
// or that they could not be.
func (c *Tracker) Relisted(_ time.Duration, _, changed int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err != nil:
		c.recheckNeeded = true
	case c.listed.IsZero():
		c.listed = time.Now()
		c.missing = max(0, changed-len(c.seen))
	default:
		return
	}
	c.signal()
}

// Inspected takes that a pod was inspected.
func (c *Tracker) Inspected(uid types.UID, _, _ time.Duration, _ error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen == nil {
		return
	}
	if _, again := c.seen[uid]; again {
		return
	}
	c.seen[uid] = struct{}{}
	if c.listed.IsZero() {
		return
	}
	if c.missing--; c.missing <= 0 {
		c.seen = nil
		c.signal()
	}
}

// StreamChanged takes that the event stream was opened or broke.
func (c *Tracker) StreamChanged(open bool, err error) {
	if errors.Is(err, runtime.ErrUnsupported) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.recheckNeeded = c.recheckNeeded || !open
	c.signal()
}

func (c *Tracker) signal() {
	select {
	case c.recheck <- struct{}{}:
	default:
	}
}

// conditionError adds the runtime's own words on a condition.
func conditionError(err error, h runtime.Status, condition string) error {
	for _, c := range h.Conditions {
		if words := strings.TrimSpace(c.Reason + " " + c.Message); c.Type == condition && words != "" {
			return fmt.Errorf("%w: %s", err, words)
		}
	}
	return err
}
