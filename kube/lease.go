package kube

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/sleep"
)

// lease renews the lease of a node. Its run owns all fields but those under mu.
type lease struct {
	client   coordinationclient.LeaseInterface
	name     string
	duration time.Duration
	log      *slog.Logger
	owner    func() *corev1.Node // the Node object, nil while it is not known

	latest  *coordinationv1.Lease // as the API server last had it
	sent    []time.Time           // the renew times that were sent since, without an answer
	foreign int                   // renewals of ours in a row that another was before

	mu        sync.Mutex // guards contended
	contended time.Time  // when another was last known to renew this lease
}

// maxSent bounds the renewals without an answer that are remembered.
const maxSent = 8

// foreignRenewals are how many renewals by others make a contention. A previous agent
// that is being stopped may still do one.
const foreignRenewals = 2

// isContended reports whether another agent renews the lease.
func (l *lease) isContended(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.contended.IsZero() && now.Sub(l.contended) < l.duration
}

// run renews the lease until ctx is done. It is left in place then: an agent that is
// restarted is no node that fails.
func (l *lease) run(ctx context.Context) {
	var backOff time.Duration
	for {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		err := l.renew(call)
		cancel()
		wait := l.duration / 4
		wait += jitter(wait/20) - wait/20 // a little early
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			backOff = min(max(2*backOff, minNodeBackOff), maxNodeBackOff)
			wait = jitter(backOff)
			l.log.Warn("lease not renewed", logattr.Err(explain(err)), slog.Duration("backOff", backOff))
		default:
			backOff = 0
		}
		if sleep.For(ctx, wait) != nil {
			return
		}
	}
}

// renew makes the lease valid from now on.
func (l *lease) renew(ctx context.Context) error {
	if l.latest != nil {
		updated, err := l.client.Update(ctx, l.next(l.latest), metav1.UpdateOptions{})
		if err == nil {
			l.latest, l.sent, l.foreign = updated, nil, 0
			return nil
		}
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return fmt.Errorf("renew lease: %w", err)
		}
	}
	got, err := l.client.Get(ctx, l.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		created, err := l.client.Create(ctx, l.next(nil), metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("create lease: %w", err)
		}
		l.latest, l.sent = created, nil
		return nil
	}
	if err != nil {
		return fmt.Errorf("get lease: %w", err)
	}
	l.noteForeign(got)
	l.latest = got
	updated, err := l.client.Update(ctx, l.next(got), metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("renew lease: %w", err)
	}
	l.latest, l.sent = updated, nil
	return nil
}

// noteForeign recognizes a lease that another agent has renewed since we did. The answer to a
// renewal of ours may have been lost.
func (l *lease) noteForeign(got *coordinationv1.Lease) {
	if l.latest == nil || got.Spec.RenewTime == nil || slices.ContainsFunc(l.sent, got.Spec.RenewTime.Time.Equal) ||
		l.latest.Spec.RenewTime != nil && got.Spec.RenewTime.Equal(l.latest.Spec.RenewTime) {
		return
	}
	if l.foreign++; l.foreign < foreignRenewals {
		return
	}
	now := time.Now()
	if !l.isContended(now) {
		l.log.Error("node name in use by another agent", slog.String("node", l.name), logattr.Err(ErrNodeNameInUse))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.contended = now
}

// next returns the lease renewed now. Its time is always after that of base, even if the
// wall clock was set back.
func (l *lease) next(base *coordinationv1.Lease) *coordinationv1.Lease {
	next := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: l.name, Namespace: corev1.NamespaceNodeLease}}
	if base != nil {
		next = base.DeepCopy()
	}
	seconds := int32(l.duration / time.Second) //nolint:gosec // less than two days
	next.Spec.HolderIdentity, next.Spec.LeaseDurationSeconds = &l.name, &seconds
	renewed := time.Now().Round(0).Truncate(time.Microsecond)
	if base != nil && base.Spec.RenewTime != nil && !renewed.After(base.Spec.RenewTime.Time) {
		renewed = base.Spec.RenewTime.Add(time.Microsecond)
	}
	l.sent = append(l.sent, renewed)
	if len(l.sent) > maxSent {
		l.sent = slices.Delete(l.sent, 0, 1)
	}
	next.Spec.RenewTime = &metav1.MicroTime{Time: renewed}
	if node := l.owner(); node != nil {
		next.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}
	}
	return next
}
