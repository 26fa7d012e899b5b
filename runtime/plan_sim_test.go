package runtime_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// sim is a naive runtime: it does what a plan says, action by action, and keeps
// its own simple record of what each pod rule is about, from the orders that it
// gets and not from the plan's idea of the pod.
type sim struct {
	t    *testing.T
	rnd  *rand.Rand
	pod  *corev1.Pod
	view runtime.PlanInput
	now  time.Time
	ids  int

	// What has happened in a sandbox and round: init containers that succeeded,
	// sidecars that have started.
	passed  map[string]bool
	highest map[string]int // highest attempt that ran, by name
}

func newSim(t *testing.T, rnd *rand.Rand, pod *corev1.Pod) *sim {
	return &sim{
		t: t, rnd: rnd, pod: pod, now: testTime, view: newView(),
		passed: make(map[string]bool), highest: make(map[string]int),
	}
}

func key(sandbox string, round uint32, name string) string {
	return fmt.Sprintf("%s/%d/%s", sandbox, round, name)
}

func (s *sim) id(prefix string) string { s.ids++; return fmt.Sprintf("%s-%d", prefix, s.ids) }

func (s *sim) container(id string) *runtime.Container {
	for i := range s.view.Containers {
		if s.view.Containers[i].ID == id {
			return &s.view.Containers[i]
		}
	}
	s.t.Fatalf("action on unknown container %q", id)
	return nil
}

func (s *sim) end(c *runtime.Container, code int32) {
	c.State, c.ExitCode, c.Finished = runtime.Exited, code, s.now
	if code == 0 && c.Type == runtime.Init {
		s.passed[key(c.SandboxID, c.RestartGeneration, c.Name)] = true
	}
}

// plan asks for a plan and checks it as a whole.
func (s *sim) plan() []runtime.Action {
	view := s.view
	view.Containers = slices.Clone(s.view.Containers)
	view.Sandboxes = slices.Clone(s.view.Sandboxes)
	view.ObservedAt = s.now
	plan := runtime.Plan(s.pod, view, s.now)
	require.Equal(s.t, plan, runtime.Plan(s.pod, view, s.now), "the same input gives the same plan")
	return plan
}

// do carries out the first n actions of a plan; fewer than all is a crash.
func (s *sim) do(plan []runtime.Action, n int) {
	for _, a := range plan[:n] {
		s.one(a)
	}
}

func (s *sim) one(a runtime.Action) {
	switch a.Type {
	case runtime.KillContainer:
		c := s.container(a.ID)
		require.GreaterOrEqual(s.t, a.GracePeriod, time.Second)
		require.NotEqual(s.t, runtime.Exited, c.State, "what has ended is not killed")
		s.end(c, 137)
	case runtime.RemoveContainer:
		c := s.container(a.ID)
		require.NotEqual(s.t, runtime.Running, c.State, "what runs is not removed")
		s.view.Containers = slices.DeleteFunc(s.view.Containers, func(c runtime.Container) bool { return c.ID == a.ID })
	case runtime.KillSandbox:
		s.stopSandbox(a.ID)
	case runtime.CreateSandbox:
		for _, sb := range s.view.Sandboxes {
			require.NotEqual(s.t, runtime.SandboxReady, sb.State, "one sandbox at a time")
			require.Less(s.t, sb.Attempt, a.Attempt)
		}
		sb := runtime.Sandbox{ID: s.id("sb"), Attempt: a.Attempt, State: runtime.SandboxReady, IPs: []string{"10.1.2.3"}}
		s.view.Sandboxes = append([]runtime.Sandbox{sb}, s.view.Sandboxes...)
	case runtime.StartContainer:
		s.start(a, runtime.Running)
	case runtime.UpdateResources:
		s.container(a.ID)
	case runtime.Wait:
		if a.Reason != runtime.ReasonTargetNotRunning {
			require.True(s.t, a.Until.After(s.now), "a wait that is over is no wait")
		}
	}
}

func (s *sim) stopSandbox(id string) {
	for i := range s.view.Sandboxes {
		if s.view.Sandboxes[i].ID == id {
			s.view.Sandboxes[i].State = runtime.SandboxNotReady
		}
	}
	for i := range s.view.Containers {
		if c := &s.view.Containers[i]; c.SandboxID == id && c.State != runtime.Exited && c.State != runtime.Created {
			s.end(c, 137)
		}
	}
}

