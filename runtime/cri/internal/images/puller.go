package images

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
)

// Service is the image service of a runtime.
type Service interface {
	// ImageStatus returns the image that ref names, or nil when it is not there.
	ImageStatus(ctx context.Context, ref, handler string) (*v1.Image, error)
	ListImages(ctx context.Context) ([]*v1.Image, error)
	// PullImage pulls an image and returns what the runtime says it is: its id or a
	// reference. Errors do not contain the login.
	PullImage(ctx context.Context, req *v1.PullImageRequest) (string, error)
}

// Config configures a Puller. All fields but RecordFile are required.
type Config struct {
	Service Service
	Limits  Limits
	// ArrivalPeriod is how long a caller may take from Arrivals to Pull.
	ArrivalPeriod time.Duration
	// RecordFile keeps which image was pulled with which logins, of which it holds keyed
	// hashes only. "": only memory does.
	RecordFile string
	// Exempt reports whether every pod may use the images of a repository that are
	// present. preloaded says that no pull brought the image. It must be at least as
	// generous with preloaded.
	Exempt func(repository string, preloaded bool) bool
	Logger *slog.Logger
}

// Limits bounds image pulls.
type Limits struct {
	MaxParallel int
	QPS         float64 // negative: no limit
	Burst       int
	BackOff     time.Duration // after the first failure, then doubling
	MaxBackOff  time.Duration
}

// Request is a request of a pod for an image. A Keyring makes it.
type Request struct {
	Ref string    // as the runtime gets it
	Pod types.UID // whose back-off applies
	// Annotations are the pod's, for runtimes that choose what they pull by them. They do not make two pulls different: pods of one
	// kind differ in them, those of an indexed Job for example, and would no longer share a pull. A shared one has those of the pod
	// that began it, as it has its sandbox configuration, which contains them too. To a runtime that chooses by them the pods of a
	// node have one image of a reference in any case: that of the last pull.
	Annotations         map[string]string
	repository, handler string
	logins              []*v1.AuthConfig          // of the pod, the best match first
	nodeLogins          []*v1.AuthConfig          // of the node
	accounts            map[*v1.AuthConfig]string // by login of the node: the service account that it is for, or ""
}

// Puller pulls images: each reference once at a time regardless of how many wait for it,
// few in parallel in the order of the requests, and after a failure not before the back-off
// of the pod ends, which a new pod does not have. A pull without a waiter is cancelled. It
// records with which logins each image was pulled, and decides by that who may use it. Its
// methods may be called from any goroutine.
type Puller struct {
	cfg     Config
	records *records
	slots   *semaphore.Weighted // first come, first served
	rate    *rate.Limiter

	mu       sync.Mutex // guards the rest
	inFlight map[pullKey]*pull
	last     map[string]*pull // by reference: who must end before the next begins
	failed   map[failureKey]*pullFailure
	landed   map[pullTarget]completedPull // pulls that worked, for a while
	count    uint64                       // of them
	swept    time.Time                    // when failed was gone through
}

// pullKey is what makes two pulls the same: with other logins the answer can be
// another one. Of the node's logins the users count and not their secrets: plugins may have
// new ones at each request, for which no back-off would ever apply.
type pullKey struct{ ref, logins, handler string }

// pullTarget is the result of a pull on the node, regardless of the credentials.
type pullTarget struct{ ref, handler string }

func (r *Request) key() pullKey {
	users := slices.Clone(r.logins)
	for _, auth := range r.nodeLogins {
		users = append(users, &v1.AuthConfig{Username: auth.GetUsername(), IdentityToken: r.accounts[auth]}) // whom it is for
	}
	return pullKey{r.Ref, fingerprint(users), r.handler}
}

// grant is who may use an image that was pulled: the pods that have a login, or those of a
// service account. The zero grant is for all pods.
type grant struct {
	auth    *v1.AuthConfig
	account string
}

// grantOf returns who may use an image that was pulled with a login.
func (r *Request) grantOf(auth *v1.AuthConfig) grant {
	if account, ok := r.accounts[auth]; ok {
		return grant{account: account}
	}
	return grant{auth: auth}
}

// grants returns what the pod may use images by.
func (r *Request) grants() []grant {
	var out []grant
	for _, auth := range r.logins {
		out = append(out, grant{auth: auth})
	}
	for _, account := range r.accounts {
		if account != "" {
			out = append(out, grant{account: account})
		}
	}
	return out
}

func (r *Request) target() pullTarget { return pullTarget{r.Ref, r.handler} }

// completedPull is the last pull of an image that worked.
type completedPull struct {
	number uint64
	image  string
	at     time.Time
}

type pull struct {
	done    chan struct{}
	cancel  context.CancelFunc
	waiters int                    // guarded by Puller.mu
	pods    map[types.UID]struct{} // that have waited; guarded by Puller.mu

	image    string        // set before done is closed
	duration time.Duration // of the calls alone; set before done is closed
	err      error
	failures map[types.UID]*PullError // by pod, whose next tries differ

	landed bool // it was over before it was asked for; there is no more to it
}

// New returns a Puller. It makes no call and reads no file.
func New(cfg Config) *Puller {
	limit := rate.Limit(cfg.Limits.QPS)
	if limit < 0 {
		limit = rate.Inf
	}
	p := &Puller{
		cfg: cfg, slots: semaphore.NewWeighted(int64(cfg.Limits.MaxParallel)), rate: rate.NewLimiter(limit, cfg.Limits.Burst),
		inFlight: make(map[pullKey]*pull), last: make(map[string]*pull), failed: make(map[failureKey]*pullFailure),
		landed: make(map[pullTarget]completedPull),
	}
	p.records = newRecords(&p.cfg)
	return p
}

