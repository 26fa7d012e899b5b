package cpumanager_test

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/cpumanager"
	"github.com/sublet-dev/agent/topology"
)

// Each admission of a container with CPUs of its own is one request, and a restart of the container none.
func TestManager_ReportsRequestsAndUsage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var requests []string
		m := newManager(t, newMachine(2, 4), stateFile(t), func(cfg *cpumanager.Config) {
			cfg.MemoryAffinity = true
			cfg.Hooks.Requested = func(r cpumanager.Request) {
				requests = append(requests, fmt.Sprintf("%s/%s %d CPUs memory=%dGi confined=%t %t", r.UID, r.Container, r.CPUs, r.Memory>>30, r.IsConfined, r.Err == nil))
				panic("defect of the application")
			}
		})
		start(t, m, new(fakeRuntime))
		synctest.Wait()
		usage := func() string {
			shared, exclusive := m.Usage()
			return fmt.Sprint(shared, " ", exclusive)
		}
		require.Equal(t, "7 map[0:0 1:0]", usage(), "without the reserved one")
		admitter, err := topology.New(topology.Config{Nodes: topology.NewSet(0, 1), Providers: []topology.Provider{m}})
		require.NoError(t, err)
		one, large := pod("one", container("c", "2")), pod("large", container("c", "5"))
		large.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory] = resource.MustParse("64Gi")
		require.True(t, admitter.Admit(one, nil).Admitted)
		require.Equal(t, "5 map[0:2 1:0]", usage(), "they are set aside")
		require.True(t, admitter.Admit(shares("s"), []*corev1.Pod{one}).Admitted)
		inject(t, m, one)
		inject(t, m, one)
		require.True(t, admitter.Admit(large, []*corev1.Pod{one}).Admitted)
		require.Equal(t, "0 map[0:3 1:4]", usage())
		require.False(t, admitter.Admit(pod("more", container("c", "1")), []*corev1.Pod{one, large}).Admitted)
		require.NoError(t, m.Release(t.Context(), "one"))
		require.Equal(t, "2 map[0:1 1:4]", usage())

		direct := pod("direct", container("c", "1")) // as without a topology manager
		inject(t, m, direct)
		inject(t, m, direct)
		require.Equal(t, []string{
			"one/c 2 CPUs memory=1Gi confined=true true", "large/c 5 CPUs memory=64Gi confined=false true",
			"more/c 1 CPUs memory=1Gi confined=false false", "direct/c 1 CPUs memory=1Gi confined=true true",
		}, requests)
	})
}
