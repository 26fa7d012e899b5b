package status_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/status"
)

// history is a pod that lives at random: containers start, run, end, fail to
// start, get lost and are collected; sandboxes change; probes speak or not; the
// agent starts again; the pod is ended.
type history struct {
	rng          *rand.Rand
	pod          *corev1.Pod
	now          time.Time
	sandbox      int
	next         int // container id
	counts       map[string]uint32
	round        uint32 // how often all containers were restarted
	lost         bool   // a count was
	view         runtime.Pod
	probeResults runtime.PodProbeResults
	failures     map[string]runtime.Failure
	termination  *runtime.Termination
	finished     bool
}

func newHistory(rng *rand.Rand) *history {
	words := []string{"policy=" + []string{"Always", "OnFailure", "Never"}[rng.IntN(3)]}
	for i := range rng.IntN(3) {
		words = append(words, []string{"init", "sidecar"}[rng.IntN(2)]+fmt.Sprintf(":i%d", i))
	}
	for i := range 1 + rng.IntN(3) {
		own := []string{"", "", "/Always", "/Never", "/OnFailure"}[rng.IntN(5)]
		words = append(words, fmt.Sprintf("main:m%d%s", i, own))
	}
	if rng.IntN(4) == 0 {
		words = append(words, "debug:d")
	}
	p := pod(words...)
	for i := range p.Spec.Containers {
		if rng.IntN(2) == 0 {
			p.Spec.Containers[i].ReadinessProbe = &corev1.Probe{}
		}
		if rng.IntN(3) == 0 {
			p.Spec.Containers[i].StartupProbe = &corev1.Probe{}
		}
	}
	if rng.IntN(4) == 0 {
		restartsAll(p, fmt.Sprintf("m%d", rng.IntN(len(p.Spec.Containers))))
	}
	return &history{
		rng: rng, pod: p, now: testTime, counts: map[string]uint32{}, probeResults: runtime.PodProbeResults{},
		failures: map[string]runtime.Failure{}, view: runtime.Pod{UID: p.UID},
	}
}

func (h *history) names() (out []string) {
	for _, c := range h.pod.Spec.InitContainers {
		out = append(out, c.Name)
	}
	for _, c := range h.pod.Spec.Containers {
		out = append(out, c.Name)
	}
	for _, c := range h.pod.Spec.EphemeralContainers {
		out = append(out, c.Name)
	}
	return out
}

// whole reports whether the runtime still has all that ran, and has made nothing
// that no plan would make: init containers beside regular ones, and one that was
// never started in the place of one that is done by its policy.
func (h *history) complete() bool {
	if len(h.pod.Spec.InitContainers) > 0 || h.lost {
		return false
	}
	for _, name := range h.names() {
		last := h.view.LatestContainer(name)
		if h.counts[name] > 0 && last == nil || last != nil && last.State == runtime.Created && last.RestartGeneration == 0 {
			return false
		}
	}
	return true
}

