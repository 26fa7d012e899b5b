package dra_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/dra"
)

// No claim of a pod is prepared before all of them can be: a pod that never ran needs no driver to end.
func TestInject_PreparesAllClaimsOrNone(t *testing.T) {
	d := new(fakeDriver)
	unallocated, reserved := claim("unallocated"), []resourcev1.ResourceClaimConsumerReference{{UID: "p"}}
	unallocated.Status.Allocation = nil
	claims := fakeClaims{"a": claim("a", gpuDriver), "unallocated": unallocated, "unreserved": claim("unreserved", gpuDriver), "driverless": claim("driverless", "none.example")}
	for _, name := range []string{"a", "unallocated", "driverless"} {
		claims[name].Status.ReservedFor = reserved
	}
	m := newManager(t, stateFile(t), claims, func(cfg *dra.Config) { cfg.RequireReservation = true })
	register(t, m, serve(t, d))
	for _, other := range []string{"missing", "unallocated", "unreserved", "driverless"} {
		p := pod("p", "a", other)
		require.ErrorContains(t, injectErr(t, m, p), "resource claim "+other)
		require.Empty(t, d.taken(), other)
		require.False(t, m.HasUnreleased(p), other)
	}
	inject(t, m, pod("p", "a"), false)
	require.Equal(t, []string{"prepare a"}, d.taken())
}

// The name of a claim that was made from a template says not that it was made for this pod.
func TestInject_ChecksControllersOfClaims(t *testing.T) {
	made, template, isController := claim("made", gpuDriver), "template", true
	made.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{UID: "p"}}
	made.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: "p", UID: "q", Controller: &isController}}
	m := newManager(t, stateFile(t), fakeClaims{"made": made}, func(cfg *dra.Config) { cfg.RequireReservation = true })
	register(t, m, serve(t, new(fakeDriver)))
	p := pod("p", "made")
	p.Spec.ResourceClaims[0] = corev1.PodResourceClaim{Name: "made", ResourceClaimTemplateName: &template}
	p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "made", ResourceClaimName: &made.Name}}
	require.ErrorContains(t, injectErr(t, m, p), "ResourceClaim made: it was not made for the pod")
	made.OwnerReferences[0].UID = "p"
	require.Len(t, inject(t, m, p, false), 2)
}
