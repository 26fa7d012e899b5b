package runtime_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/kubelettest"
	"github.com/sublet-dev/agent/runtime"
)

// kubeletPlan is a line of the table of plans.
type kubeletPlan struct {
	Spec                  corev1.PodSpec
	Sandboxes, Containers []string
	Do                    string
}

// RT-3..7: plans do what the kubelet does.
func TestPlan_AsKubelet(t *testing.T) {
	kubelettest.RunCases(t, "testdata/kubelet-plans.jsonl", func(t *testing.T, c kubeletPlan) {
		pod := newPod("", func(p *corev1.Pod) { p.Spec = c.Spec })
		view := kubeletView(pod, c.Sandboxes, c.Containers)
		view.BackOff = noBackOff{}
		require.Equal(t, c.Do, inKubeletWords(runtime.Plan(pod, view, testTime)))
	})
}

// noBackOff lets every container start at once.
type noBackOff struct{}

func (noBackOff) Delay(runtime.RestartInfo) time.Duration { return 0 }

// kubeletView returns what the words of a table say.
func kubeletView(pod *corev1.Pod, sandboxes, containers []string) runtime.PlanInput {
	var puts []put
	for i, word := range slices.Backward(sandboxes) {
		puts = append(puts, sandbox(uint32(len(sandboxes)-i), runtime.SandboxReady, func(s *runtime.Sandbox) {
			switch word {
			case "exited":
				s.State = runtime.SandboxNotReady
			case "lost":
				s.IPs = nil
			case "host":
				s.IPs, s.HostNetwork = nil, true
			}
		}))
	}
	view := newView(puts...)
	states := map[string]runtime.ContainerState{"created": runtime.Created, "running": runtime.Running, "exited": runtime.Exited, "unknown": runtime.Unknown}
	for _, text := range slices.Backward(containers) {
		words := strings.Fields(text)
		var probes runtime.ProbeResults
		observed(words[0], 0, states[words[1]], func(c *runtime.Container) {
			c.ID, c.Hash = c.Name, runtime.HashContainer(runtime.ContainerSpec(pod, c.Name))
			for _, word := range words[2:] {
				switch word {
				case "old":
					c.SandboxID = "s1"
				case "changed":
					c.Hash, c.SpecImage = runtime.HashContainer(&corev1.Container{Name: "other"}), "other"
				case "unhealthy":
					probes.Liveness = runtime.ProbeFailure
				case "started":
					probes.Startup = runtime.ProbeSuccess
				case "unstarted":
					probes.Startup = runtime.ProbeFailure
				default:
					code, _ := strconv.Atoi(word)
					c.ExitCode = int32(code)
				}
			}
		})(&view)
		view.Probes[words[0]] = probes
	}
	return view
}

// inKubeletWords says what a plan does, as the table does.
func inKubeletWords(plan []runtime.Action) string {
	var kills, starts []string
	stop, create := false, false
	for _, a := range plan {
		switch {
		case a.Reason == runtime.ReasonRestartAll, a.RestartGeneration > 0:
			return "restart all"
		case a.Type == runtime.CreateSandbox:
			create = true
		case a.Reason == runtime.ReasonPodTerminal:
			stop = true
		case a.Type == runtime.KillContainer:
			kills = append(kills, "kill "+a.Container)
		case a.Type == runtime.StartContainer:
			starts = append(starts, "start "+a.Container)
		}
	}
	switch {
	case stop:
		return "stop"
	case create:
		kills = []string{"new sandbox"} // with all containers
	}
	slices.Sort(kills)
	return strings.Join(append(kills, starts...), ", ")
}

// RT-8: a container that crashes waits as long as with the kubelet.
func TestPlan_BacksOffAsKubelet(t *testing.T) {
	kubelettest.RunCases(t, "testdata/kubelet-backoffs.jsonl", func(t *testing.T, c struct{ Runs, Waits []string }) {
		pod := newPod(always, regular("a"))
		now, back := testTime, 0
		for i, run := range c.Runs {
			took, err := time.ParseDuration(run)
			require.NoError(t, err)
			ended := now.Add(took)
			view := newView(ready(0), exited("a", 1, step(back), func(c *runtime.Container) { c.Created, c.Started, c.Finished = now, now, ended }))
			plan := runtime.Plan(pod, view, ended)
			require.Len(t, plan, 1)
			if now = ended; plan[0].Type == runtime.Wait {
				now = plan[0].Until
				plan = runtime.Plan(pod, view, now)
			}
			require.Equal(t, runtime.StartContainer, plan[0].Type)
			require.Equal(t, c.Waits[i], now.Sub(ended).String(), "wait %d", i)
			back = plan[0].BackOffStep
		}
	})
}
