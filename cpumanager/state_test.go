package cpumanager_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/cpumanager"
	"github.com/sublet-dev/agent/internal/logtest"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/topology"
)

// Assignments survive a restart of the agent, also before the runtime answers.
func TestManager_SurvivesRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file, machine := stateFile(t), newMachine(1, 4)
		m := newManager(t, machine, file)
		stop := start(t, m, new(fakeRuntime))
		p := pod("p", container("c", "2"))
		require.Equal(t, "1-2", inject(t, m, p))
		stop()

		m = newManager(t, machine, file)
		require.Equal(t, "1-2", inject(t, m, p))
		require.Equal(t, "3", inject(t, m, pod("q", container("c", "1"))))
		require.NoError(t, m.Release(t.Context(), "p"))
		m = newManager(t, machine, file)
		require.Equal(t, "1-2", inject(t, m, pod("r", container("c", "2"))), "the release was stored")
	})
}

// The loss of a damaged file is reported, and the assignments are found in the runtime.
func TestManager_RestoresFromRuntime(t *testing.T) {
	for name, damage := range map[string]string{
		"truncated":            `{"version":1,"pods":{"running":{"c":{"cp`,
		"another version":      `{"version":2,"pods":{}}`,
		"empty":                "",
		"invalid CPUs":         `{"version":1,"pods":{"a":{"c":{"cpus":"1-x"}}}}`,
		"a CPU that cannot be": `{"version":1,"pods":{"a":{"c":{"cpus":"100000"}}}}`,
		"no CPUs":              `{"version":1,"pods":{"a":{"c":{}}}}`,
		"no container":         `{"version":1,"pods":{"a":{"":{"cpus":"1"}}}}`,
		"no pod":               `{"version":1,"pods":{"":{"c":{"cpus":"1"}}}}`,
		"negative memory":      `{"version":1,"pods":{"a":{"c":{"cpus":"1","memory":-1}}}}`,
		"negative step":        `{"version":1,"pods":{"a":{"c":{"cpus":"1","step":-1}}}}`,
		"one CPU for two":      `{"version":1,"pods":{"a":{"c":{"cpus":"1-2"}},"b":{"c":{"cpus":"2"}}}}`,
		"huge":                 `{"version":1,"pods":{}}` + strings.Repeat(" ", 1<<20),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				file, rt := stateFile(t), new(fakeRuntime)
				require.NoError(t, os.WriteFile(file, []byte(damage), 0o600))
				running := pod("running", container("c", "2"))
				rt.run(running, "2-3")
				rt.run(shares("shares"), "0-1")
				var lost error
				m := newManager(t, newMachine(1, 5), file, func(cfg *cpumanager.Config) { cfg.Hooks.StateLost = func(err error) { lost = err } })
				start(t, m, rt)
				require.Equal(t, "1", inject(t, m, pod("new", container("c", "1"))))
				require.ErrorContains(t, lost, file)
				require.FileExists(t, file+".damaged")
				require.Equal(t, "2-3", m.CPUs("running", "c").String())
				synctest.Wait()
				moves := rt.taken()
				require.Equal(t, "shares/c=0,4", moves[len(moves)-1])
				m = newManager(t, newMachine(1, 5), file)
				require.NoError(t, m.Release(t.Context(), "other"))
				require.Equal(t, "2-3", m.CPUs("running", "c").String(), "stored again")
			})
		})
	}
}

// Only what is certain is taken over from the runtime.
func TestManager_RestoresOnlyExclusiveCPUs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := new(fakeRuntime)
		two := container("c", "2")
		rt.run(pod("reserved", two), "0-1")
		rt.run(pod("wider", two), "1-3")
		rt.run(pod("unset", two), "")
		rt.run(pod("invalid", two), "x")
		rt.run(pod("twice", two), "4-5")
		rt.run(pod("again", two), "5-6")
		rt.run(pod("exited", two), "7-8")
		rt.pods[6].Containers[0].State = runtime.Exited
		rt.run(pod("unknown", two), "7-8")
		rt.pods[7].Containers[0].Resources = nil
		rt.run(pod("exclusive", two), "8-9")
		rt.pods[8].Containers[0].Resources.Cpuset.MemoryNodes = "0"
		m := newManager(t, newMachine(1, 10), stateFile(t))
		start(t, m, rt)
		synctest.Wait()
		for _, uid := range []types.UID{"reserved", "wider", "unset", "invalid", "twice", "again", "exited", "unknown"} {
			require.Zero(t, m.CPUs(uid, "c").Len(), uid)
		}
		require.Equal(t, "8-9", m.CPUs("exclusive", "c").String())
	})
}

