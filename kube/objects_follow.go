package kube

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
)

// followedObject is one ConfigMap or Secret that is watched. It is the store of a
// reflector.
type followedObject struct {
	ref    podspec.Ref
	synced chan struct{} // closed when the API server has answered
	// isUnnamed is set for what no pod names, as the Secret of a PersistentVolume. It is not known which pods have it, so that it
	// is watched even if it is immutable.
	isUnnamed bool

	stop   context.CancelFunc
	usedAt time.Time          // guarded by Objects.mu
	users  map[types.UID]bool // guarded by Objects.mu; read-only: pods that had it when it was got, if it is immutable

	mu      sync.Mutex // guards the fields below
	object  *podspec.Object
	fixed   bool      // it is not watched any more: it is immutable
	known   bool      // synced is closed
	changed bool      // since takeChanged
	updated bool      // the same, after it was known
	retryAt time.Time // the first takeChanged after a failed write
	err     error

	fromDisk *string // guarded by mu: version that a pod got because the API server had not answered; nil: none
}

func newFollowedObject(ref podspec.Ref, isUnnamed bool) *followedObject {
	return &followedObject{ref: ref, synced: make(chan struct{}), isUnnamed: isUnnamed}
}

func (f *followedObject) follower(k *Kube) *follower {
	if f.ref.Kind == podspec.Secret {
		return newFollower(k, k.cfg.Client.CoreV1().Secrets(f.ref.Namespace), &corev1.Secret{}, f.ref.Name, f, f.fail)
	}
	return newFollower(k, k.cfg.Client.CoreV1().ConfigMaps(f.ref.Namespace), &corev1.ConfigMap{}, f.ref.Name, f, f.fail)
}

// get returns the object; it is known.
func (f *followedObject) get() (podspec.Object, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.object == nil {
		return podspec.Object{}, fmt.Errorf("%s %s/%s: %w", f.ref.Kind, f.ref.Namespace, f.ref.Name, podspec.ErrObjectNotFound)
	}
	return *f.object, nil
}

func (f *followedObject) lastErr() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

func (f *followedObject) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

// takeChanged reports whether the object is to be written because it has changed since the
// last call, and whether pods may have an older version of it.
func (f *followedObject) takeChanged(now time.Time) (changed, updated bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if updated = f.updated; !now.Before(f.retryAt) {
		changed, f.changed = f.changed, false
	}
	f.updated = false
	return changed, updated
}

// retry makes a write that has failed due again.
func (f *followedObject) retry(at time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changed, f.retryAt = true, at
}

// convert returns the object that this is about; ok is false for another.
func (f *followedObject) convert(obj any) (object podspec.Object, immutable, ok bool) {
	switch o := obj.(type) {
	case *corev1.ConfigMap:
		object, immutable = podspec.FromConfigMap(o), o.Immutable != nil && *o.Immutable
	case *corev1.Secret:
		object, immutable = podspec.FromSecret(o), o.Immutable != nil && *o.Immutable
	}
	return object, immutable, object.Ref == f.ref
}

func (f *followedObject) isImmutable() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fixed
}

// noteFromDisk notes that a pod has the version that was on disk. It is an older one if the API
// server answers with another.
func (f *followedObject) noteFromDisk(version string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fromDisk = &version
	if f.known && (f.object == nil || f.object.Version != version) {
		f.updated = true
	}
}

func (f *followedObject) set(object *podspec.Object, immutable bool) {
	immutable = immutable && !f.isUnnamed
	f.mu.Lock()
	switch {
	case f.known:
		f.updated = f.updated || (f.object == nil) != (object == nil) || object != nil && f.object.Version != object.Version
	case f.fromDisk != nil:
		f.updated = object == nil || object.Version != *f.fromDisk
	}
	if f.object == nil || object == nil || f.object.Version != object.Version {
		f.object, f.changed = object, true
	}
	f.err, f.fixed = nil, f.fixed || immutable
	if !f.known {
		f.known = true
		close(f.synced)
	}
	f.mu.Unlock()
	if immutable {
		f.stop()
	}
}

// Add implements cache.ReflectorStore.
func (f *followedObject) Add(obj any) error { return f.Update(obj) }

// Update implements cache.ReflectorStore.
func (f *followedObject) Update(obj any) error {
	if object, immutable, ok := f.convert(obj); ok {
		f.set(&object, immutable)
	}
	return nil
}

// Delete implements cache.ReflectorStore.
func (f *followedObject) Delete(obj any) error {
	if _, _, ok := f.convert(obj); ok {
		f.set(nil, false)
	}
	return nil
}

// Replace implements cache.ReflectorStore.
func (f *followedObject) Replace(list []any, _ string) error {
	for _, obj := range list {
		if object, immutable, ok := f.convert(obj); ok {
			f.set(&object, immutable)
			return nil
		}
	}
	f.set(nil, false)
	return nil
}

// Resync implements cache.ReflectorStore.
func (f *followedObject) Resync() error { return nil }
