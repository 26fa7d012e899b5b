package agent_test

import (
	"context"
	"errors"
	"flag"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/runtimetest"
)

var update = flag.Bool("update", false, "write the observed traces and statuses into the scenario files")

// TestScenarios plays each testdata/*.txtar with an agent and a simulated runtime in a
// bubble. A script has one command per line, after its time:
//
//	put FILE           adds these pods to the memory source
//	delete NAME        removes a pod from it
//	mark NAME GRACE    gives a pod of it a deletion timestamp, as an API server does
//	write FILE, copy FILE TO, remove FILE   the same in a directory of manifests
//	kill POD CONTAINER        stops the container without the agent
//	stop-sandbox POD   stops the sandbox without the agent
//	stop-agent, kill-agent, start-agent, restart-agent
//	runtime down|up|reboot    ends or starts the runtime's process, or restarts the node
//	fault RULE…, no-faults    sets the faults of calls of the runtime
//	trap RPC N before|after restart-runtime|kill-agent FOR    at the Nth call of RPC
//	listing-takes FOR         sets the duration of a list of all pods in the runtime
//	sink fails|works
//	end
//
// In a trace, ">" is an input, "=" a status that was sent and "!" a warning.
func TestScenarios(t *testing.T) {
	files := scenarioFiles(t)
	require.GreaterOrEqual(t, len(files), 30)
	for _, path := range files {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			sc := readScenario(t, path)
			var got string
			synctest.Test(t, func(t *testing.T) { got = play(t, sc) })
			if *update {
				sc.write(t, path, got)
				return
			}
			assert.Equal(t, sc.files["trace"], got, "-update writes the observed trace, if that is right")
		})
	}
}

// play runs a scenario and returns its trace.
func play(t *testing.T, sc *scenario) string {
	w := newHarness(t, sc)
	w.run()
	got := w.trace.String() + w.left()
	w.stop()
	w.shutDown()
	return got
}

// run runs the script of the scenario.
func (w *harness) run() {
	if rule, ok := w.sc.option("fault"); ok {
		w.fault(rule)
	}
	if _, ok := w.sc.option("no-events"); ok {
		w.fault([]string{"fault=fail,rpc=GetContainerEvents,code=Unimplemented"})
	}
	if _, ok := w.sc.option("no-agent"); !ok {
		w.start()
	}
	began := time.Now()
	for _, s := range w.sc.script {
		time.Sleep(s.at - time.Since(began))
		if s.args[0] == "end" {
			break
		}
		w.trace.add("", lineScript, "", s.line)
		w.do(s)
	}
	synctest.Wait()
}

// do runs one command.
func (w *harness) do(s step) {
	arg := func(i int) string {
		require.Greater(w.t, len(s.args), i, "%s: too few words", s.line)
		return s.args[i]
	}
	switch s.args[0] {
	case "put":
		w.memory.Put(w.decode(arg(1))...)
	case "delete":
		require.True(w.t, w.memory.Delete("default", arg(1)), s.line)
	case "mark":
		w.mark(arg(1), arg(2))
	case "write":
		require.NoError(w.t, w.files.write(arg(1), w.sc.files[arg(1)]))
	case "copy":
		require.NoError(w.t, w.files.write(arg(2), w.sc.files[arg(1)]))
	case "remove":
		require.NoError(w.t, w.files.remove(arg(1)))
	case "kill":
		w.outside(arg(1), arg(2))
	case "stop-sandbox":
		w.outside(arg(1), "")
	case "fault":
		w.fault(s.args[1:])
	case "no-faults":
		w.rules = nil
		w.setRules()
	case "trap":
		n, err := strconv.Atoi(arg(2))
		require.NoError(w.t, err, s.line)
		w.mu.Lock()
		w.breakpoints = append(w.breakpoints, &breakpoint{rpc: arg(1), n: n, when: arg(3), do: s.args[4:]})
		w.mu.Unlock()
	case "listing-takes":
		w.mu.Lock()
		w.listing = w.duration(arg(1))
		w.mu.Unlock()
	case "sink":
		w.mu.Lock()
		w.sinkErr = map[string]error{"fails": errors.New("on purpose"), "works": nil}[arg(1)]
		w.mu.Unlock()
	case "stop-agent":
		w.stop()
	case "kill-agent":
		w.kill()
	case "start-agent":
		w.start()
	case "restart-agent":
		w.kill()
		w.start()
	case "runtime":
		w.runtime(arg(1))
	default:
		w.t.Fatalf("unknown command: %s", s.line)
	}
}

func (w *harness) runtime(what string) {
	switch what {
	case "down":
		w.down()
	case "up":
		w.up()
	case "reboot":
		w.shutDown()
		w.boot()
	default:
		w.t.Fatalf("runtime %s?", what)
	}
}

func (w *harness) fault(rules []string) {
	for _, r := range rules {
		rule, err := runtimetest.ParseRule(r)
		require.NoError(w.t, err)
		w.rules = append(w.rules, rule)
	}
	w.setRules()
}

// mark sets the deletion timestamp of a pod, which stays in its source.
func (w *harness) mark(name, grace string) {
	for _, file := range w.sc.names {
		if !strings.HasSuffix(file, ".yaml") {
			continue
		}
		for _, pod := range w.decode(file) {
			if pod.Name != name {
				continue
			}
			secs := int64(w.duration(grace) / time.Second)
			at := metav1.NewTime(time.Now().Add(w.duration(grace)))
			pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &at, &secs
			w.memory.Put(pod)
			return
		}
	}
	w.t.Fatalf("no pod %s in the scenario", name)
}

// outside stops a container of a pod, or its sandbox, without the agent.
func (w *harness) outside(pod, container string) {
	ctx := context.Background()
	for _, c := range w.running() {
		x := w.object(c.GetId())
		if x.pod != pod || container != "" && c.GetMetadata().GetName() != container {
			continue
		}
		if container == "" {
			_, err := w.inside.StopPodSandbox(ctx, &v1.StopPodSandboxRequest{PodSandboxId: c.GetPodSandboxId()})
			require.NoError(w.t, err)
			return
		}
		_, err := w.inside.StopContainer(ctx, &v1.StopContainerRequest{ContainerId: c.GetId()})
		require.NoError(w.t, err)
		return
	}
	if w.chance == nil { // with faults it may not have started yet
		w.t.Errorf("nothing of %s %s runs", pod, container)
	}
}
