package dra_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	resourcev1 "k8s.io/api/resource/v1"

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
