package cri

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
)

// PullLimits bounds image pulls. The zero value has the defaults.
type PullLimits struct {
	MaxParallel int           // how many at a time; 1 is serial [2]
	QPS         float64       // begun a second; negative: no limit [5]
	Burst       int           // begun at once above PerSec [10]
	BackOff     time.Duration // after the first failure, then doubling [10 s]
	MaxBackOff  time.Duration // what the back-off grows to [5 min]
}

func (p *PullLimits) fill() error {
	if p.MaxParallel < 0 || p.Burst < 0 || p.BackOff < 0 || p.MaxBackOff < 0 {
		return fmt.Errorf("a value of Pulls is negative: %+v", *p)
	}
	if p.MaxParallel == 0 {
		p.MaxParallel = 2
	}
	if p.QPS == 0 {
		p.QPS = 5
	}
	if p.Burst == 0 {
		p.Burst = 10
	}
	if p.BackOff == 0 {
		p.BackOff = 10 * time.Second
	}
	if p.MaxBackOff == 0 {
		p.MaxBackOff = 5 * time.Minute
	}
	if p.MaxBackOff < p.BackOff {
		return fmt.Errorf("Pulls.Most %v is less than Pulls.BackOff %v", p.MaxBackOff, p.BackOff)
	}
	return nil
}

// puller pulls images: each reference once at a time regardless of how many wait for it,
// few in parallel in the order of the requests, and after a failure not before its
// back-off ends. A pull without a waiter is cancelled.
type puller struct {
	c     *Client
	slots *semaphore.Weighted // first come, first served
	rate  *rate.Limiter

	mu       sync.Mutex // guards the rest
	inFlight map[pullKey]*pull
	last     map[string]*pull // by reference: who must end before the next begins
	failed   map[pullKey]*pullFailure
	landed   map[pullTarget]completedPull // pulls that worked, for a while
	count    uint64                       // of them
}

// pullKey is what makes two pulls the same: with other logins the answer can be
// another one.
type pullKey struct{ ref, repository, logins, handler string }

// pullTarget is the result of a pull on the node, regardless of the credentials.
type pullTarget struct{ ref, handler string }

func (k pullKey) landing() pullTarget { return pullTarget{k.ref, k.handler} }

// completedPull is the last pull of an image that worked.
type completedPull struct {
	number uint64
	image  string
	at     time.Time
}

type pull struct {
	done    chan struct{}
	cancel  context.CancelFunc
	waiters int // guarded by puller.mu

	image string // set before done is closed
	err   error

	landed bool // it was over before it was asked for; there is no more to it
}

// pullFailure is a pull that failed. While it is fresh, callers get the failure itself
// without a new try, and later the back-off. Otherwise the failure would hardly be
// visible, because a pod is often synced again right after it.
type pullFailure struct {
	err   error
	wait  time.Duration
	fresh time.Time // until then
	until time.Time // no try before
}

// backingOff is an error of which there is nothing new before until.
type backingOff struct {
	until   time.Time
	waiting bool // nothing was tried: the back-off runs
	error
}

func (b *backingOff) Unwrap() error { return b.error }

func newPuller(c *Client) *puller {
	limit := rate.Limit(c.cfg.Pulls.QPS)
	if limit < 0 {
		limit = rate.Inf
	}
	return &puller{
		c: c, slots: semaphore.NewWeighted(int64(c.cfg.Pulls.MaxParallel)), rate: rate.NewLimiter(limit, c.cfg.Pulls.Burst),
		inFlight: make(map[pullKey]*pull), last: make(map[string]*pull), failed: make(map[pullKey]*pullFailure),
		landed: make(map[pullTarget]completedPull),
	}
}

// ignorePreviousPulls as the number of arrivals known to a pull says that what arrived before
// is of no use to it.
const ignorePreviousPulls = math.MaxUint64

// arrivals is the number of successful pulls so far. A caller reads it before the image
// status, and passes it to pull if the image is missing.
func (p *puller) arrivals() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count
}

// pull fetches an image and returns its id. observe is called if a pull is under way or
// starts now, as against a back-off in progress and an image that has arrived since the
// caller looked for it, when there were so many arrivals. It must call its argument, which
// pulls.
func (p *puller) pull(key pullKey, known uint64, logins []*v1.AuthConfig, sandbox *v1.PodSandboxConfig,
	observe func(func(context.Context) error) error,
) (string, error) {
	f, start, err := p.join(key, known, logins, sandbox)
	if err != nil {
		return "", err
	}
	if !f.landed {
		err = observe(func(ctx context.Context) error { start(ctx); return p.wait(ctx, key, f) })
	}
	if err != nil {
		return "", err
	}
	return f.image, nil
}

// wait waits for a pull. A pull without waiters is cancelled.
func (p *puller) wait(ctx context.Context, key pullKey, f *pull) error {
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
	}
	p.mu.Lock()
	f.waiters--
	alone := f.waiters == 0
	if alone && p.inFlight[key] == f {
		delete(p.inFlight, key)
	}
	p.mu.Unlock()
	if alone {
		f.cancel()
		<-f.done // soon: it is cancelled
	}
	return ctx.Err()
}

