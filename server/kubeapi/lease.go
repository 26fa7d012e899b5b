package kubeapi

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The lease of a node says when it was last heard of; kubectl describe node shows it. A node
// that answers is alive, so that the lease needs no state: it is renewed whenever it is read.
const (
	leaseDuration    = 40 * time.Second // the kubelet's
	leaseRenewPeriod = leaseDuration / 4
)

// leaseResource returns the resource of the lease.
func (a *API) leaseResource() *resource {
	return &resource{
		group: coordinationv1.GroupName, version: "v1", name: "leases", singular: "lease", kind: "Lease", namespaced: true, verbs: []string{"get", "list", "watch"},
		collection: a.lease, refresh: shared(a.refreshLease), fields: namespacedFields, table: leaseTable(),
	}
}

// refreshLease renews the lease once in leaseRenewPeriod, so that those who watch it are not
// informed each time that it is read.
func (a *API) refreshLease(context.Context) error {
	holder, duration := a.cfg.NodeName, int32(leaseDuration/time.Second)
	renewed := time.Now().Truncate(leaseRenewPeriod) // of a clock that may have been set since the start
	a.lease.replace([]object{&coordinationv1.Lease{
		TypeMeta: metav1.TypeMeta{APIVersion: coordinationv1.GroupName + "/v1", Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: corev1.NamespaceNodeLease, Name: holder, UID: derivedUID("lease", holder), CreationTimestamp: a.startedAt(),
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &duration, RenewTime: &metav1.MicroTime{Time: renewed}},
	}})
	return nil
}

func leaseTable() table {
	return table{columns("Name", "Holder", "Age"), func(o object, now time.Time) []any {
		l, ok := o.(*coordinationv1.Lease)
		if !ok {
			return nil
		}
		return []any{l.Name, *l.Spec.HolderIdentity, age(l.CreationTimestamp, now)}
	}}
}
