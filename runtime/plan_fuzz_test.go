package runtime_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/runtime"
)

// garbage makes a view that no runtime would show: ids that match nothing,
// states and times at odds, names the pod does not have. bytes decide.
func garbage(data []byte) runtime.PlanInput {
	next := func(n int) int {
		if len(data) == 0 {
			return 0
		}
		b := data[0]
		data = data[1:]
		return int(b) % n
	}
	v := newView()
	if next(3) == 0 {
		v.ObservedAt = time.Time{}
	}
	for i := range next(4) {
		s := runtime.Sandbox{ID: fmt.Sprintf("s%d", next(3)), Attempt: uint32(next(3)) * 0x7fffffff, State: runtime.SandboxState(next(3)), HostNetwork: next(5) == 0}
		if i > 0 || next(2) == 0 {
			s.IPs = []string{"::1"}
		}
		v.Sandboxes = append(v.Sandboxes, s)
	}
	names := []string{"s0", "i0", "i1", "s1", "r0", "r1", "r2", "debug", "", "x"}
	for i := range next(12) {
		at := func() time.Time {
			return []time.Time{{}, testTime, testTime.Add(-time.Hour), testTime.Add(time.Hour), time.Unix(1<<40, 0)}[next(5)]
		}
		c := runtime.Container{
			ID: fmt.Sprint("c", i), Name: names[next(len(names))], SandboxID: []string{"", "s0", "s1", "s2"}[next(4)],
			Attempt: uint32(next(4)) * 0x55555555, State: runtime.ContainerState(next(5)), ExitCode: []int32{0, 1, 42, 88, -1}[next(5)],
			Created: at(), Started: at(), Finished: at(), BackOffStep: next(40) - 5, RestartGeneration: uint32(next(2)) * 0xffffffff,
			Type: runtime.ContainerType(next(5)), Hash: []string{"", "s1-0", "abc"}[next(3)],
		}
		if next(3) == 0 {
			q := resource.MustParse([]string{"0", "1", "-1", "9E"}[next(4)])
			c.Resources = &runtime.Resources{CPULimit: &q, MemoryLimit: &q}
		}
		v.Containers = append(v.Containers, c)
		v.Probes[c.ID] = runtime.ProbeResults{Startup: runtime.ProbeResult(next(4)), Liveness: runtime.ProbeResult(next(4))}
	}
	if next(2) == 0 {
		v.Restarts = map[string]uint32{"r0": uint32(next(2)) * 0xffffffff, "zz": 1}
	}
	return v
}

// FuzzPlan: whatever a runtime says, plans and terminations are made, speak of
// what exists only, and are the same each time.
func FuzzPlan(f *testing.F) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 64 {
		data := make([]byte, 160)
		for i := range data {
			data[i] = byte(rnd.Uint32())
		}
		f.Add(rnd.Uint64(), data)
	}
	f.Fuzz(func(t *testing.T, seed uint64, data []byte) {
		pod := randomPod(rand.New(rand.NewPCG(seed, 0)))
		view := garbage(data)
		plan := runtime.Plan(pod, view, testTime)
		if repeated := runtime.Plan(pod, view, testTime); show(repeated) != show(plan) {
			t.Fatalf("%s\n%s", show(plan), show(repeated))
		}
		ids := map[string]bool{}
		for _, s := range view.Sandboxes {
			ids[s.ID] = true
		}
		for _, c := range view.Containers {
			ids[c.ID] = true
		}
		started := map[string]bool{}
		for _, a := range plan {
			switch a.Type {
			case runtime.StartContainer:
				if runtime.ContainerSpec(pod, a.Container) == nil || started[a.Container] || a.ID != "" {
					t.Fatalf("bad start of %q: %s", a.Container, show(plan))
				}
				started[a.Container] = true
			case runtime.CreateSandbox:
			default:
				if !ids[a.ID] && a.Reason != runtime.ReasonTargetNotRunning {
					t.Fatalf("action on unknown %q: %s", a.ID, show(plan))
				}
			}
			if a.Type == runtime.Wait && a.Reason != runtime.ReasonTargetNotRunning && !a.Until.After(testTime) {
				t.Fatalf("wait that is over: %s", show(plan))
			}
		}
		for _, s := range runtime.PlanTermination(pod, view.Pod, runtime.Termination{GracePeriod: time.Duration(seed)}, testTime) {
			if !ids[s.ID] || s.RemainingGracePeriod(testTime) < 0 {
				t.Fatalf("bad stop %+v", s)
			}
		}
		if done, phase := runtime.IsTerminal(pod, view.Pod); done != (phase != "") {
			t.Fatal(done, phase)
		}
	})
}

func BenchmarkPlan(b *testing.B) {
	pod := newPod(always, sidecarC("s", startupProbe), initC("i"), regular("a", limits("1", "1Gi")), regular("b"))
	of := func(name string) func(*runtime.Container) {
		return hash(runtime.HashContainer(runtime.ContainerSpec(pod, name)))
	}
	atRest := newView(ready(0), running("s", of("s")), exited("i", 0), running("a", of("a"), has("1", "1", "1Gi")), running("b", of("b")))
	for _, bb := range []struct {
		name string
		view runtime.PlanInput
	}{
		{"fresh", newView()},
		{"at rest", atRest},
		{"lost", newView(exitedSandbox(0), running("s"), exited("i", 0), running("a"), running("b"))},
	} {
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				runtime.Plan(pod, bb.view, testTime)
			}
		})
	}
}
