package runtime_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/sublet-dev/agent/runtime"
)

// What a container gets in addition to its spec is part of its hash.
func TestPlan_Injections(t *testing.T) {
	pod := newPod(always, regular("a"))
	got := full()
	other := runtime.Injection{Env: map[string]string{"A": "2"}}
	made := func(i runtime.Injection) func(*runtime.Container) {
		return hash(runtime.HashWithInjection(&pod.Spec.Containers[0], i))
	}
	edited := newPod(always, regular("a"))
	edited.Spec.Containers[0].Image = "img:2"
	for _, tt := range []struct {
		name string
		made func(*runtime.Container)
		want string
		kept bool
	}{
		{"the same", made(got), got.Hash(), true},
		{"nothing, as before", made(runtime.Injection{}), "", true},
		{"something else", made(got), other.Hash(), false},
		{"nothing any more", made(got), "", false},
		{"something new", made(runtime.Injection{}), got.Hash(), false},
		{"not known", made(got), runtime.UnknownInjection, true},
		{"created by a kubelet", hash("c0ffee"), got.Hash(), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			view := newView(ready(0), running("a", tt.made))
			view.Injections = map[string]string{"a": tt.want}
			plan := runtime.Plan(pod, view, testTime)
			assert.Equal(t, tt.kept, len(plan) == 0, show(plan))
		})
	}
	view := newView(ready(0), running("a", made(got)))
	view.Injections = map[string]string{"a": runtime.UnknownInjection}
	assert.NotEmpty(t, runtime.Plan(edited, view, testTime), "an edited spec counts whatever is injected")
}
