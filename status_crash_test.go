package agent_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestToldThroughKills plays each testdata/status/*.txtar with the agent killed and
// started anew six times at random moments. What its lives tell, put together,
// could have been told by one that was never killed: each status can follow the
// one before, and the last is the one that is told without kills, unless it hangs
// on when the agent looks (ends-by-chance in the config).
// SUBLET_TOLD_SEEDS says how often [1].
//
// AG-4, ST-5, PB-4
func TestToldThroughKills(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "status", "*.txtar"))
	require.NoError(t, err)
	seeds := 1
	if n := os.Getenv("SUBLET_TOLD_SEEDS"); n != "" {
		seeds, err = strconv.Atoi(n)
		require.NoError(t, err)
	}
	for i, path := range files {
		sc := readScenario(t, path)
		for seed := range seeds {
			t.Run(fmt.Sprintf("%s/%d", strings.TrimSuffix(filepath.Base(path), ".txtar"), seed), func(t *testing.T) {
				rnd := rand.New(rand.NewPCG(uint64(seed), uint64(i)))
				var calm, killed *transcript
				synctest.Test(t, func(t *testing.T) { calm = listen(t, sc, sc.script) })
				synctest.Test(t, func(t *testing.T) { killed = listen(t, sc, withKills(sc, rnd)) })
				for _, fault := range killed.faults(sc) {
					t.Errorf("%s\n%s", fault, killed)
				}
				if _, ok := sc.option("ends-by-chance"); !ok {
					assert.Equal(t, calm.last(), killed.last(), "%s", killed)
				}
			})
		}
	}
}

// withKills puts kills into a scenario's script, none where the agent is down.
func withKills(sc *scenario, rnd *rand.Rand) []step {
	script := slices.Clone(sc.script)
	end := script[len(script)-1].at
	for range 6 {
		at := time.Duration(rnd.Int64N(int64(end) * 2 / 3)) // so that there is time to come to the same end
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

// last is how it stands with each pod at the end, without what depends on when
// who looked.
func (b *transcript) last() map[string]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	last := map[string]string{}
	for _, p := range b.pages {
		switch {
		case p.script != "":
		case p.status == nil:
			last[p.pod] = "gone"
		default:
			text := fmt.Sprint(p.status.Phase, " ", p.status.Reason)
			for _, c := range slices.Concat(p.status.InitContainerStatuses, p.status.ContainerStatuses, p.status.EphemeralContainerStatuses) {
				text += " | " + containerText(c)
			}
			last[p.pod] = text
		}
	}
	return last
}

// faults are statuses that an agent which was never killed could not have told
// after the one before.
func (b *transcript) faults(sc *scenario) (all []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	probed := sc.probed()
	told := map[types.UID]*corev1.PodStatus{}
	for _, p := range b.pages {
		if p.script != "" {
			continue
		}
		if former := told[p.uid]; former != nil && p.status != nil {
			for _, f := range cannotFollow(former, p.status, probed) {
				all = append(all, fmt.Sprintf("%v: %s: %s", p.at, p.pod, f))
			}
		}
		told[p.uid] = p.status
	}
	return all
}

// probed reports whether a manifest of the scenario has probes that fail.
func (s *scenario) probed() bool {
	fails := regexp.MustCompile(`exec-exit-code: "[^"]*[1-9]`)
	for name, text := range s.files {
		if strings.HasSuffix(name, ".yaml") && strings.Contains(text, "Probe:") && fails.MatchString(text) {
			return true
		}
	}
	return false
}

// cannotFollow finds what no history of a pod has.
func cannotFollow(former, now *corev1.PodStatus, probed bool) (faults []string) {
	faults = contradicts(*former, *now)
	add := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Sprintf(format, args...))
		}
	}
	add(former.StartTime.Equal(now.StartTime), "start time %v after %v", now.StartTime, former.StartTime)
	add(now.QOSClass == former.QOSClass, "QoS class %s after %s", now.QOSClass, former.QOSClass)
	add(now.ObservedGeneration >= former.ObservedGeneration, "generation %d after %d", now.ObservedGeneration, former.ObservedGeneration)
	add(former.PodIP == "" || now.PodIP != "", "its address is lost")
	for i := range former.Conditions {
		was := &former.Conditions[i]
		is := condition(now.Conditions, was.Type)
		switch {
		case is == nil:
			add(was.Type == corev1.PodResizeInProgress || was.Type == corev1.PodResizePending, "%s is told no more", was.Type)
		case is.Status != was.Status:
			add(!is.LastTransitionTime.Before(&was.LastTransitionTime), "%s changed before it did so last", was.Type)
			add(was.Type != corev1.PodInitialized || is.Status == corev1.ConditionTrue, "no longer initialized")
		default:
			add(!is.LastTransitionTime.Before(&was.LastTransitionTime), "%s has changed less lately than before", was.Type)
		}
	}
	were := slices.Concat(former.InitContainerStatuses, former.ContainerStatuses, former.EphemeralContainerStatuses)
	for _, c := range slices.Concat(now.InitContainerStatuses, now.ContainerStatuses, now.EphemeralContainerStatuses) {
		i := slices.IndexFunc(were, func(o corev1.ContainerStatus) bool { return o.Name == c.Name })
		if i >= 0 {
			for _, f := range cannotFollowContainer(&were[i], &c, probed) {
				faults = append(faults, fmt.Sprintf("%s: %s after %s", f, containerText(c), containerText(were[i])))
			}
		}
	}
	return faults
}

func cannotFollowContainer(was, is *corev1.ContainerStatus, probed bool) (faults []string) {
	if was.ContainerID != "" && is.ContainerID == "" {
		faults = append(faults, "its id is lost")
	}
	same := was.ContainerID != "" && was.ContainerID == is.ContainerID
	switch {
	case !same:
		// One that was made and never seen to run leaves its number to the next.
		ran := was.State.Waiting == nil || was.LastTerminationState.Terminated != nil && was.LastTerminationState.Terminated.ContainerID == was.ContainerID
		if ran && was.ContainerID != "" && is.ContainerID != "" && is.RestartCount <= was.RestartCount {
			faults = append(faults, "another container, and no restart")
		}
	case is.RestartCount != was.RestartCount:
		faults = append(faults, "a restart, and the same container")
	case was.State.Terminated != nil && is.State.Running != nil:
		faults = append(faults, "it runs, though it has ended")
	case was.State.Running != nil && is.State.Running != nil:
		if !was.State.Running.StartedAt.Equal(&is.State.Running.StartedAt) {
			faults = append(faults, "another start")
		}
		if was.Started != nil && *was.Started && (is.Started == nil || !*is.Started) {
			faults = append(faults, "started no more")
		}
		if was.Ready && !is.Ready && !probed {
			faults = append(faults, "ready no more, for no reason")
		}
	case was.State.Running != nil && is.State.Waiting != nil && is.LastTerminationState.Terminated == nil:
		faults = append(faults, "it waits to be started, though it runs")
	}
	return faults
}
