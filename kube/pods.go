package kube

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/sleep"
	"github.com/sublet-dev/agent/podsource"
)

// Pods is the source of the pods that are bound to the node. They are not static: the
// UID that the API server gave a pod is its identity, and a pod is updated in place.
// Mirror pods are left out.
//
// It lists and watches with bookmarks, as a stream where the server offers that, and
// continues where a broken watch ended. A server that does not answer is asked again
// after 0.8 s at first and every 5 to 7.5 s at last; the pods stay meanwhile, and the
// reason is a source error that wraps podsource.ErrUnavailable. Use podsource.Cached for a
// node that has to start its pods without its API server.
type Pods struct {
	k       *Kube
	watched atomic.Bool
}

var (
	_ podsource.StaticSource   = (*Pods)(nil)
	_ podsource.PodsOnlySource = (*Pods)(nil)
)

// Pods returns the source of the pods that are bound to the node. All calls return
// the same source, which can be watched once at a time.
func (k *Kube) Pods() *Pods { return k.pods }

// Bounds of the back-off before the API server is asked again. The upper one is less than
// the kubelet's 30 s, so that a node notices soon that the server is back.
const (
	minPodsBackOff = 800 * time.Millisecond
	maxPodsBackOff = 5 * time.Second
	podsJitter     = 0.5 // largest random increase
)

// Static implements podsource.StaticSource.
func (p *Pods) Static() bool { return false }

// PodsOnly implements podsource.PodsOnlySource: Objects has the ConfigMaps and Secrets.
func (p *Pods) PodsOnly() bool { return true }

// Watch implements podsource.Source.
func (p *Pods) Watch(ctx context.Context, deliver func(podsource.Set)) error {
	if p.watched.Swap(true) {
		return errors.New("kube: pods are watched already")
	}
	defer p.watched.Store(false)
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	reflector := p.reflector()
	wg.Go(func() { p.run(klog.NewContext(ctx, logr.FromSlogHandler(p.k.cfg.Logger.Handler())), reflector) })
	if _, synced := p.k.store.mirrors(); synced {
		deliver(p.k.store.set()) // of an earlier Watch
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.k.store.changed:
			deliver(p.k.store.set())
		}
	}
}

func (p *Pods) reflector() *cache.Reflector {
	p.k.store.UpdateResourceVersion("") // the first list of a reflector may be of any time
	client, store := p.k.cfg.Client.CoreV1().Pods(metav1.NamespaceAll), p.k.store
	mine := fields.OneTermEqualSelector("spec.nodeName", p.k.cfg.NodeName).String()
	lw := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = mine
			list, err := client.List(ctx, o)
			p.record(ctx, o, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = mine
			w, err := client.Watch(ctx, o)
			p.record(ctx, o, err)
			return w, asFinal(o, err)
		},
	}, p.k.cfg.Client)
	logger := logr.FromSlogHandler(p.k.cfg.Logger.Handler())
	return cache.NewReflectorWithOptions(lw, &corev1.Pod{}, store, cache.ReflectorOptions{
		Name: "pods", Logger: &logger,
		Backoff: &wait.Backoff{Duration: minPodsBackOff, Cap: maxPodsBackOff, Steps: 10, Factor: 2, Jitter: podsJitter},
	})
}

// run lists and watches until ctx is done. It is the loop of the reflector, with another
// handling of errors: that one has global state.
func (p *Pods) run(ctx context.Context, r *cache.Reflector) {
	backOff := minPodsBackOff
	for ctx.Err() == nil {
		startTime := time.Now()
		if err := r.ListAndWatchWithContext(ctx); err != nil && ctx.Err() == nil && !p.k.store.failed() { // else a source error
			p.k.cfg.Logger.Warn("listing and watching pods failed", logattr.Err(err))
		}
		if time.Since(startTime) > maxPodsBackOff {
			backOff = minPodsBackOff
		}
		_ = sleep.For(ctx, wait.Jitter(backOff, podsJitter))
		backOff = min(2*backOff, maxPodsBackOff)
	}
}

// record makes the outcome of a request a source error, or ends one.
func (p *Pods) record(ctx context.Context, o metav1.ListOptions, err error) {
	switch {
	case err == nil:
		p.k.store.fail(nil)
	case ctx.Err() != nil, apierrors.IsResourceExpired(err), apierrors.IsGone(err): // listed again at once
	case o.SendInitialEvents != nil && apierrors.IsInvalid(err): // a server without watch-list
	default:
		p.k.store.fail(fmt.Errorf("%w: list and watch pods: %w", podsource.ErrUnavailable, withoutQuery(err)))
	}
}

// withoutQuery returns the error of a request without the query of its URL, which is another one
// at each attempt.
func withoutQuery(err error) error {
	e, ok := errors.AsType[*url.Error](err)
	if !ok {
		return err
	}
	address, _, _ := strings.Cut(e.URL, "?")
	return &url.Error{Op: e.Op, URL: address, Err: e.Err}
}