// join returns the pull of that key, made now if there is none. The caller must call start
// and then wait.
func (p *puller) join(key pullKey, known uint64, logins []*v1.AuthConfig, sandbox *v1.PodSandboxConfig) (f *pull, start func(context.Context), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f := p.inFlight[key]; f != nil {
		f.waiters++
		return f, func(context.Context) {}, nil
	}
	now := time.Now()
	p.forget(now)
	if a := p.landed[key.landing()]; known != ignorePreviousPulls && a.number > known && p.c.access.knows(a.image, key, logins) {
		return &pull{image: a.image, landed: true}, nil, nil
	}
	if was := p.failed[key]; was != nil && now.Before(was.until) {
		return nil, nil, was.backOff(key.ref, now)
	}
	f = &pull{done: make(chan struct{}), waiters: 1}
	before := p.last[key.ref]
	p.inFlight[key], p.last[key.ref] = f, f
	return f, func(ctx context.Context) {
		// The pull outlives the one that asked first if others wait too.
		run, cancel := context.WithCancel(context.WithoutCancel(ctx))
		f.cancel = cancel // read by the last waiter: this caller, or one that locks mu after it
		go p.run(run, f, before, key, logins, sandbox)
	}, nil
}

// forget drops failures that are too old to count, and arrivals that no caller can have
// missed any more.
func (p *puller) forget(now time.Time) {
	for key, a := range p.landed {
		if now.Sub(a.at) > p.c.cfg.Timeout {
			delete(p.landed, key)
		}
	}
	for key, f := range p.failed {
		if now.Sub(f.until) > 2*p.c.cfg.Pulls.MaxBackOff {
			delete(p.failed, key)
		}
	}
}

func (p *puller) run(ctx context.Context, f *pull, before *pull, key pullKey, logins []*v1.AuthConfig, sandbox *v1.PodSandboxConfig) {
	defer f.cancel()
	image, err := p.fetch(ctx, before, key, logins, sandbox)
	p.mu.Lock()
	if p.inFlight[key] == f {
		delete(p.inFlight, key)
	}
	if p.last[key.ref] == f {
		delete(p.last, key.ref)
	}
	switch {
	case err == nil:
		delete(p.failed, key)
		p.count++
		p.landed[key.landing()] = completedPull{p.count, image, time.Now()}
	case ctx.Err() == nil:
		err = p.failure(key, err)
	}
	p.mu.Unlock()
	f.image, f.err = image, err
	close(f.done)
}

// failure notes a failed pull. p.mu is held.
func (p *puller) failure(key pullKey, err error) error {
	wait := p.c.cfg.Pulls.BackOff
	if was := p.failed[key]; was != nil {
		wait = min(2*was.wait, p.c.cfg.Pulls.MaxBackOff)
	}
	now := time.Now()
	f := &pullFailure{err: err, wait: wait, fresh: now.Add(min(wait/2, p.c.cfg.Pulls.BackOff)), until: now.Add(wait)}
	p.failed[key] = f
	return &backingOff{until: f.fresh, error: f.isReported()}
}

func (f *pullFailure) isReported() error { return &reasonError{pullReason(f.err), f.err} }

// backOff is the error of an image in its back-off.
func (f *pullFailure) backOff(ref string, now time.Time) error {
	if now.Before(f.fresh) {
		return &backingOff{until: f.fresh, waiting: true, error: f.isReported()}
	}
	return &backingOff{until: f.until, waiting: true, error: &reasonError{
		reasonPullBackOff, fmt.Errorf("back-off pulling image %q: %w", ref, f.err),
	}}
}

// reasonPullBackOff is what statuses have for an image that is tried for later.
const reasonPullBackOff = "ImagePullBackOff"

// pullReason is the word that statuses have for a failed pull. Runtimes tell
// some of them at the beginning of their messages.
func pullReason(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		for _, reason := range []string{"RegistryUnavailable", "SignatureValidationFailed"} {
			if strings.Contains(e.status.Message(), reason) {
				return reason
			}
		}
	}
	return "ErrImagePull"
}

// fetch waits for its turn and pulls, with one login after the other until one
// is good.
func (p *puller) fetch(ctx context.Context, before *pull, key pullKey, logins []*v1.AuthConfig, sandbox *v1.PodSandboxConfig) (string, error) {
	if before != nil {
		select {
		case <-before.done:
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	if err := p.slots.Acquire(ctx, 1); err != nil {
		return "", err
	}
	defer p.slots.Release(1)
	if err := p.rate.Wait(ctx); err != nil {
		return "", err
	}
	if len(logins) == 0 {
		return p.c.access.attempt(ctx, key, nil, sandbox)
	}
	var errs []error
	for _, auth := range logins {
		image, err := p.c.access.attempt(ctx, key, auth, sandbox)
		if err == nil {
			return image, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil || errors.Is(err, runtime.ErrUnavailable) {
			break
		}
	}
	return "", errors.Join(errs...)
}

// pullImage pulls an image with one login. Neither the error nor the hooks get the
// login.
func (c *Client) pullImage(ctx context.Context, key pullKey, auth *v1.AuthConfig, sandbox *v1.PodSandboxConfig) (string, error) {
	scrubbed := func(ctx context.Context, req *v1.PullImageRequest, opts ...grpc.CallOption) (*v1.PullImageResponse, error) {
		resp, err := c.is.PullImage(ctx, req, opts...)
		if err != nil {
			st := status.Convert(err)
			err = status.Error(st.Code(), scrub(st.Message(), auth))
		}
		return resp, err
	}
	resp, err := do(ctx, c, "PullImage", key.ref, c.cfg.PullTimeout, scrubbed, &v1.PullImageRequest{
		Image: &v1.ImageSpec{Image: key.ref, RuntimeHandler: key.handler}, Auth: auth, SandboxConfig: sandbox,
	})
	return resp.GetImageRef(), err
}
