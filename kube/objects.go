package kube

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/podspec"
)

// Waits for an API server that does not answer.
const (
	objectTimeout = 10 * time.Second // for an object that is not known at all, or whose server answers for others
	storedTimeout = time.Second      // for one that is on disk
	objectsPeriod = time.Second      // of writing changed objects to disk, and of syncs because of them
	retryPeriod   = 30 * time.Second // of writing to disk what could not be written
	sweepPeriod   = 10 * time.Second // of forgetting what no pod refers to
	unusedAge     = 30 * time.Second // for which an object without a reference is kept
)

// errNoAnswer is wrapped by errors about a server that has neither answered nor failed.
var errNoAnswer = errors.New("the API server has not answered yet")

// ObjectsConfig describes Objects.
type ObjectsConfig struct {
	// Dir keeps objects and tokens for a start without the API server: absolute, 0700, its
	// files 0600. "": they are in memory only.
	Dir string
	// Pods returns the desired pods, and whether they are all known: what they refer to is
	// followed. Default: those of the agent with Options.
	Pods func() (desired []*corev1.Pod, synced bool)
	// Refs returns what else is kept for these pods. It may read files. Default: nothing;
	// Storage.SecretRefs is one.
	Refs func(pods []*corev1.Pod) []podspec.Ref
}

// Objects are the ConfigMaps and Secrets that pods refer to, and what else only the API
// server has for them: tokens, trust bundles, certificates and the variables of services. It implements
// podspec.Objects, podspec.Projections and podspec.Services.
//
//   - Each object is watched by its own name, as the Node authorizer wants it, from its
//     first use until no desired pod refers to it that has not ended. One that is immutable is not
//     watched if pods name it, and got once more when all that had it have ended: another one may
//     have its name.
//   - What is known is kept on disk. It is used while the API server does not answer, so
//     that a node that reboots without it starts its pods.
//   - Secrets, tokens and private keys occur in no error, log or event.
//
// Run does the work; the other methods may be called from any goroutine, and block until
// it runs and the API server has answered, for up to ten seconds.
type Objects struct {
	k        *Kube
	cfg      ObjectsConfig
	disk     objectDir
	tokens   *tokens
	services *services
	bundles  *trustBundles
	certs    *podCertificates

	mu       sync.Mutex      // guards the fields below; never held during I/O
	ctx      context.Context //nolint:containedctx // that of Run, for watches
	followed map[podspec.Ref]*followedObject
	wg       sync.WaitGroup
	running  chan struct{} // closed when ctx is set
}

var (
	_ podspec.Objects     = (*Objects)(nil)
	_ podspec.Projections = (*Objects)(nil)
	_ podspec.Services    = (*Objects)(nil)
)

// Objects returns the objects of the API server. It validates cfg and does no I/O.
func (k *Kube) Objects(cfg ObjectsConfig) (*Objects, error) {
	if cfg.Dir != "" && !filepath.IsAbs(cfg.Dir) {
		return nil, fmt.Errorf("kube: ObjectsConfig.Dir: %q must be an absolute path", cfg.Dir)
	}
	if cfg.Pods == nil {
		cfg.Pods = k.desiredPods
	}
	cfg.Pods = unended(cfg.Pods)
	o := &Objects{k: k, cfg: cfg, disk: objectDir(cfg.Dir), followed: map[podspec.Ref]*followedObject{}, running: make(chan struct{})}
	o.tokens = newTokens(k, o.disk)
	o.services = &services{k: k, disk: o.disk, synced: make(chan struct{}), running: o.running}
	o.certs = newPodCertificates(k, o.disk)
	o.bundles = &trustBundles{k: k, synced: make(chan struct{}), used: make(chan struct{})}
	return o, nil
}

// desiredPods returns those of the agent, and whether they are all known.
func (k *Kube) desiredPods() ([]*corev1.Pod, bool) {
	if a := k.getAgent(); a != nil {
		return a.Pods()
	}
	return nil, false
}

// unended returns those of the pods that have not ended. One that has needs nothing any more, but the API server
// may have it for as long as its Job.
func unended(all func() ([]*corev1.Pod, bool)) func() ([]*corev1.Pod, bool) {
	return func() (pods []*corev1.Pod, synced bool) {
		pods, synced = all()
		return slices.DeleteFunc(slices.Clone(pods), func(pod *corev1.Pod) bool { return podspec.IsTerminalPhase(pod.Status.Phase) }), synced
	}
}