// MayUse reports whether a pod may use an image that is present, by its id. If that cannot
// be found out it may not.
func (p *Puller) MayUse(ctx context.Context, id string, req Request) (bool, error) {
	return p.records.mayUse(ctx, id, req)
}

// IgnoreArrivals as the number of arrivals known to a Pull says that what arrived before
// is of no use to it.
const IgnoreArrivals = math.MaxUint64

// Arrivals is the number of successful pulls so far. A caller reads it before the image
// status, and passes it to Pull if the image is missing.
func (p *Puller) Arrivals() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count
}

// Pull pulls an image and returns its id, and how long that took when it was its turn. observe is called if a pull is under way or
// starts now, as against a back-off in progress and an image that has arrived since the
// caller looked for it, when there were so many arrivals. It must call its argument, which
// pulls, and return its error. A failure of the pull is a PullError.
func (p *Puller) Pull(req Request, arrivals uint64, sandbox *v1.PodSandboxConfig, observe func(func(context.Context) error) error) (image string, duration time.Duration, err error) {
	key := req.key()
	f, start, err := p.join(key, req, arrivals, sandbox)
	if err != nil {
		return "", 0, err
	}
	if !f.landed {
		err = observe(func(ctx context.Context) error { start(ctx); return p.wait(ctx, key, req.Pod, f) })
	}
	if err != nil {
		return "", 0, err
	}
	return f.image, f.duration, nil
}

// wait waits for a pull. A pull without waiters is cancelled.
func (p *Puller) wait(ctx context.Context, key pullKey, pod types.UID, f *pull) error {
	select {
	case <-f.done:
		if failed := f.failures[pod]; failed != nil {
			return failed
		}
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

// join returns the pull of a request, made now if there is none. The caller must call start
// and then wait.
func (p *Puller) join(key pullKey, req Request, arrivals uint64, sandbox *v1.PodSandboxConfig) (f *pull, start func(context.Context), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.forget(now)
	was := p.failed[failureKey{key, req.Pod}]
	mustWait := was != nil && now.Before(was.until)
	if f := p.inFlight[key]; f != nil && !mustWait {
		f.waiters++
		f.pods[req.Pod] = struct{}{}
		return f, func(context.Context) {}, nil
	}
	if a := p.landed[req.target()]; arrivals != IgnoreArrivals && a.number > arrivals && p.records.loadedMayUse(a.image, req) {
		return &pull{image: a.image, landed: true}, nil, nil
	}
	if mustWait {
		return nil, nil, was.backOff(req.Ref, now)
	}
	f = &pull{done: make(chan struct{}), waiters: 1, pods: map[types.UID]struct{}{req.Pod: {}}}
	before := p.last[req.Ref]
	p.inFlight[key], p.last[req.Ref] = f, f
	return f, func(ctx context.Context) {
		// The pull outlives the one that asked first if others wait too.
		run, cancel := context.WithCancel(context.WithoutCancel(ctx))
		f.cancel = cancel // read by the last waiter: this caller, or one that locks mu after it
		go p.run(run, f, before, key, req, sandbox)
	}, nil
}

// forget drops failures that are too old to count, and arrivals that no caller can have
// missed any more. Of many pods there are many failures, so that these are not gone through each time.
func (p *Puller) forget(now time.Time) {
	for target, a := range p.landed {
		if now.Sub(a.at) > p.cfg.ArrivalPeriod {
			delete(p.landed, target)
		}
	}
	if now.Sub(p.swept) < time.Second {
		return
	}
	p.swept = now
	for key, f := range p.failed {
		if now.Sub(f.until) > 2*p.cfg.Limits.MaxBackOff {
			delete(p.failed, key)
		}
	}
}

func (p *Puller) run(ctx context.Context, f *pull, before *pull, key pullKey, req Request, sandbox *v1.PodSandboxConfig) {
	defer f.cancel()
	image, err := p.fetch(ctx, f, before, req, sandbox)
	p.mu.Lock()
	if p.inFlight[key] == f {
		delete(p.inFlight, key)
	}
	if p.last[req.Ref] == f {
		delete(p.last, req.Ref)
	}
	switch {
	case err == nil:
		for pod := range f.pods {
			delete(p.failed, failureKey{key, pod})
		}
		p.count++
		p.landed[req.target()] = completedPull{p.count, image, time.Now()}
	case ctx.Err() == nil:
		f.failures = p.failure(key, f.pods, err)
	}
	p.mu.Unlock()
	f.image, f.err = image, err
	close(f.done)
}

// fetch waits for its turn and pulls, with one login after the other until one
// is good.
func (p *Puller) fetch(ctx context.Context, f, before *pull, req Request, sandbox *v1.PodSandboxConfig) (string, error) {
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
	defer func(startTime time.Time) { f.duration = time.Since(startTime) }(time.Now())
	logins := slices.Concat(req.logins, req.nodeLogins)
	if len(logins) == 0 {
		return p.records.attempt(ctx, req, nil, sandbox)
	}
	var errs []error
	for _, auth := range logins {
		image, err := p.records.attempt(ctx, req, auth, sandbox)
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