// Nothing is assigned that cannot be stored.
func TestInject_FailsWithoutDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "missing", "cpus.json")
		m := newManager(t, newMachine(1, 2), file)
		start(t, m, new(fakeRuntime))
		p := pod("p", container("c", "1"))
		_, err := m.Inject(t.Context(), p, &p.Spec.Containers[0], false)
		require.ErrorIs(t, err, os.ErrNotExist)
		require.NoError(t, os.Mkdir(filepath.Dir(file), 0o700))
		require.Equal(t, "1", inject(t, m, p))
		require.FileExists(t, file)
	})
}

// A state that cannot be read for now is not lost.
func TestManager_WaitsForUnreadableState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		file := filepath.Join(dir, "file", "cpus.json")
		require.NoError(t, os.WriteFile(filepath.Dir(file), nil, 0o600)) // no directory
		m := newManager(t, newMachine(1, 2), file)
		p := pod("p", container("c", "1"))
		_, err := m.Inject(t.Context(), p, &p.Spec.Containers[0], false)
		require.ErrorContains(t, err, "no exclusive CPUs are assigned until they can be")
		require.ErrorContains(t, m.Release(t.Context(), "p"), "cannot be read")
		require.Nil(t, m.Hints(p, &p.Spec.Containers[0]))
		require.NoError(t, os.Remove(filepath.Dir(file)))
		require.NoError(t, os.Mkdir(filepath.Dir(file), 0o700))
		require.NoError(t, os.WriteFile(file, []byte(`{"version":1,"pods":{"p":{"c":{"cpus":"1"}}}}`), 0o600))
		require.Equal(t, "1", inject(t, m, p))
	})
}

// CPUs that are unplugged are missed by no container for longer than a period.
func TestRunner_FollowsHotplug(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		machine, rt := newMachine(1, 4), new(fakeRuntime)
		all := machine.t
		m := newManager(t, machine, stateFile(t))
		start(t, m, rt)
		p, q := pod("p", container("c", "2")), shares("q")
		require.Equal(t, "1-2", inject(t, m, p))
		rt.run(p, "1-2")
		rt.run(q, "0,3")
		machine.online(topology.NewSet(0, 1, 3), all)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.Equal(t, []string{"p/c=1"}, rt.taken())
		machine.online(topology.NewSet(0), all)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.ElementsMatch(t, []string{"p/c=0", "q/c=0"}, rt.taken(), "its own are all gone")
		machine.mu.Lock()
		machine.e = errors.New("unreadable")
		machine.mu.Unlock()
		time.Sleep(10 * time.Second)
		machine.mu.Lock()
		machine.e = nil
		machine.mu.Unlock()
		machine.online(topology.NewSet(0, 1, 2, 3), all)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.ElementsMatch(t, []string{"q/c=0,3", "p/c=1-2"}, rt.taken(), "they are kept for it")
		require.Equal(t, "1-2", inject(t, m, p))
	})
}

// A container whose CPUs do not exist any more gets others when it is created again.
func TestInject_ReplacesMissingCPUs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := stateFile(t)
		require.NoError(t, os.WriteFile(file, []byte(`{"version":1,"pods":{"p":{"c":{"cpus":"2-3"}}}}`), 0o600))
		m := newManager(t, newMachine(1, 3), file)
		require.Equal(t, "1-2", inject(t, m, pod("p", container("c", "2"))))
	})
}

// Reserved CPUs that a container has had before leave something for the others.
func TestManager_ReservedCPUsInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := stateFile(t)
		require.NoError(t, os.WriteFile(file, []byte(`{"version":1,"pods":{"p":{"c":{"cpus":"0-1"}}}}`), 0o600))
		m := newManager(t, newMachine(1, 2), file)
		require.Equal(t, "0", inject(t, m, shares("s")))
		require.Equal(t, "0-1", inject(t, m, pod("p", container("c", "2"))))
	})
}

