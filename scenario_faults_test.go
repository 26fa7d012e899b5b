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

// TestScenariosUnderFaults plays each scenario with things going wrong at random
// between agent and runtime: calls are delayed, hang, fail, or are made and their
// answers lost; streams are cut, repeat and reorder what they tell; answers lie.
// When that is over, the same must run as if nothing had gone wrong, and nothing
// else be left: not in the runtime, not on disk, no goroutine. On the way nothing
// may be stopped that does not also end without faults. // AG-4, PW-8, RT-17, PL-1
//
// SUBLET_FAULT_SEEDS=2000 go test -run TestScenariosUnderFaults . plays more, and
// -run 'TestScenariosUnderFaults/17_' one of them again.
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
	var struck tally
	t.Cleanup(func() { struck.assert(t) }) // when all have been played
	for seed := range seeds {
		path := files[seed%len(files)]
		t.Run(fmt.Sprintf("%d_%s", seed, strings.TrimSuffix(filepath.Base(path), ".txtar")), func(t *testing.T) {
			t.Parallel()
			sc := readScenario(t, path)
			x := draw(uint64(seed), seed+seed/len(files), max(time.Minute, sc.script[len(sc.script)-1].at))
			want := without[seed%len(files)](t)
			require.NotNil(t, want, "the scenario fails without faults")
			playUnder(t, sc, x, want)
			struck.add(x)
		})
	}
}

// tally is how many calls went wrong, by kind.
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

// assert makes sure that something did go wrong.
func (n *tally) assert(t *testing.T) {
	t.Logf("%d played, calls that went wrong: %v", n.played, n.hits)
	if n.played < 200 { // one of them alone
		return
	}
	for _, kind := range kinds() {
		assert.Greater(t, n.hits[kind], 20, "calls struck by %s", kind)
	}
}

// playUnder plays a scenario with what goes wrong by chance, lets it come to rest
// and returns what became of it. want is what it should be.
func playUnder(t *testing.T, sc *scenario, x *faultPlan, want *finalState) (got *finalState) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorldOf(t, sc, x)
		w.collect = true
		defer func() {
			if t.Failed() {
				t.Logf("%s\n%s", x, w.trace)
			}
		}()
		w.run()
		w.calm()
		time.Sleep(rest)
		got = w.outcome()
		if want == nil && got.restarted() || want != nil && len(want.restless) > 0 {
			time.Sleep(2 * rest)
			got.later(w.outcome())
		}
		if want != nil {
			got.compare(t, w, want)
		}
		w.startsAnother()
		w.stop()
		w.halted()
	})
	return got
}

// rest is, with what comes before it, longer than any back-off and the time between
// two listings together.
const rest = 8 * time.Minute

// calm has nothing go wrong any more. Faults outlast the script by a minute.
func (w *harness) calm() {
	if w.chance != nil {
		time.Sleep(time.Minute)
	}
	w.mu.Lock()
	w.traps, w.sinkErr, w.listing = nil, nil, 0
	w.calmed = true
	w.mu.Unlock()
	w.rules = nil
	w.chance.count(w.proxy.FaultCounts())
	w.setRules()
	if w.isDown() {
		w.up()
	}
	time.Sleep(5 * time.Minute) // an agent that a trap killed is back
	w.mu.Lock()
	gone := w.current == nil
	w.mu.Unlock()
	if gone {
		w.start()
	}
}

// startsAnother asserts that an agent that has been through all this starts and
// ends a pod as any other does.
func (w *harness) startsAnother() {
	if _, full := w.sc.option("max-pods"); full {
		return
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "another", Namespace: "default", UID: "another"}}
	pod.Spec.Containers = []corev1.Container{{Name: "main", Image: "another:1"}}
	w.memory.Put(pod)
	time.Sleep(5 * time.Second)
	if w.told("another").Phase != corev1.PodRunning {
		w.t.Errorf("a pod that is put afterwards is told as %q", w.told("another").Phase)
	}
	w.memory.Delete("default", "another")
	time.Sleep(5 * time.Second)
	if st := w.told("another"); st.Phase != "" {
		w.t.Errorf("a pod that is deleted afterwards is still told as %s", st.Phase)
	}
}
