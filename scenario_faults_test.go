package agent_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/runtime/runtimetest"
)

// TestScenariosUnderFaults plays each scenario with random faults between agent and
// runtime: calls are delayed, hang, fail, or are made and their responses lost;
// streams break, duplicate and reorder events; responses are wrong. After the faults
// have ended, the same containers must run as without faults, and nothing else may be
// left in the runtime, on disk or as a goroutine. Containers that keep running without
// faults must not be stopped. // AG-4, PW-8, RT-17, PL-1
//
// SUBLET_FAULT_SEEDS=2000 go test -run TestScenariosUnderFaults . plays more seeds, and
// -run 'TestScenariosUnderFaults/17_' repeats one of them.
func TestScenariosUnderFaults(t *testing.T) {
	files := scenarioFiles(t)
	without := make([]func(*testing.T) *finalState, len(files))
	for i, path := range files {
		var once sync.Once
		var o *finalState
		without[i] = func(t *testing.T) *finalState {
			once.Do(func() { o = playUnder(t, readScenario(t, path), nil, nil) })
			return o
		}
	}
	seeds := 200
	if s := os.Getenv("SUBLET_FAULT_SEEDS"); s != "" {
		var err error
		seeds, err = strconv.Atoi(s)
		require.NoError(t, err)
	}
	var faults tally
	t.Cleanup(func() { faults.assert(t) }) // after all seeds
	for seed := range seeds {
		path := files[seed%len(files)]
		t.Run(fmt.Sprintf("%d_%s", seed, strings.TrimSuffix(filepath.Base(path), ".txtar")), func(t *testing.T) {
			t.Parallel()
			sc := readScenario(t, path)
			x := draw(uint64(seed), seed+seed/len(files), max(time.Minute, sc.script[len(sc.script)-1].at))
			want := without[seed%len(files)](t)
			require.NotNil(t, want, "the scenario fails without faults")
			playUnder(t, sc, x, want)
			faults.add(x)
		})
	}
}

// tally counts the calls with a fault, by kind.
type tally struct {
	mu     sync.Mutex
	hits   map[runtimetest.FaultKind]int
	played int
}

func (n *tally) add(x *faultPlan) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.hits == nil {
		n.hits = map[runtimetest.FaultKind]int{}
	}
	n.played++
	for i, r := range x.rules {
		n.hits[r.Fault] += x.hits[i]
	}
}

// assert requires that each kind of fault occurred.
func (n *tally) assert(t *testing.T) {
	t.Logf("%d seeds played, calls with a fault: %v", n.played, n.hits)
	if n.played < 200 { // a selection with -run
		return
	}
	for _, kind := range kinds() {
		assert.Greater(t, n.hits[kind], 20, "calls with the fault %s", kind)
	}
}

// playUnder plays a scenario with the faults of a plan, waits until nothing changes any
// more, and returns the final state. It asserts that this is want, unless that is nil.
func playUnder(t *testing.T, sc *scenario, x *faultPlan, want *finalState) (got *finalState) {
	synctest.Test(t, func(t *testing.T) {
		w := newHarnessWith(t, sc, x)
		w.collect = true
		defer func() {
			if t.Failed() {
				t.Logf("%s\n%s", x, w.trace)
			}
		}()
		w.run()
		w.calm()
		time.Sleep(rest)
		got = w.finalState()
		if want == nil && got.restarted() || want != nil && len(want.restarting) > 0 {
			time.Sleep(2 * rest)
			got.later(w.finalState())
		}
		if want != nil {
			got.compare(t, w, want)
		}
		w.startsAnother()
		w.stop()
		w.shutDown()
	})
	return got
}

// rest is the time without faults at the end of a scenario. With the time before it, it
// is longer than the longest back-off and the relist period together.
const rest = 8 * time.Minute

// calm ends all faults, a minute after the end of the script.
func (w *harness) calm() {
	if w.chance != nil {
		time.Sleep(time.Minute)
	}
	w.mu.Lock()
	w.breakpoints, w.sinkErr, w.listing = nil, nil, 0
	w.calmed = true
	w.mu.Unlock()
	w.rules = nil
	w.chance.count(w.proxy.FaultCounts())
	w.setRules()
	if w.isDown() {
		w.up()
	}
	time.Sleep(5 * time.Minute) // an agent that a breakpoint killed has been started
	w.mu.Lock()
	stopped := w.current == nil
	w.mu.Unlock()
	if stopped {
		w.start()
	}
}

// startsAnother asserts that the agent starts and ends another pod after the faults.
func (w *harness) startsAnother() {
	if _, full := w.sc.option("max-pods"); full {
		return
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "another", Namespace: "default", UID: "another"}}
	pod.Spec.Containers = []corev1.Container{{Name: "main", Image: "another:1"}}
	w.memory.Put(pod)
	time.Sleep(5 * time.Second)
	if w.lastStatus("another").Phase != corev1.PodRunning {
		w.t.Errorf("a pod that is put afterwards is reported as %q", w.lastStatus("another").Phase)
	}
	w.memory.Delete("default", "another")
	time.Sleep(5 * time.Second)
	if st := w.lastStatus("another"); st.Phase != "" {
		w.t.Errorf("a pod that is deleted afterwards is still reported as %s", st.Phase)
	}
}
