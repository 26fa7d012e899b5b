package podinput

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

func TestInput_Equal(t *testing.T) {
	pod := &corev1.Pod{}
	observed := runtime.Pod{
		UID: "u", ObservedAt: time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC),
		Sandboxes:  []runtime.Sandbox{{ID: "s"}},
		Containers: []runtime.Container{{ID: "c"}, {ID: "d"}},
	}
	probes := func(id string, r runtime.ProbeResults) runtime.PodProbeResults {
		return runtime.PodProbeResults{"c": {Startup: runtime.ProbeSuccess}, id: r}
	}
	in := Of(pod, &observed, probes("c", runtime.ProbeResults{Startup: runtime.ProbeSuccess}))
	for name, tc := range map[string]struct {
		pod    *corev1.Pod
		change func(*runtime.Pod)
		probes runtime.PodProbeResults
		want   bool
	}{
		"the same":                  {want: true},
		"an unknown probe result":   {probes: probes("d", runtime.ProbeResults{}), want: true},
		"a probe of no container":   {probes: probes("e", runtime.ProbeResults{Liveness: runtime.ProbeFailure}), want: true},
		"another pod":               {pod: &corev1.Pod{}},
		"another time":              {change: func(p *runtime.Pod) { p.ObservedAt = p.ObservedAt.Add(1) }},
		"copied sandboxes":          {change: func(p *runtime.Pod) { p.Sandboxes = slices.Clone(p.Sandboxes) }},
		"copied containers":         {change: func(p *runtime.Pod) { p.Containers = slices.Clone(p.Containers) }},
		"fewer containers":          {change: func(p *runtime.Pod) { p.Containers = p.Containers[:1] }},
		"no sandbox":                {change: func(p *runtime.Pod) { p.Sandboxes = nil }},
		"an object":                 {change: func(p *runtime.Pod) { p.Object = pod }},
		"no probe results":          {probes: runtime.PodProbeResults{}},
		"another probe result":      {probes: probes("c", runtime.ProbeResults{Startup: runtime.ProbeFailure})},
		"one of another container":  {probes: probes("d", runtime.ProbeResults{Liveness: runtime.ProbeFailure})},
		"another result beside one": {probes: probes("c", runtime.ProbeResults{Startup: runtime.ProbeSuccess, Readiness: runtime.ProbeSuccess})},
	} {
		p, o, r := pod, observed, tc.probes
		if tc.pod != nil {
			p = tc.pod
		}
		if tc.change != nil {
			tc.change(&o)
		}
		if r == nil {
			r = probes("c", runtime.ProbeResults{Startup: runtime.ProbeSuccess})
		}
		assert.Equal(t, tc.want, in.Equal(p, &o, r), name)
	}
	none := Of(pod, &observed, nil)
	assert.True(t, none.Equal(pod, &observed, nil))
	assert.False(t, none.Equal(pod, &observed, probes("c", runtime.ProbeResults{Startup: runtime.ProbeSuccess})))
	assert.False(t, new(Input).Equal(nil, &runtime.Pod{}, nil), "the zero value")
}

func TestInput_EqualDoesNotAllocate(t *testing.T) {
	pod, observed := &corev1.Pod{}, runtime.Pod{Containers: []runtime.Container{{ID: "c"}}}
	probes := runtime.PodProbeResults{"c": {Startup: runtime.ProbeSuccess}}
	in := Of(pod, &observed, probes)
	assert.Zero(t, testing.AllocsPerRun(10, func() {
		if !in.Equal(pod, &observed, probes) {
			panic("not equal")
		}
	}))
}