// step changes something and returns the report on it.
func (h *history) step() runtime.Report {
	h.now = h.now.Add(time.Duration(h.rng.IntN(5000)) * time.Millisecond)
	h.view.Containers = append([]runtime.Container(nil), h.view.Containers...)
	h.view.Sandboxes = append([]runtime.Sandbox(nil), h.view.Sandboxes...)
	names := h.names()
	name := names[h.rng.IntN(len(names))]
	at := -1
	for i := range h.view.Containers {
		if h.view.Containers[i].Name == name {
			at = i
			break
		}
	}
	switch pick := h.rng.IntN(13); {
	case pick == 0:
		h.sandbox++
		h.view.Sandboxes = append([]runtime.Sandbox{{
			ID: fmt.Sprint("s", h.sandbox), State: runtime.SandboxReady, IPs: []string{fmt.Sprintf("10.0.0.%d", h.sandbox%250)},
		}}, h.view.Sandboxes...)
	case pick == 1 && len(h.view.Sandboxes) > 0:
		h.view.Sandboxes[0].State = runtime.SandboxNotReady
	case pick <= 5 && (at < 0 || h.view.Containers[at].State == runtime.Exited) && h.termination == nil:
		h.start(name)
	case pick == 6 && at >= 0:
		h.view.Containers = append(h.view.Containers[:at:at], h.view.Containers[at+1:]...)
	case pick == 7 && at >= 0 && h.view.Containers[at].State == runtime.Running:
		h.view.Containers[at].State = runtime.Unknown
	case pick <= 9 && at >= 0 && h.view.Containers[at].State != runtime.Exited:
		c := &h.view.Containers[at]
		c.State, c.Finished, c.ExitCode = runtime.Exited, h.now, int32([]int{0, 0, 1, 137, 42}[h.rng.IntN(5)])
	case pick == 10:
		h.failures[name] = runtime.Failure{Reason: []string{"CrashLoopBackOff", "ImagePullBackOff"}[h.rng.IntN(2)]}
	case pick == 11:
		delete(h.failures, name)
	case at >= 0:
		h.probeResults[h.view.Containers[at].ID] = runtime.ProbeResults{
			Startup: runtime.ProbeResult(h.rng.IntN(3)), Readiness: runtime.ProbeResult(h.rng.IntN(3)), Liveness: runtime.ProbeSuccess,
		}
	}
	if h.termination == nil && h.rng.IntN(60) == 0 {
		h.termination = &runtime.Termination{Deleted: true}
		if h.rng.IntN(2) == 0 {
			h.termination = &runtime.Termination{Reason: "Evicted", Message: "low", Evicted: true}
		}
	}
	h.finished = h.finished || h.termination != nil && !h.view.CouldHaveRunningContainers() && h.rng.IntN(5) == 0
	h.view.ObservedAt = h.now
	return runtime.Report{Observed: h.view, Failures: h.failures, Probes: h.probeResults, Termination: h.termination, Finished: h.finished}
}

func (h *history) start(name string) {
	h.next++
	c := runtime.Container{
		ID: fmt.Sprint(name, "-", h.next), Name: name, Attempt: h.counts[name], State: runtime.Running,
		Created: h.now, Started: h.now, Image: "img-" + name, RestartGeneration: h.round,
	}
	if h.rng.IntN(6) == 0 && runtime.RestartAllStatusOf(h.pod, &h.view).InProgress {
		h.round++
		c.RestartGeneration = h.round
	}
	if h.rng.IntN(8) == 0 {
		c.State = runtime.Created
	}
	h.counts[name]++
	if h.rng.IntN(10) == 0 {
		h.counts[name], h.lost = 0, true // the runtime lost its count
	}
	h.view.Containers = append([]runtime.Container{c}, h.view.Containers...)
}

// ST-2..5: what holds for any history.
func TestRandomHistories(t *testing.T) {
	seeds := uint64(200)
	if testing.Short() {
		seeds = 30
	}
	for seed := range seeds {
		h := newHistory(rand.New(rand.NewPCG(seed, 7)))
		var previous corev1.PodStatus
		exits := map[string]int32{} // reported once, by container id
		for i := range 120 {
			r := h.step()
			st := status.Generate(h.pod, r, previous, status.NodeInfo{HostIPs: []string{"192.0.2.1"}}, h.now)
			at := fmt.Sprintf("seed %d step %d", seed, i)
			checkPod(t, at, h, &r, &previous, &st)
			for _, list := range lists(&st) {
				checkContainers(t, at, previous, list, exits)
			}
			repeated := status.Generate(h.pod, r, st, status.NodeInfo{HostIPs: []string{"192.0.2.1"}}, h.now.Add(time.Hour))
			if !equality.Semantic.DeepEqual(st, repeated) {
				t.Fatalf("%s: the same report tells something else\n%v\n%v", at, dump(st), dump(repeated))
			}
			previous = st
			if h.rng.IntN(10) == 0 { // the agent starts again
				previous = roundTrip(t, st)
				h.probeResults = runtime.PodProbeResults{}
				require.True(t, equality.Semantic.DeepEqual(st, previous), at)
			}
		}
	}
}