// start makes a container and checks every rule about starts.
func (s *sim) start(a runtime.Action, state runtime.ContainerState) {
	require.NotEmpty(s.t, s.view.Sandboxes)
	sb := s.view.Sandboxes[0]
	require.Equal(s.t, runtime.SandboxReady, sb.State, "a start needs a sandbox")
	for _, c := range s.view.Containers {
		if c.Name == a.Container {
			require.NotContains(s.t, []runtime.ContainerState{runtime.Running, runtime.Unknown}, c.State, "%s runs twice", a.Container)
			require.NotEqual(s.t, c.Attempt, a.Attempt, "the name of %s is taken", a.Container)
		}
	}
	if high, ok := s.highest[a.Container]; ok {
		require.Greater(s.t, int(a.Attempt), high, "restart counts of %s only grow", a.Container)
	}
	s.highest[a.Container] = int(a.Attempt)
	if state == runtime.Created {
		s.highest[a.Container]-- // it did not run: its number is free
	}
	if a.ContainerType == runtime.Ephemeral {
		s.targetRuns(a.Container)
	} else {
		// RT-5, RT-6: what comes before in the order must be done.
		for i := range s.pod.Spec.InitContainers {
			c := &s.pod.Spec.InitContainers[i]
			if c.Name == a.Container {
				break
			}
			require.True(s.t, s.passed[key(sb.ID, a.RestartGeneration, c.Name)], "%s started before %s", a.Container, c.Name)
		}
	}
	spec := runtime.ContainerSpec(s.pod, a.Container)
	require.NotNil(s.t, spec)
	kind, _ := runtime.ContainerTypeOf(s.pod, a.Container)
	require.Equal(s.t, kind, a.ContainerType)
	c := runtime.Container{
		ID: s.id(a.Container), Name: a.Container, Type: a.ContainerType, SandboxID: sb.ID, Attempt: a.Attempt, State: state,
		Created: s.now, BackOffStep: a.BackOffStep, RestartGeneration: a.RestartGeneration, Hash: runtime.HashContainer(spec),
	}
	if state == runtime.Running {
		c.Started = s.now
		v := runtime.ProbeResults{Startup: runtime.ProbeSuccess, Liveness: runtime.ProbeSuccess}
		if spec.StartupProbe != nil {
			v.Startup = runtime.ProbeUnknown
		} else if a.ContainerType == runtime.Sidecar {
			s.passed[key(sb.ID, a.RestartGeneration, a.Container)] = true
		}
		s.view.Probes[c.ID] = v
	}
	s.view.Containers = append([]runtime.Container{c}, s.view.Containers...)
}

// prove lets the startup probe of a running container pass.
func (s *sim) prove(c *runtime.Container) {
	v := s.view.Probes[c.ID]
	v.Startup = runtime.ProbeSuccess
	s.view.Probes[c.ID] = v
	if c.Type == runtime.Sidecar {
		s.passed[key(c.SandboxID, c.RestartGeneration, c.Name)] = true
	}
}

func (s *sim) anyOf(states ...runtime.ContainerState) *runtime.Container {
	var found []*runtime.Container
	for i := range s.view.Containers {
		if slices.Contains(states, s.view.Containers[i].State) {
			found = append(found, &s.view.Containers[i])
		}
	}
	if len(found) == 0 {
		return nil
	}
	return found[s.rnd.IntN(len(found))]
}

// mishap does something to the pod that the world might.
func (s *sim) mishap() {
	s.now = s.now.Add(time.Duration(s.rnd.IntN(400)) * time.Second)
	switch s.rnd.IntN(9) {
	case 0, 1:
		if c := s.anyOf(runtime.Running); c != nil {
			s.end(c, []int32{0, 0, 1, 42, 88}[s.rnd.IntN(5)])
		}
	case 2:
		if c := s.anyOf(runtime.Running); c != nil {
			s.prove(c)
		}
	case 3:
		if c := s.anyOf(runtime.Running); c != nil {
			v := s.view.Probes[c.ID]
			v.Liveness = runtime.ProbeFailure
			s.view.Probes[c.ID] = v
		}
	case 4:
		if len(s.view.Sandboxes) > 0 {
			s.stopSandbox(s.view.Sandboxes[0].ID)
		}
	case 5:
		if c := s.anyOf(runtime.Running); c != nil {
			c.State = runtime.Unknown
		}
	case 6: // dead containers are collected, but for the newest of each name
		kept := make(map[string]bool)
		s.view.Containers = slices.DeleteFunc(s.view.Containers, func(c runtime.Container) bool {
			drop := c.State == runtime.Exited && kept[c.Name]
			kept[c.Name] = kept[c.Name] || c.State == runtime.Exited
			return drop
		})
	case 7: // a crash in the middle of a plan
		if plan := s.plan(); len(plan) > 0 {
			s.do(plan, s.rnd.IntN(len(plan)))
		}
	case 8: // a crash between create and start
		if plan := s.plan(); len(plan) > 0 && plan[len(plan)-1].Type == runtime.StartContainer {
			s.do(plan, len(plan)-1)
			s.start(plan[len(plan)-1], runtime.Created)
		}
	}
}

