package scenario

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/runtime/runtimetest"
)

// TestScenariosUnderFaults plays each scenario with random faults between agent and
// runtime: calls are delayed, hang, fail, or are made and their responses lost;
// streams break, duplicate and reorder events; responses are wrong. After the faults
// have ended, the same containers must run as without faults, and nothing else may be
// left in the runtime, on disk or as a goroutine. Containers that keep running without
// faults must not be stopped. // AG-4, PW-8, RT-17, PL-1
//
// SUBLET_FAULT_SEEDS=2000 go test -run TestScenariosUnderFaults ./test/scenario plays more
// seeds, and -run 'TestScenariosUnderFaults/17_' repeats one of them.
func TestScenariosUnderFaults(t *testing.T) {
	files := scenarioFiles(t, "*.txtar")
	without := make([]func(*testing.T) *finalState, len(files))
	for i, path := range files {
		var once sync.Once
		var state *finalState
		without[i] = func(t *testing.T) *finalState {
			once.Do(func() { state = playUnder(t, readScenario(t, path), nil, nil) })
			return state
		}
	}
	var faults tally
	t.Cleanup(func() { faults.assert(t) }) // after all seeds
	for seed := range seeds(t, "SUBLET_FAULT_SEEDS", 200) {
		i := seed % len(files)
		t.Run(fmt.Sprintf("%d_%s", seed, caseName(files[i])), func(t *testing.T) {
			t.Parallel()
			sc := readScenario(t, files[i])
			plan := agenttest.DrawFaults(uint64(seed), seed+seed/len(files), max(time.Minute, sc.script[len(sc.script)-1].at))
			want := without[i](t)
			require.NotNil(t, want, "the scenario fails without faults")
			playUnder(t, sc, plan, want)
			faults.add(plan)
		})
	}
}

// seeds returns the number in an environment variable.
func seeds(t *testing.T, variable string, otherwise int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, variable)
	return n
}

// tally counts the calls with a fault, by kind.
type tally struct {
	mu     sync.Mutex
	hits   map[runtimetest.FaultKind]int
	played int
}

func (n *tally) add(plan *agenttest.FaultPlan) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.hits == nil {
		n.hits = map[runtimetest.FaultKind]int{}
	}
	n.played++
	for kind, hits := range plan.Hits() {
		n.hits[kind] += hits
	}
}

// assert requires that each kind of fault occurred.
func (n *tally) assert(t *testing.T) {
	t.Logf("%d seeds played, calls with a fault: %v", n.played, n.hits)
	if n.played < 200 { // a selection with -run
		return
	}
	for _, kind := range agenttest.FaultKinds() {
		assert.Greater(t, n.hits[kind], 20, "calls with the fault %s", kind)
	}
}

// playUnder plays a scenario with the faults of a plan, waits until nothing changes any
// more, and returns the final state. It asserts that this is want, unless that is nil.
func playUnder(t *testing.T, sc *scenario, plan *agenttest.FaultPlan, want *finalState) (got *finalState) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlayer(t, sc, func(c *agenttest.Config) { c.Faults, c.CollectExited = plan, true })
		defer func() {
			if t.Failed() {
				t.Logf("%s\n%s", plan, p.Trace)
			}
		}()
		p.play(sc.script, p.Trace.Command)
		p.endFaults()
		time.Sleep(quietPeriod)
		got = p.finalState()
		if want == nil && got.restarted() || want != nil && len(want.restarting) > 0 {
			time.Sleep(2 * quietPeriod)
			got.findRestarting(p.finalState())
		}
		if want != nil {
			got.compare(p, want)
		}
		p.startAnother()
		p.end()
	})
	return got
}

// quietPeriod is the time without faults at the end of a scenario. With the time before it,
// it is longer than the longest back-off and the relist period together.
const quietPeriod = 8 * time.Minute

// endFaults ends all faults, a minute after the end of the script if they are random, and
// starts an agent if none runs.
func (p *player) endFaults() {
	p.t.Helper()
	if p.faults != nil {
		time.Sleep(time.Minute)
	}
	p.EndFaults()
	time.Sleep(5 * time.Minute) // an agent that a breakpoint killed has been started
	if p.Agent() == nil {
		p.Start()
	}
}

// startAnother asserts that the agent starts and ends another pod after the faults.
func (p *player) startAnother() {
	p.t.Helper()
	if _, limited := p.sc.option("max-pods"); limited {
		return
	}
	pod := agenttest.Pod("another")
	pod.UID = "another"
	p.Memory.Put(pod)
	time.Sleep(time.Minute) // its image may have to be pulled
	assert.Equal(p.t, corev1.PodRunning, p.LastStatus("another").Phase, "a pod that is put afterwards")
	p.Memory.Delete("default", "another")
	time.Sleep(5 * time.Second)
	assert.Empty(p.t, p.LastStatus("another").Phase, "a pod that is deleted afterwards")
}
