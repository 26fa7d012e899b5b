package scenario

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/agenttest"
)

// TestStatus_AgentKilled plays each testdata/status/*.txtar and kills and restarts the
// agent six times at random times. The statuses that all its processes send, taken
// together, are possible for one process: each status can follow the previous one, and
// the last one is the same as without kills, unless it depends on when the agent
// inspects the pod (ends-by-chance in the config).
//
// SUBLET_KILL_SEEDS is the number of seeds. Default: 1.
//
// AG-4, ST-5, PB-4
func TestStatus_AgentKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute with the race detector, and is the same for all users")
	}
	for i, path := range scenarioFiles(t, "status", "*.txtar") {
		sc := readScenario(t, path)
		for seed := range seeds(t, "SUBLET_KILL_SEEDS", 1) {
			t.Run(fmt.Sprintf("%s/%d", caseName(path), seed), func(t *testing.T) {
				rnd := rand.New(rand.NewPCG(uint64(seed), uint64(i)))
				var calm, killed *transcript
				synctest.Test(t, func(t *testing.T) { calm = playStatuses(t, sc, sc.script) })
				synctest.Test(t, func(t *testing.T) { killed = playStatuses(t, sc, withKills(sc, rnd)) })
				for _, problem := range killed.problems(sc) {
					t.Errorf("%s\n%s", problem, killed)
				}
				if _, ok := sc.option("ends-by-chance"); !ok {
					assert.Equal(t, calm.last(), killed.last(), "%s", killed)
				}
			})
		}
	}
}

// withKills adds kills to the script of a scenario, none while the agent is down.
func withKills(sc *scenario, rnd *rand.Rand) []step {
	script := slices.Clone(sc.script)
	end := script[len(script)-1].at
	for range 6 {
		at := time.Duration(rnd.Int64N(int64(end) * 2 / 3)) // leaves time to reach the same final state
		down := false
		for _, s := range sc.script {
			if s.at <= at && (s.args[0] == "kill-agent" || s.args[0] == "start-agent") {
				down = s.args[0] == "kill-agent"
			}
		}
		if !down {
			script = append(script, step{at: at, line: "restart-agent", args: []string{"restart-agent"}})
		}
	}
	slices.SortStableFunc(script, func(a, b step) int { return cmp.Compare(a.at, b.at) })
	return script
}

// last returns the final state of each pod, without times.
func (tr *transcript) last() map[string]string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	last := map[string]string{}
	for _, p := range tr.entries {
		switch {
		case p.script != "":
		case p.status == nil:
			last[p.pod] = "gone"
		default:
			text := fmt.Sprint(p.status.Phase, " ", p.status.Reason)
			for _, c := range slices.Concat(p.status.InitContainerStatuses, p.status.ContainerStatuses, p.status.EphemeralContainerStatuses) {
				text += " | " + agenttest.ContainerText(c)
			}
			last[p.pod] = text
		}
	}
	return last
}

// problems returns the changes of a status that are not possible for one process.
func (tr *transcript) problems(sc *scenario) (all []string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	probed := sc.probed()
	last := map[types.UID]*corev1.PodStatus{}
	for _, p := range tr.entries {
		if p.script != "" {
			continue
		}
		if previous := last[p.uid]; previous != nil && p.status != nil {
			for _, f := range cannotFollow(previous, p.status, probed) {
				all = append(all, fmt.Sprintf("%v: %s: %s", p.at, p.pod, f))
			}
		}
		last[p.uid] = p.status
	}
	return all
}

// probed reports whether a manifest of the scenario has failing probes.
func (s *scenario) probed() bool {
	fails := regexp.MustCompile(`exec-exit-code: "[^"]*[1-9]`)
	for name, text := range s.files {
		if strings.HasSuffix(name, ".yaml") && strings.Contains(text, "Probe:") && fails.MatchString(text) {
			return true
		}
	}
	return false
}

// cannotFollow returns the changes from the previous status that must not occur.
func cannotFollow(previous, now *corev1.PodStatus, probed bool) (problems []string) {
	problems = agenttest.StatusProblems(previous, now, false)
	add := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Sprintf(format, args...))
		}
	}
	add(previous.StartTime.Equal(now.StartTime), "start time %v after %v", now.StartTime, previous.StartTime)
	add(now.QOSClass == previous.QOSClass, "QoS class %s after %s", now.QOSClass, previous.QOSClass)
	add(now.ObservedGeneration >= previous.ObservedGeneration, "generation %d after %d", now.ObservedGeneration, previous.ObservedGeneration)
	add(previous.PodIP == "" || now.PodIP != "", "the pod IP is lost")
	for i := range previous.Conditions {
		was := &previous.Conditions[i]
		is := condition(now.Conditions, was.Type)
		switch {
		case is == nil:
			add(was.Type == corev1.PodResizeInProgress || was.Type == corev1.PodResizePending, "%s is missing", was.Type)
		case is.Status != was.Status:
			add(!is.LastTransitionTime.Before(&was.LastTransitionTime), "%s changed before its last transition", was.Type)
			add(was.Type != corev1.PodInitialized || is.Status == corev1.ConditionTrue, "no longer initialized")
		default:
			add(!is.LastTransitionTime.Before(&was.LastTransitionTime), "transition time of %s goes back", was.Type)
		}
	}
	were := slices.Concat(previous.InitContainerStatuses, previous.ContainerStatuses, previous.EphemeralContainerStatuses)
	for _, c := range slices.Concat(now.InitContainerStatuses, now.ContainerStatuses, now.EphemeralContainerStatuses) {
		i := slices.IndexFunc(were, func(o corev1.ContainerStatus) bool { return o.Name == c.Name })
		if i >= 0 {
			for _, f := range cannotFollowContainer(&were[i], &c, probed) {
				problems = append(problems, fmt.Sprintf("%s: %s after %s", f, agenttest.ContainerText(c), agenttest.ContainerText(were[i])))
			}
		}
	}
	return problems
}

func cannotFollowContainer(was, is *corev1.ContainerStatus, probed bool) (problems []string) {
	if was.ContainerID != "" && is.ContainerID == "" {
		problems = append(problems, "the container id is lost")
	}
	same := was.ContainerID != "" && was.ContainerID == is.ContainerID
	switch {
	case !same:
		// The attempt number of one that was never observed running is used again.
		ran := was.State.Waiting == nil || was.LastTerminationState.Terminated != nil && was.LastTerminationState.Terminated.ContainerID == was.ContainerID
		if ran && was.ContainerID != "" && is.ContainerID != "" && is.RestartCount <= was.RestartCount {
			problems = append(problems, "another container without a restart")
		}
	case is.RestartCount != was.RestartCount:
		problems = append(problems, "a restart of the same container")
	case was.State.Terminated != nil && is.State.Running != nil:
		problems = append(problems, "running after its termination")
	case was.State.Running != nil && is.State.Running != nil:
		if !was.State.Running.StartedAt.Equal(&is.State.Running.StartedAt) {
			problems = append(problems, "another start time")
		}
		if was.Started != nil && *was.Started && (is.Started == nil || !*is.Started) {
			problems = append(problems, "not started any more")
		}
		if was.Ready && !is.Ready && !probed {
			problems = append(problems, "not ready any more without a reason")
		}
	case was.State.Running != nil && is.State.Waiting != nil && is.LastTerminationState.Terminated == nil:
		problems = append(problems, "waiting while it runs")
	}
	return problems
}