func lists(st *corev1.PodStatus) [][]corev1.ContainerStatus {
	return [][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses, st.EphemeralContainerStatuses}
}

func dump(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

func roundTrip(t *testing.T, st corev1.PodStatus) corev1.PodStatus {
	t.Helper()
	var out corev1.PodStatus
	require.NoError(t, json.Unmarshal([]byte(dump(st)), &out))
	return out
}

func checkPod(t *testing.T, at string, h *history, r *runtime.Report, previous, st *corev1.PodStatus) {
	t.Helper()
	ended := func(p corev1.PodPhase) bool { return p == corev1.PodFailed || p == corev1.PodSucceeded }
	if ended(previous.Phase) {
		require.Equal(t, previous.Phase, st.Phase, at)
		require.Equal(t, previous.Reason, st.Reason, at)
	} else if ended(st.Phase) {
		require.False(t, r.Observed.CouldHaveRunningContainers(), "%s: %s told while a container runs", at, st.Phase)
		if r.Termination == nil && !r.Finished && h.complete() {
			done, _ := runtime.IsTerminal(h.pod, r.Observed)
			require.True(t, done, "%s: %s is told of a pod that goes on", at, st.Phase)
		}
	}
	if r.Finished {
		require.True(t, ended(st.Phase), at)
	}
	if previous.StartTime != nil {
		require.True(t, previous.StartTime.Equal(st.StartTime), at)
	}
	for _, c := range st.Conditions {
		for _, old := range previous.Conditions {
			if old.Type != c.Type {
				continue
			}
			moved := !old.LastTransitionTime.Equal(&c.LastTransitionTime)
			require.False(t, moved && old.Status == c.Status, "%s: %s moved without a change", at, c.Type)
			require.True(t, old.Status == c.Status || c.LastTransitionTime.Time.Equal(h.now.Truncate(time.Second)), "%s: %s changed and did not move", at, c.Type)
		}
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			for i := range st.ContainerStatuses {
				require.True(t, st.ContainerStatuses[i].Ready, "%s: ready with an unready container", at)
			}
		}
	}
	require.Len(t, st.ContainerStatuses, len(h.pod.Spec.Containers), at)
	for i := range h.pod.Spec.Containers {
		require.Equal(t, h.pod.Spec.Containers[i].Name, st.ContainerStatuses[i].Name, at)
		if st.ContainerStatuses[i].Ready {
			require.NotNil(t, st.ContainerStatuses[i].State.Running, "%s: ready but not running", at)
		}
	}
}

func checkContainers(t *testing.T, at string, previous corev1.PodStatus, list []corev1.ContainerStatus, exits map[string]int32) {
	t.Helper()
	for i := range list {
		c := &list[i]
		states := 0
		for _, set := range []bool{c.State.Waiting != nil, c.State.Running != nil, c.State.Terminated != nil} {
			if set {
				states++
			}
		}
		require.Equal(t, 1, states, "%s: %s is in %d states", at, c.Name, states)
		for _, old := range lists(&previous) {
			for j := range old {
				if old[j].Name == c.Name {
					require.GreaterOrEqual(t, c.RestartCount, old[j].RestartCount, "%s: %s", at, c.Name)
				}
			}
		}
		for _, end := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
			if end == nil || end.Reason == "ContainerStatusUnknown" {
				continue
			}
			if code, reported := exits[end.ContainerID]; reported {
				require.Equal(t, code, end.ExitCode, "%s: %s has another exit code", at, end.ContainerID)
			}
			exits[end.ContainerID] = end.ExitCode
		}
		if code, reported := exits[c.ContainerID]; reported && c.State.Running == nil && c.ContainerID != "" {
			end := c.State.Terminated
			if end == nil {
				end = c.LastTerminationState.Terminated
			}
			if end == nil || end.ExitCode != code {
				t.Fatalf("%s: the end of %s is lost: %s", at, c.ContainerID, dump(c))
			}
		}
	}
}