// An update that fails is repeated, and one that was made is not.
func TestRunner_RetriesUpdates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := new(fakeRuntime)
		var updates []string
		m := newManager(t, newMachine(1, 2), stateFile(t), func(cfg *cpumanager.Config) {
			cfg.Hooks.Updated = func(_ types.UID, id string, set runtime.Cpuset, err error) {
				text := id + "=" + set.CPUs
				if err != nil {
					text += ": " + err.Error()
				}
				updates = append(updates, text)
			}
		})
		start(t, m, rt)
		synctest.Wait()
		rt.run(shares("s"), "0")
		rt.run(shares("t"), "0-1")
		rt.pods[1].Containers[0].State = runtime.Created
		rt.run(shares("u"), "")
		rt.pods[2].Containers[0].Resources = nil
		rt.fail("busy")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.Equal(t, []string{"s/c=0-1: busy", "u/c=0-1: busy"}, updates)
		rt.fail("")
		time.Sleep(30 * time.Second)
		synctest.Wait()
		require.Equal(t, []string{"s/c=0-1", "u/c=0-1"}, rt.taken())
	})
}

// Those who share make room before a container is moved to its own CPUs.
func TestRunner_MakesRoomFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file, rt := stateFile(t), new(fakeRuntime)
		require.NoError(t, os.WriteFile(file, []byte(`{"version":1,"pods":{"a":{"c":{"cpus":"1"}}}}`), 0o600))
		rt.run(pod("a", container("c", "1")), "0-1")
		rt.run(shares("b"), "0-1")
		m := newManager(t, newMachine(1, 2), file)
		start(t, m, rt)
		synctest.Wait()
		require.Equal(t, []string{"b/c=0", "a/c=1"}, rt.taken())
	})
}

// A runtime that cannot move containers is no runtime for exclusive CPUs.
func TestManager_RunnerNeedsCapability(t *testing.T) {
	m := newManager(t, newMachine(1, 2), stateFile(t))
	_, err := m.Runner(struct{ cpumanager.Runtime }{new(fakeRuntime)}, nil)
	require.ErrorIs(t, err, runtime.ErrUnsupported)
}

// Memory that running containers are confined to is not promised to others after the state was
// lost.
func TestManager_RestoresMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for nodes, want := range map[string]string{"0": "", "": "0"} {
			rt := new(fakeRuntime)
			large := container("c", "1")
			large.Resources.Limits[corev1.ResourceMemory] = resource.MustParse("8Gi") // all that the node has
			rt.run(pod("large", large), "1")
			rt.pods[0].Containers[0].Resources.Cpuset.MemoryNodes = nodes
			m := newManager(t, newMachine(1, 4), stateFile(t), func(cfg *cpumanager.Config) { cfg.MemoryAffinity = true })
			stop := start(t, m, rt)
			p := pod("p", container("c", "1"))
			i, err := m.Inject(t.Context(), p, &p.Spec.Containers[0], false)
			require.NoError(t, err)
			require.Equal(t, runtime.Cpuset{CPUs: "2", MemoryNodes: want}, i.Cpuset)
			stop()
		}
	})
}

// A container is moved if its CPUs or the nodes of its memory are others, or are not known.
func TestRunner_ComparesCPUsAndMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file, rt := stateFile(t), new(fakeRuntime)
		require.NoError(t, os.WriteFile(file, []byte(`{"version":1,"pods":{
			"well":{"c":{"cpus":"1","memoryNodes":"0"}},"memory":{"c":{"cpus":"2","memoryNodes":"0"}},"invalid":{"c":{"cpus":"3"}},"anywhere":{"c":{"cpus":"4"}}}}`), 0o600))
		for uid, cpus := range map[types.UID]string{"well": "1", "memory": "2", "invalid": "x", "anywhere": "4"} {
			rt.run(pod(uid, container("c", "1")), cpus)
		}
		for i := range rt.pods {
			if rt.pods[i].UID != "memory" {
				rt.pods[i].Containers[0].Resources.Cpuset.MemoryNodes = "0"
			}
		}
		m := newManager(t, newMachine(1, 6), file)
		start(t, m, rt)
		synctest.Wait()
		require.ElementsMatch(t, []string{"memory/c=2@0", "invalid/c=3"}, rt.taken())
	})
}

