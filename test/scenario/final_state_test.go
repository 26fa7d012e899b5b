package scenario

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/runtimetest"
)

// finalState is the state at the end of a scenario, by the names of pods.
type finalState struct {
	sandboxes  map[string]int                       // that are ready
	running    map[string][]string                  // containers with their images
	phases     map[string][]string                  // reported, with reasons
	containers map[string]map[string]containerState // reported
	restarting map[string]bool                      // pod/container: restarts indefinitely
	stops      map[string]time.Duration             // pod/container: first stop by an agent
}

// containerState is the reported state of a container.
type containerState struct {
	text     string
	restarts int32
}

func (p *player) finalState() *finalState {
	f := &finalState{
		sandboxes: map[string]int{}, running: map[string][]string{}, phases: map[string][]string{},
		containers: map[string]map[string]containerState{}, restarting: map[string]bool{}, stops: p.FirstStops(),
	}
	for _, s := range p.ReadySandboxes() {
		f.sandboxes[s.GetMetadata().GetName()]++
	}
	for _, c := range p.Running() {
		pod := c.GetLabels()[runtime.LabelPodName]
		f.running[pod] = append(f.running[pod], c.GetMetadata().GetName()+" of "+c.GetImage().GetUserSpecifiedImage())
	}
	for uid, st := range p.Statuses() {
		pod, _, _ := strings.Cut(p.Trace.Label(uid, ""), "(")
		f.phases[pod] = append(f.phases[pod], strings.TrimSpace(string(st.Phase)+" "+st.Reason))
		if f.containers[pod] == nil {
			f.containers[pod] = map[string]containerState{}
		}
		for _, c := range slices.Concat(st.InitContainerStatuses, st.ContainerStatuses) {
			text := agenttest.ContainerText(corev1.ContainerStatus{Name: c.Name, State: c.State, Ready: c.Ready})
			f.containers[pod][c.Name] = containerState{text: text, restarts: c.RestartCount}
		}
	}
	for _, containers := range f.running {
		slices.Sort(containers)
	}
	for _, phases := range f.phases {
		slices.Sort(phases)
	}
	return f
}

func (f *finalState) restarted() bool {
	for _, containers := range f.containers {
		for _, c := range containers {
			if c.restarts > 0 {
				return true
			}
		}
	}
	return false
}

// findRestarting finds the containers that restart indefinitely, from a state some time
// later.
func (f *finalState) findRestarting(later *finalState) {
	for pod, containers := range f.containers {
		for name, c := range containers {
			if later.containers[pod][name].restarts > c.restarts {
				f.restarting[pod+"/"+name] = true
			}
		}
	}
}

// compare asserts that the final state with faults is the one without.
func (f *finalState) compare(p *player, want *finalState) {
	if !p.mayRestart() {
		assert.Equal(p.t, want.restarting, f.restarting, "containers that restart indefinitely")
	}
	for pod := range f.pods(want) {
		if _, limited := p.sc.option("max-pods"); limited && f.rejected(pod) != want.rejected(pod) {
			continue // which of them fit depends on when the others end
		}
		if p.mayBeFinished(pod, f) {
			assert.Empty(p.t, f.running[pod], "%s has finished: running containers", pod)
			continue
		}
		f.comparePod(p, pod, want)
	}
	for container, at := range f.stops {
		first, ok := want.stops[container]
		if !p.mayRestart() && at < p.firstEnd() { // after that it can still run where it exits by itself without faults
			assert.True(p.t, ok, "%s is stopped at %v, and without faults never", container, at)
			assert.GreaterOrEqual(p.t, at, first-retry, "%s is stopped earlier than without faults", container)
		}
	}
	p.AssertNothingLeaked(func(pod, container string) bool { return want.restarting[pod+"/"+container] })
}

func (f *finalState) comparePod(p *player, pod string, want *finalState) {
	assert.Equal(p.t, want.sandboxes[pod], f.sandboxes[pod], "%s: ready sandboxes", pod)
	assert.Equal(p.t, want.phases[pod], f.phases[pod], "%s: reported phases", pod)
	assert.Equal(p.t, want.steady(pod, want.running[pod]), want.steady(pod, f.running[pod]), "%s: running containers", pod)
	for name, c := range want.containers[pod] {
		if want.restarting[pod+"/"+name] || strings.HasPrefix(want.phases[pod][0], "Failed DeadlineExceeded") {
			continue
		}
		got := f.containers[pod][name]
		assert.Equal(p.t, c.text, got.text, "%s: reported state of %s", pod, name)
		if !p.mayRestart() && !p.maySkipAttempts() {
			assert.LessOrEqual(p.t, got.restarts, c.restarts, "%s: restarts of %s", pod, name)
		}
	}
}

// pods returns the pods in either state.
func (f *finalState) pods(other *finalState) map[string]bool {
	all := map[string]bool{}
	for _, s := range []*finalState{f, other} {
		for _, pods := range [][]string{slices.Collect(maps.Keys(s.sandboxes)), slices.Collect(maps.Keys(s.running)), slices.Collect(maps.Keys(s.phases))} {
			for _, pod := range pods {
				all[pod] = true
			}
		}
	}
	return all
}

func (f *finalState) rejected(pod string) bool {
	return slices.Contains(f.phases[pod], "Failed OutOfpods")
}

// retry is how much earlier an event can occur with faults, because of another retry of a
// call or sync.
const retry = 10 * time.Second

// steady returns the containers of a pod without those that restart indefinitely.
func (f *finalState) steady(pod string, running []string) []string {
	steady := []string{}
	for _, c := range running {
		if name, _, _ := strings.Cut(c, " "); !f.restarting[pod+"/"+name] {
			steady = append(steady, c)
		}
	}
	return steady
}

// mayRestart reports whether the faults alone can restart containers: an inspection got a
// wrong response, or exec probes failed.
func (p *player) mayRestart() bool {
	return p.faults.Lies() || p.faults.Strikes("", "ExecSync") && p.sc.manifestsContain("exec:")
}

// mayBeFinished reports whether a pod can be reported as finished because of a wrong
// response. Its sandbox may have been missing from the list when it was to be stopped.
func (p *player) mayBeFinished(pod string, f *finalState) bool {
	lied := p.faults.Lies() && (p.sc.manifestsContain("restartPolicy: Never") || p.sc.manifestsContain("restartPolicy: OnFailure"))
	return lied && slices.ContainsFunc(f.phases[pod], func(phase string) bool {
		return strings.HasPrefix(phase, "Failed") || strings.HasPrefix(phase, "Succeeded")
	})
}

// maySkipAttempts reports whether a container can have been created by a call whose
// response was lost, and removed before it ran. Its attempt number is not used again, as in
// the kubelet.
func (p *player) maySkipAttempts() bool {
	return p.faults.Strikes(runtimetest.Drop, "CreateContainer")
}

// manifestsContain reports whether a manifest of the scenario contains a text.
func (s *scenario) manifestsContain(text string) bool {
	for name, file := range s.files {
		if strings.HasSuffix(name, ".yaml") && strings.Contains(file, text) {
			return true
		}
	}
	return false
}

// firstEnd returns the time of the first command that ends a pod.
func (p *player) firstEnd() time.Duration {
	for _, s := range p.sc.script {
		switch s.args[0] {
		case "delete", "mark", "remove", "copy", "stop-agent":
			return s.at
		}
	}
	return 1000 * time.Hour
}
