package cpumanager_test

import (
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/cpumanager"
	"github.com/sublet-dev/agent/internal/logtest"
	"github.com/sublet-dev/agent/topology"
)

// A container that is resized gets other CPUs once the resize is admitted; until then, and if
// it is not, it keeps those that it has.
func TestManager_ResizesContainers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := new(fakeRuntime)
		file := stateFile(t)
		m := newManager(t, newMachine(1, 4), file)
		start(t, m, rt)
		synctest.Wait()
		admitter, err := topology.New(topology.Config{Nodes: topology.NewSet(0), Providers: []topology.Provider{m}})
		require.NoError(t, err)
		p, other := pod("p", container("c", "1")), pod("other", container("c", "1"))
		require.Equal(t, "1", inject(t, m, p))
		rt.run(p, "1")

		large := pod("p", container("c", "2"))
		require.True(t, admitter.Admit(large, nil).Admitted)
		require.Equal(t, "1", m.CPUs("p", "c").String())
		require.True(t, admitter.Admit(other, nil).Admitted, "p is not active: the resize is forgotten")
		require.Equal(t, "1", m.CPUs("p", "c").String())
		require.True(t, admitter.Admit(large, []*corev1.Pod{other}).Admitted)
		i, err := m.Inject(t.Context(), large, &large.Spec.Containers[0], true)
		require.NoError(t, err)
		require.Equal(t, "1,3", i.Cpuset.CPUs)
		synctest.Wait()
		require.Equal(t, []string{"p/c=1,3"}, rt.taken())
		huge := pod("p", container("c", "4"))
		require.False(t, admitter.Admit(huge, []*corev1.Pod{other}).Admitted)
		require.Equal(t, "1,3", m.CPUs("p", "c").String())

		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.JSONEq(t, `{"version":1,"pods":{"p":{"c":{"cpus":"1,3"}}}}`, string(text), "without what is only reserved")
	})
}

// A running container that needs fewer CPUs frees the others, although no admitter decides
// about that, and one that needs no exclusive CPUs any more frees all.
func TestInject_ShrinksRunningContainers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := new(fakeRuntime)
		file := stateFile(t)
		m := newManager(t, newMachine(1, 5), file)
		start(t, m, rt)
		synctest.Wait()
		require.Equal(t, "1-2", inject(t, m, pod("first", container("c", "2"))))
		p := pod("p", container("c", "2"))
		require.Equal(t, "3-4", inject(t, m, p))
		rt.run(p, "3-4")
		require.NoError(t, m.Release(t.Context(), "first"))
		synctest.Wait()
		require.Empty(t, rt.taken())

		for _, resize := range []struct{ request, cpus, saved string }{
			{"2", "3-4", `{"p":{"c":{"cpus":"3-4"}}}`},
			{"1", "3", `{"p":{"c":{"cpus":"3"}}}`},
			{"500m", "0-4", `{}`},
		} {
			smaller := pod("p", container("c", resize.request))
			i, err := m.Inject(t.Context(), smaller, &smaller.Spec.Containers[0], true)
			require.NoError(t, err)
			require.Equal(t, resize.cpus, i.Cpuset.CPUs)
			synctest.Wait()
			if resize.cpus != "3-4" {
				require.Equal(t, []string{"p/c=" + resize.cpus}, rt.taken())
			}
			require.Equal(t, resize.cpus != "0-4", m.HasExclusiveCPUs(smaller, &smaller.Spec.Containers[0]))
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			require.JSONEq(t, `{"version":1,"pods":`+resize.saved+`}`, string(text))
		}
		require.Equal(t, "1-4", inject(t, m, pod("all", container("c", "4"))))
	})
}

// What a container has stays its own however often a resize of it is admitted before it is
// applied.
func TestReserve_KeepsCPUsOfRunningContainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, newMachine(1, 8), stateFile(t))
		start(t, m, new(fakeRuntime))
		synctest.Wait()
		require.Equal(t, "1-2", inject(t, m, pod("p", container("c", "2"))))
		for _, request := range []string{"3", "4", "5"} {
			larger := pod("p", container("c", request))
			require.NoError(t, m.Reserve(larger, &larger.Spec.Containers[0], topology.NewSet(0)))
			require.Equal(t, "1-2", m.CPUs("p", "c").String())
		}
		require.Equal(t, "6-7", inject(t, m, pod("q", container("c", "2"))))
		before := pod("p", container("c", "2"))
		require.NoError(t, m.Reserve(before, &before.Spec.Containers[0], topology.NewSet(0)))
		require.Equal(t, "1-2", m.CPUs("p", "c").String(), "the resize is taken back")
		require.Equal(t, "3-5", inject(t, m, pod("r", container("c", "3"))))
	})
}

// What a container has while it is being resized is not free yet.
func TestManager_KeepsCPUsUntilResized(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, newMachine(1, 8), stateFile(t))
		start(t, m, new(fakeRuntime))
		require.Equal(t, "1-2", inject(t, m, pod("p", container("c", "2"))))
		smaller := pod("p", container("c", "1"))
		require.NoError(t, m.Reserve(smaller, &smaller.Spec.Containers[0], topology.NewSet(0)))
		q := pod("q", container("c", "6"))
		_, err := m.Inject(t.Context(), q, &q.Spec.Containers[0], false)
		require.ErrorIs(t, err, cpumanager.ErrNotEnough)
		i, err := m.Inject(t.Context(), smaller, &smaller.Spec.Containers[0], true)
		require.NoError(t, err)
		require.Equal(t, "1", i.Cpuset.CPUs)
		require.Equal(t, "2-7", inject(t, m, q))
	})
}

// A reservation is not stored: what an admitted resize needs is reserved again if the agent was
// restarted before it was applied. Without enough CPUs the container keeps those that it has, and
// one that shares CPUs stays there.
func TestInject_GrowsWithoutReservation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file, machine, log := stateFile(t), newMachine(1, 6), new(logtest.Buffer)
		create := func() *cpumanager.Manager {
			return newManager(t, machine, file, func(cfg *cpumanager.Config) { cfg.Logger = slog.New(slog.NewTextHandler(log, nil)) })
		}
		resize := func(m *cpumanager.Manager, request, cpus string) {
			t.Helper()
			p := pod("p", container("c", request))
			_, err := m.Inject(t.Context(), p, &p.Spec.Containers[0], true)
			require.NoError(t, err)
			require.Equal(t, cpus, m.CPUs("p", "c").String())
		}
		m := create()
		stop := start(t, m, new(fakeRuntime))
		require.Equal(t, "1-2", inject(t, m, pod("p", container("c", "2"))))
		larger := pod("p", container("c", "4"))
		require.NoError(t, m.Reserve(larger, &larger.Spec.Containers[0], topology.NewSet(0)))
		stop()

		m = create()
		start(t, m, new(fakeRuntime))
		require.Equal(t, "3-4", inject(t, m, pod("other", container("c", "2"))), "it is not reserved any more")
		resize(m, "4", "1-2")
		resize(m, "4", "1-2")
		resize(m, "5", "1-2")
		resize(m, "2", "1-2")
		resize(m, "5", "1-2")
		for _, warned := range []struct {
			message string
			times   int
		}{{"requested=4, available=3", 1}, {"requested=5, available=3", 2}} {
			require.Equal(t, warned.times, strings.Count(log.String(), warned.message), "of each new resize once: %v", log)
		}
		require.NoError(t, m.Release(t.Context(), "other"))
		resize(m, "4", "1-4")
		resize(m, "500m", "")
		resize(m, "2", "")
	})
}