// ServiceAccount returns a service account of pods of the node. It implements, with
// ServiceAccountTokenOf, credentialprovider.ServiceAccounts.
func (o *Objects) ServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	select {
	case <-o.running:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return readThrough(ctx, o.k, o.disk, accountRef(namespace, name), func(ctx context.Context) (*corev1.ServiceAccount, error) {
		return o.k.cfg.Client.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
	})
}

func accountRef(namespace, name string) podspec.Ref {
	return podspec.Ref{Kind: "ServiceAccount", Namespace: namespace, Name: name}
}

// Run follows objects until ctx is done, and returns nil then. It may be called once.
func (o *Objects) Run(ctx context.Context) error {
	if err := o.disk.prepare(); err != nil {
		return fmt.Errorf("kube: directory of objects: %w", err)
	}
	o.mu.Lock()
	o.ctx = ctx
	o.mu.Unlock()
	close(o.running)
	o.wg.Go(func() { o.services.run(ctx) })
	o.wg.Go(func() { o.bundles.run(ctx) })
	o.wg.Go(func() { o.certs.run(ctx) })
	ticker := time.NewTicker(objectsPeriod)
	defer ticker.Stop()
	defer o.wg.Wait()
	sweptAt := time.Now()
	for {
		select {
		case <-ctx.Done():
			o.save(time.Now().Add(retryPeriod)) // what came in the last second, or could not be written
			return nil
		case <-ticker.C:
		}
		o.save(time.Now())
		if now := time.Now(); now.Sub(sweptAt) >= sweepPeriod {
			o.sweep(now)
			sweptAt = now
		}
	}
}

// Object implements podspec.Objects.
func (o *Objects) Object(ctx context.Context, ref podspec.Ref) (podspec.Object, error) {
	if ref.Kind != podspec.ConfigMap && ref.Kind != podspec.Secret {
		return podspec.Object{}, fmt.Errorf("kind %q: %w", ref.Kind, podspec.ErrObjectNotFound)
	}
	stored, hasStored := o.disk.object(ref)
	timeout := objectTimeout
	if hasStored {
		timeout = o.k.answerTimeout()
	}
	wait, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	f := o.follow(wait, ref)
	if f != nil {
		select {
		case <-f.synced:
			o.noteUsers(f)
			return f.get()
		case <-wait.Done():
		}
	}
	switch {
	case ctx.Err() != nil:
		return podspec.Object{}, ctx.Err()
	case hasStored:
		o.k.noteUnanswered(timeout)
		if f != nil {
			f.noteFromDisk(stored.Version)
		}
		return stored, nil
	case f != nil && f.lastErr() != nil:
		return podspec.Object{}, fmt.Errorf("get %s %s/%s: %w", ref.Kind, ref.Namespace, ref.Name, f.lastErr())
	}
	return podspec.Object{}, fmt.Errorf("get %s %s/%s: %w", ref.Kind, ref.Namespace, ref.Name, errNoAnswer)
}