// After an update that failed it is not known where the container is.
func TestRunner_RepeatsAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, machine := new(fakeRuntime), newMachine(1, 3)
		all := machine.t
		m := newManager(t, machine, stateFile(t))
		start(t, m, rt)
		synctest.Wait()
		rt.run(shares("s"), "0")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.Equal(t, []string{"s/c=0-2"}, rt.taken())
		machine.online(topology.NewSet(0, 1), all)
		rt.fail("busy")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		machine.online(topology.NewSet(0, 1, 2), all)
		rt.fail("")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.Equal(t, []string{"s/c=0-2"}, rt.taken())
	})
}

// A pod that the runtime does not tell about may have CPUs: nothing is assigned before.
func TestRunner_RestoresAllOrNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := new(fakeRuntime)
		rt.run(pod("running", container("c", "2")), "1-2")
		rt.failPod("no answer")
		m := newManager(t, newMachine(1, 4), stateFile(t), func(cfg *cpumanager.Config) { cfg.RestoreTimeout = 5 * time.Second })
		start(t, m, rt)
		p := pod("p", container("c", "1"))
		_, err := m.Inject(t.Context(), p, &p.Spec.Containers[0], false)
		require.ErrorIs(t, err, cpumanager.ErrNotRestored)
		rt.failPod("")
		require.Equal(t, "3", inject(t, m, p))
	})
}

// Containers of one pod may have had the same CPUs, one after the other.
func TestManager_ReadsCPUsOfInitContainers(t *testing.T) {
	file := stateFile(t)
	require.NoError(t, os.WriteFile(file, []byte(`{"version":1,"pods":{"p":{"first":{"cpus":"1-2"},"c":{"cpus":"1-2"}}}}`), 0o600))
	m := newManager(t, newMachine(1, 4), file)
	require.Equal(t, "1-2", inject(t, m, pod("p", container("c", "2"))))
	require.NoFileExists(t, file+".damaged")
}

// The log names containers that miss CPUs, when they begin to.
func TestRunner_WarnsOfMissingCPUs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		machine, log := newMachine(1, 4), new(logtest.Buffer)
		all := machine.t
		m := newManager(t, machine, stateFile(t), func(cfg *cpumanager.Config) { cfg.Logger = slog.New(slog.NewTextHandler(log, nil)) })
		start(t, m, new(fakeRuntime))
		require.Equal(t, "1-2", inject(t, m, pod("p", container("c", "2"))))
		require.Equal(t, "3", inject(t, m, pod("q", container("c", "1"))))
		time.Sleep(30 * time.Second)
		synctest.Wait()
		require.NotContains(t, log.String(), "online cpus changed")
		machine.online(topology.NewSet(0, 1, 3), all)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		require.Equal(t, 1, strings.Count(log.String(), "online cpus changed"))
		require.Equal(t, 1, strings.Count(log.String(), "exclusive cpus offline"))
		require.Contains(t, log.String(), "podUID=p containerName=c cpus=2")
	})
}

// What containers have is known from the first question on after a restart, without a Runner. A
// file that cannot be read is logged once, and read again with the next question.
func TestManager_ReportsStoredCPUs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file, machine := stateFile(t), newMachine(1, 4)
		m := newManager(t, machine, file)
		stop := start(t, m, new(fakeRuntime))
		p := pod("p", container("c", "2"))
		require.Equal(t, "1-2", inject(t, m, p))
		stop()
		require.Equal(t, "1-2", newManager(t, machine, file).CPUs(p.UID, "c").String())

		require.NoError(t, os.Rename(file, file+".away"))
		require.NoError(t, os.Mkdir(file, 0o700)) // not a file
		var log logtest.Buffer
		m = newManager(t, machine, file, func(cfg *cpumanager.Config) { cfg.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
		for range 2 {
			require.Zero(t, m.CPUs(p.UID, "c").Len())
		}
		require.Equal(t, 1, strings.Count(log.String(), `level=ERROR msg="cpu assignments not reported"`), log.String())
		require.NoError(t, os.Remove(file))
		require.NoError(t, os.Rename(file+".away", file))
		require.Equal(t, "1-2", m.CPUs(p.UID, "c").String())
	})
}
