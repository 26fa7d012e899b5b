package provider

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/runtime"
)

// returnTimeout is how long a call may take to return after its context is done. It is then
// left behind.
const returnTimeout = 5 * time.Second

// errNotReturned is why a call is not made: the previous one, whose context is done, has
// not returned.
var errNotReturned = errors.New("the previous call has not returned")

// calls are the calls of the provider that are under way, by keys: those of one key do not
// overlap. The zero value has none.
type calls struct {
	log *slog.Logger

	mu   sync.Mutex
	busy map[string]chan struct{} // closed when the call returns
}

// acquire waits for the call under way, and reserves the key.
func (c *calls) acquire(ctx context.Context, key string) (done chan struct{}, err error) {
	for {
		c.mu.Lock()
		previous := c.busy[key]
		if previous == nil {
			if c.busy == nil {
				c.busy = map[string]chan struct{}{}
			}
			done = make(chan struct{})
			c.busy[key] = done
			c.mu.Unlock()
			return done, nil
		}
		c.mu.Unlock()
		select {
		case <-previous:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", errNotReturned, context.Cause(ctx))
		}
	}
}

// isBusy reports whether a call of that key is under way.
func (c *calls) isBusy(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.busy[key] != nil
}

func (c *calls) release(key string, done chan struct{}) {
	c.mu.Lock()
	delete(c.busy, key)
	c.mu.Unlock()
	close(done)
}

// do makes a call, after the previous one of its key has returned. A panic is an error, and
// a call that ignores its context is left behind: do returns soon after ctx is done.
func do[T any](ctx context.Context, c *calls, key, what string, call func(context.Context) (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var zero T
	done, err := c.acquire(ctx, key)
	if err != nil {
		return zero, fmt.Errorf("%s: %w", what, err)
	}
	results := make(chan result, 1)
	go func() {
		var r result
		r.err = safe.Call(c.log, what, func() (err error) { r.value, err = call(ctx); return err })
		c.release(key, done)
		results <- r
	}()
	var late <-chan time.Time
	for ended := ctx.Done(); ; {
		select {
		case r := <-results:
			if r.err != nil {
				return zero, fmt.Errorf("%s: %w", what, r.err)
			}
			return r.value, nil
		case <-ended:
			timer := time.NewTimer(returnTimeout)
			defer timer.Stop()
			ended, late = nil, timer.C
		case <-late:
			return zero, fmt.Errorf("%s: no answer: %w", what, context.Cause(ctx))
		}
	}
}

// IsNotFound reports whether a provider does not have a pod. Providers of virtual-kubelet
// return errors with a method.
func IsNotFound(err error) bool {
	if errors.Is(err, runtime.ErrNotFound) {
		return true
	}
	n, ok := errors.AsType[interface {
		error
		NotFound() bool
	}](err)
	return ok && n.NotFound()
}