// follow returns the object, which is watched from then on; nil if Run does not run
// before ctx is done.
func (o *Objects) follow(ctx context.Context, ref podspec.Ref) *followedObject {
	select {
	case <-o.running:
	case <-ctx.Done():
		return nil
	}
	o.mu.Lock()
	previous := o.followed[ref]
	o.mu.Unlock()
	isNeeded, isNamed := previous == nil || o.isOutlived(previous), true
	if isNeeded {
		pods, _ := o.cfg.Pods()
		isNamed = len(usersOf(ref, pods)) > 0
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	f := o.followed[ref]
	if isNeeded && f == previous {
		f = nil
	}
	if f == nil && o.ctx.Err() == nil {
		f = newFollowedObject(ref, !isNamed)
		o.followed[ref] = f
		watch, cancel := context.WithCancel(o.ctx)
		f.stop = cancel
		follower := f.follower(o.k)
		o.wg.Go(func() { follower.run(watch) })
	}
	if f != nil {
		f.usedAt = time.Now()
	}
	return f
}

// isOutlived reports whether an object is immutable and all pods that had it have ended while others refer to it.
// As it is not watched, it may have been deleted since, and created with other content.
func (o *Objects) isOutlived(f *followedObject) bool {
	o.mu.Lock()
	users := f.users
	o.mu.Unlock()
	if users == nil {
		return false
	}
	pods, _ := o.cfg.Pods()
	return !slices.ContainsFunc(pods, func(pod *corev1.Pod) bool { return users[pod.UID] }) && len(usersOf(f.ref, pods)) > 0
}

// noteUsers notes which pods have an immutable object, once.
func (o *Objects) noteUsers(f *followedObject) {
	if !f.isImmutable() {
		return
	}
	o.mu.Lock()
	noted := f.users != nil
	o.mu.Unlock()
	if noted {
		return
	}
	pods, _ := o.cfg.Pods()
	users := usersOf(f.ref, pods)
	o.mu.Lock()
	defer o.mu.Unlock()
	f.users = users
}

// usersOf returns those of the pods that refer to an object.
func usersOf(ref podspec.Ref, pods []*corev1.Pod) map[types.UID]bool {
	users := map[types.UID]bool{}
	for _, pod := range pods {
		if slices.ContainsFunc(podspec.ObjectRefs(pod), func(r podspec.ObjectRef) bool { return r.Ref == ref }) {
			users[pod.UID] = true
		}
	}
	return users
}

// save writes what has changed to disk, and has the pods synced that refer to it, so that
// their volumes have it. What could not be written is tried later.
func (o *Objects) save(now time.Time) {
	o.mu.Lock()
	var changed, fixed []*followedObject
	updates := map[podspec.Ref]bool{}
	for ref, f := range o.followed {
		isChanged, isUpdated := f.takeChanged(now)
		if isChanged {
			changed = append(changed, f)
		}
		if isUpdated {
			updates[ref] = true
		}
		if f.users == nil && f.isImmutable() { // it has become so, and no pod has asked for it since
			fixed = append(fixed, f)
		}
	}
	o.mu.Unlock()
	for _, f := range fixed {
		o.noteUsers(f)
	}
	o.requeueUsers(updates)
	for _, f := range changed {
		obj, err := f.get()
		if errors.Is(err, podspec.ErrObjectNotFound) {
			err = o.disk.removeObject(f.ref)
		} else {
			err = o.disk.writeObject(obj)
		}
		if err != nil {
			f.retry(now.Add(retryPeriod))
			o.k.cfg.Logger.Warn("object not kept on disk", logattr.Err(err))
		}
	}
	o.services.save(now)
}

// requeueUsers has the pods synced that refer to one of these objects.
func (o *Objects) requeueUsers(updates map[podspec.Ref]bool) {
	if len(updates) == 0 {
		return
	}
	pods, _ := o.cfg.Pods()
	for _, pod := range pods {
		if slices.ContainsFunc(podspec.ObjectRefs(pod), func(r podspec.ObjectRef) bool { return updates[r.Ref] }) {
			o.k.requeue(pod.UID)
		}
	}
}

// sweep forgets the objects and tokens to which no desired pod refers. While pods are not all known, it
// leaves those on disk alone.
func (o *Objects) sweep(now time.Time) {
	pods, synced := o.cfg.Pods()
	refs, uids := map[podspec.Ref]bool{}, map[types.UID]bool{}
	for _, pod := range pods {
		uids[pod.UID] = true
		refs[accountRef(pod.Namespace, pod.Spec.ServiceAccountName)] = true
		for _, r := range podspec.ObjectRefs(pod) {
			refs[r.Ref] = true
		}
	}
	if o.cfg.Refs != nil {
		for _, ref := range o.cfg.Refs(pods) {
			refs[ref] = true
		}
	}
	o.mu.Lock()
	for ref, f := range o.followed {
		switch {
		case refs[ref]:
		case now.Sub(f.usedAt) > unusedAge:
			f.stop()
			delete(o.followed, ref)
		default:
			refs[ref] = true
		}
	}
	o.mu.Unlock()
	o.tokens.keep(uids)
	o.certs.keep(uids)
	if !synced {
		return
	}
	if err := o.disk.keep(refs, uids); err != nil {
		o.k.cfg.Logger.Warn("unused objects not removed from disk", logattr.Err(err))
	}
}
