package kubeauth

import (
	"container/list"
	"context"
	"crypto/sha256"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/sublet-dev/agent/internal/safe"
)

// Defaults and bounds. The times are the kubelet's.
const (
	defaultTokenTTL   = 2 * time.Minute
	invalidTokenTTL   = 10 * time.Second // it may become valid
	defaultAllowedTTL = 5 * time.Minute
	defaultDeniedTTL  = 30 * time.Second
	defaultTimeout    = 10 * time.Second
	defaultMaxEntries = 1024
	maxRequests       = 16 // concurrent
)

type key [sha256.Size]byte

// answers asks the API server and remembers what it answered.
type answers[V any] struct {
	log     *slog.Logger
	timeout time.Duration
	caches  [2]*cache[V] // of negative and of positive answers
	flight  singleflight.Group
	slots   chan struct{} // of requests
}

func newAnswers[V any](log *slog.Logger, timeout, deniedTTL, allowedTTL time.Duration, maxEntries int) *answers[V] {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &answers[V]{
		log: log, timeout: timeout, slots: make(chan struct{}, maxRequests),
		caches: [2]*cache[V]{newCache[V](deniedTTL, maxEntries), newCache[V](allowedTTL, maxEntries)},
	}
}

// get returns the cached answer for k, or that of ask.
func (a *answers[V]) get(ctx context.Context, k key, ask func(context.Context) (V, bool, error)) (V, error) {
	for _, c := range a.caches {
		if v, ok := c.get(k); ok {
			return v, nil
		}
	}
	result := a.flight.DoChan(string(k[:]), func() (any, error) {
		// The request of all clients that wait does not end with the first of them.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.timeout)
		defer cancel()
		select {
		case a.slots <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		defer func() { <-a.slots }()
		var v V
		var positive bool
		// This is a goroutine of its own, so that a panic would end the program.
		if err := safe.Call(a.log, "review by the API server", func() (err error) {
			v, positive, err = ask(ctx)
			return err
		}); err != nil {
			return nil, err
		}
		c := a.caches[0]
		if positive {
			c = a.caches[1]
		}
		c.put(k, v)
		return v, nil
	})
	var none V
	select {
	case r := <-result:
		if r.Err != nil {
			return none, r.Err
		}
		return r.Val.(V), nil //nolint:errcheck // it is what the function above returned
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// cache keeps the entries that were used last.
type cache[V any] struct {
	ttl time.Duration
	max int

	mu      sync.Mutex
	entries map[key]*list.Element // of entry[V]
	used    *list.List            // the last used first
}

type entry[V any] struct {
	key     key
	value   V
	expires time.Time
}

func newCache[V any](ttl time.Duration, limit int) *cache[V] {
	return &cache[V]{ttl: ttl, max: limit, entries: map[key]*list.Element{}, used: list.New()}
}

func (c *cache[V]) get(k key) (v V, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	element, ok := c.entries[k]
	if !ok {
		return v, false
	}
	e := element.Value.(*entry[V]) //nolint:errcheck // put stores nothing else
	if !time.Now().Before(e.expires) {
		return v, false // put replaces it
	}
	c.used.MoveToFront(element)
	return e.value, true
}

func (c *cache[V]) put(k key, v V) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, ok := c.entries[k]; ok {
		c.remove(old)
	}
	c.entries[k] = c.used.PushFront(&entry[V]{key: k, value: v, expires: time.Now().Add(c.ttl)})
	if c.used.Len() > c.max {
		c.remove(c.used.Back())
	}
}

func (c *cache[V]) remove(element *list.Element) {
	delete(c.entries, c.used.Remove(element).(*entry[V]).key) //nolint:errcheck // put stores nothing else
}
