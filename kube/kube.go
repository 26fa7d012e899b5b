package kube

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Kube is the connection of one node to its API server. Its methods may be called from
// any goroutine.
type Kube struct {
	cfg      Config
	store    *podStore
	pods     *Pods
	statuses *Statuses
	mirrors  *mirrorPods
	events   *Events
	started  atomic.Bool

	mu         sync.Mutex // guards the fields below
	agent      nodeAgent
	unanswered time.Time            // when a request was last not answered in time; zero: never
	addresses  []corev1.NodeAddress // of the Node, as last received
}

// nodeAgent is what a Kube needs to know of its agent.
type nodeAgent interface {
	// Resend has the last status of a pod sent again.
	Resend(uid types.UID)
	// Requeue has a pod synced soon. The pod may be unknown.
	Requeue(uid types.UID)
	// Pods returns the desired pods, and whether they are all known.
	Pods() (desired []*corev1.Pod, synced bool)
	// MayBeDesired reports whether the source of a pod that is not desired may still deliver
	// it, because the manifest is invalid, for example.
	MayBeDesired(pod *corev1.Pod) bool
}

// New returns a Kube. It checks cfg and does no I/O.
func New(cfg Config) (*Kube, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	k := &Kube{cfg: cfg, store: newPodStore(cfg.NodeName)}
	k.pods = &Pods{k: k}
	k.statuses = &Statuses{k: k, limiter: rate.NewLimiter(rate.Limit(cfg.StatusQPS), cfg.StatusBurst), sent: map[types.UID]sentPod{}}
	k.mirrors = &mirrorPods{
		k: k, owners: map[types.NamespacedName]types.UID{}, reported: map[types.UID]bool{}, rejected: map[types.UID]time.Time{},
	}
	k.events = &Events{k: k, wake: make(chan struct{}, 1), correlator: newCorrelator()}
	return k, nil
}

// Run writes events, and has statuses and mirror pods sent again that others have
// changed or deleted, until ctx is done, and then returns nil. It may be called once. An
// agent with Options calls it.
func (k *Kube) Run(ctx context.Context) error {
	if k.started.Swap(true) {
		return errors.New("kube: Run was called twice")
	}
	r := &reconciler{k: k, wake: make(chan struct{}, 1), due: map[types.UID]time.Time{}, limits: map[types.UID]*rate.Limiter{}}
	k.store.setOnEvent(r.changed)
	var wg sync.WaitGroup
	wg.Go(func() { k.events.run(ctx) })
	wg.Go(func() { r.run(ctx) })
	wg.Wait()
	return nil
}

func (k *Kube) setAgent(a nodeAgent) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.agent = a
}

func (k *Kube) getAgent() nodeAgent {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.agent
}

func (k *Kube) resend(uid types.UID) {
	if a := k.getAgent(); a != nil {
		a.Resend(uid)
	}
}

func (k *Kube) requeue(uid types.UID) {
	if a := k.getAgent(); a != nil {
		a.Requeue(uid)
	}
}

// isDesired reports whether a source contains the pod. Without an agent, each pod that
// has a status is taken to be desired.
func (k *Kube) isDesired(uid types.UID) bool {
	a := k.getAgent()
	if a == nil {
		return true
	}
	desired, synced := a.Pods()
	for _, pod := range desired {
		if pod.UID == uid {
			return true
		}
	}
	return !synced
}

// undesired returns those of the pods that are in no source, and that none may still deliver.
func (k *Kube) undesired(pods []*corev1.Pod) (undesired []*corev1.Pod) {
	a := k.getAgent()
	if a == nil || len(pods) == 0 {
		return nil
	}
	desired, synced := a.Pods()
	if !synced {
		return nil
	}
	names := make(map[types.NamespacedName]bool, len(desired))
	for _, pod := range desired {
		names[keyOf(pod)] = true
	}
	for _, pod := range pods {
		if !names[keyOf(pod)] && !a.MayBeDesired(pod) {
			undesired = append(undesired, pod)
		}
	}
	return undesired
}