// settle lets the pod come to rest: nothing fails any more, init containers
// succeed, probes pass, waits end. It returns how many plans that took.
func (s *sim) settle() int {
	for syncs := 0; ; syncs++ {
		require.Less(s.t, syncs, 60, "the pod comes to rest: %s", show(s.plan()))
		plan := s.plan()
		s.do(plan, len(plan))
		// Carried out, a plan is not planned again.
		for _, a := range s.plan() {
			switch a.Type {
			case runtime.CreateSandbox:
				s.t.Fatalf("a second sandbox after %s", show(plan))
			case runtime.KillContainer:
				if a.Reason == runtime.ReasonPodTerminal {
					continue // the plan killed the last one that had work
				}
				require.False(s.t, slices.ContainsFunc(plan, func(b runtime.Action) bool {
					return b.Type == runtime.StartContainer && b.Container == a.Container
				}), "%s is killed right after its start", a.Container)
			}
		}
		idle := len(pressing(plan)) == 0
		for _, a := range plan {
			if a.Type == runtime.Wait && a.Until.After(s.now) {
				s.now = a.Until
			}
		}
		for i := range s.view.Containers {
			c := &s.view.Containers[i]
			if c.State != runtime.Running {
				continue
			}
			if s.view.Probes[c.ID].Startup != runtime.ProbeSuccess {
				s.prove(c)
				idle = false
			}
			if c.Type == runtime.Init {
				s.end(c, 0)
				idle = false
			}
		}
		if idle {
			return syncs
		}
	}
}

// atGoal checks that a pod at rest is what its spec asks for.
func (s *sim) atGoal() {
	done, phase := runtime.IsTerminal(s.pod, s.view.Pod)
	if done {
		require.NotEmpty(s.t, phase)
		require.Nil(s.t, s.anyOf(runtime.Running, runtime.Unknown), "nothing of a pod that is done runs")
		return
	}
	for c, kind := range runtime.ContainerSpecs(s.pod) {
		var live []runtime.Container
		for _, x := range s.view.Containers {
			if x.Name == c.Name && (x.State == runtime.Running || x.State == runtime.Unknown) {
				live = append(live, x)
			}
		}
		switch kind {
		case runtime.Init:
			require.Empty(s.t, live)
		case runtime.Sidecar:
			require.Len(s.t, live, 1, c.Name)
		case runtime.Regular:
			if s.pod.Spec.RestartPolicy == always && c.RestartPolicy == nil {
				require.Len(s.t, live, 1, c.Name)
			}
		}
		for _, x := range live {
			require.Equal(s.t, s.view.Sandboxes[0].ID, x.SandboxID)
		}
	}
}

func randomPod(rnd *rand.Rand) *corev1.Pod {
	var edits []edit
	for i := range rnd.IntN(4) {
		var tweaks []tweak
		if rnd.IntN(3) == 0 {
			tweaks = append(tweaks, startupProbe)
		}
		if rnd.IntN(2) == 0 {
			edits = append(edits, sidecarC(fmt.Sprintf("s%d", i), tweaks...))
			continue
		}
		if rnd.IntN(5) == 0 {
			tweaks = append(tweaks, rule(restartAllAction, in, 88), policy(corev1.ContainerRestartPolicyOnFailure))
		}
		edits = append(edits, initC(fmt.Sprintf("i%d", i), tweaks...))
	}
	for i := range 1 + rnd.IntN(3) {
		var tweaks []tweak
		switch rnd.IntN(6) {
		case 0:
			tweaks = append(tweaks, policy(corev1.ContainerRestartPolicyNever), rule(restartAction, in, 42))
		case 1:
			tweaks = append(tweaks, policy(corev1.ContainerRestartPolicyNever), rule(restartAllAction, in, 88))
		case 2:
			tweaks = append(tweaks, startupProbe)
		}
		edits = append(edits, regular(fmt.Sprintf("r%d", i), tweaks...))
	}
	if rnd.IntN(4) == 0 {
		edits = append(edits, debugC("debug", []string{"", "r0", "s0", "i0"}[rnd.IntN(4)]))
	}
	return newPod([]corev1.RestartPolicy{always, onFailure, never}[rnd.IntN(3)], edits...)
}

// RT-2..RT-8: whatever happens to a pod, carrying out plans brings it to its
// goal in a bounded number of steps, never breaks an order rule on the way, and
// then leaves it alone.
func TestPlan_RandomSequences(t *testing.T) {
	sequences := 1500
	if testing.Short() {
		sequences = 300
	}
	for seed := range sequences {
		rnd := rand.New(rand.NewPCG(uint64(seed), 7))
		pod := randomPod(rnd)
		ok := t.Run(fmt.Sprint(seed), func(t *testing.T) {
			s := newSim(t, rnd, pod)
			for range rnd.IntN(40) {
				if rnd.IntN(2) == 0 {
					s.mishap()
				} else {
					plan := s.plan()
					s.do(plan, len(plan))
				}
			}
			s.settle()
			s.atGoal()
			require.Empty(t, pressing(s.plan()), "a pod at rest is left alone")
		})
		if !ok {
			break
		}
	}
}
