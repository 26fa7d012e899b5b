package kube

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/sublet-dev/agent/internal/sleep"
)

// Back-off of a list and watch that fails.
const (
	minFollowBackOff = 200 * time.Millisecond
	maxFollowBackOff = 30 * time.Second
	followJitter     = 0.5
)

// namedWatchTimeout is how long the watch of one object lasts at least, as with a kubelet: a node may have
// thousands, and each is requested again at its end.
const namedWatchTimeout = 30 * time.Minute

// resourceClient lists and watches one kind of object.
type resourceClient[L runtime.Object] interface {
	List(ctx context.Context, o metav1.ListOptions) (L, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

// follower lists and watches objects into a store.
type follower struct {
	reflector *cache.Reflector
	log       logr.Logger
	failed    func(error)
}

// newFollower returns the follower of the object with that name, or of all if name is "".
// failed gets each error of a request; it may be nil.
func newFollower[L runtime.Object](k *Kube, client resourceClient[L], object runtime.Object, name string, store cache.ReflectorStore, failed func(error)) *follower {
	selector, watchTimeout := fields.Everything(), time.Duration(0)
	if name != "" {
		selector, watchTimeout = fields.OneTermEqualSelector(metav1.ObjectNameField, name), namedWatchTimeout
	}
	return newSelectingFollower(k, client, object, selector, watchTimeout, store, failed)
}

// newSelectingFollower is newFollower for all objects that a selector of fields selects. A watch lasts for watchTimeout
// at least; 0: as reflectors have it.
func newSelectingFollower[L runtime.Object](
	k *Kube, client resourceClient[L], object runtime.Object, selected fields.Selector, watchTimeout time.Duration, store cache.ReflectorStore, failed func(error),
) *follower {
	f, selector := &follower{log: logr.FromSlogHandler(k.cfg.Logger.Handler()), failed: failed}, selected.String()
	lw := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			list, err := client.List(ctx, o)
			f.record(ctx, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			w, err := client.Watch(ctx, o)
			f.record(ctx, err)
			return w, asFinal(o, err)
		},
	}, k.cfg.Client)
	f.reflector = cache.NewReflectorWithOptions(lw, object, store, cache.ReflectorOptions{
		Name: fmt.Sprintf("%T", object), Logger: &f.log,
		Backoff:         &wait.Backoff{Duration: minFollowBackOff, Cap: maxFollowBackOff, Steps: 10, Factor: 2, Jitter: followJitter},
		MinWatchTimeout: watchTimeout,
	})
	return f
}

// asFinal has a reflector return the error of a watch with initial events. Of some errors it would wait for the end
// of its back-off otherwise, also after the end of the context.
func asFinal(o metav1.ListOptions, err error) error {
	if err == nil || o.SendInitialEvents == nil {
		return err
	}
	if utilnet.IsConnectionRefused(err) || apierrors.IsTooManyRequests(err) {
		return errors.New(err.Error()) // not of the type for which it waits
	}
	return err
}

func (f *follower) record(ctx context.Context, err error) {
	if err != nil && f.failed != nil && ctx.Err() == nil {
		f.failed(err)
	}
}

// run follows until ctx is done.
func (f *follower) run(ctx context.Context) {
	ctx = klog.NewContext(ctx, f.log)
	backOff := minFollowBackOff
	for ctx.Err() == nil {
		startTime := time.Now()
		_ = f.reflector.ListAndWatchWithContext(ctx) // its requests record their errors
		if time.Since(startTime) > maxFollowBackOff {
			backOff = minFollowBackOff
		}
		_ = sleep.For(ctx, wait.Jitter(backOff, followJitter)) // the loop ends with ctx
		backOff = min(2*backOff, maxFollowBackOff)
	}
}
