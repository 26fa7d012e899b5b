package runtime_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// RT-8: a container that was killed for the lack of memory, and gets more, does not wait for the end of the back-off of before.
func TestBackOff_OtherResources(t *testing.T) {
	was := corev1.Container{Resources: corev1.ResourceRequirements{Requests: amounts("100m", "64Mi"), Limits: amounts("", "64Mi")}}
	with := func(tweaks ...tweak) *corev1.Pod {
		return newPod(always, regular("a", append([]tweak{requests("100m", "64Mi"), limits("", "64Mi")}, tweaks...)...))
	}
	made := func(c *runtime.Container) { c.BackOffResources = runtime.HashResources(&was) }
	view := func(puts ...put) runtime.PlanInput { return newView(append([]put{ready(0)}, puts...)...) }
	looping := view(exited("a", 137, attempt(6), step(6), ended(time.Second), made))
	testPlans(t, []planCase{
		{"the same", with(), looping, "wait a 4m59s"},
		{"more memory", with(limits("", "128Mi")), looping, "start a#7 step 1"},
		{"another request", with(requests("200m", "64Mi")), looping, "start a#7 step 1"},
		{"none", newPod(always, regular("a")), looping, "start a#7 step 1"},
		{"of an earlier agent", with(limits("", "128Mi")), view(exited("a", 137, attempt(6), step(6), ended(time.Second))), "wait a 4m59s"},
		{"a probe fails", with(limits("", "128Mi")), view(running("a", step(6), made), unwell("a#0")), "kill a#0; start a#1 step 1"},
		{"a restart for it", with(limits("", "128Mi"), restartOn(corev1.ResourceMemory)), view(running("a", step(6), made, has("100m", "", "64Mi"))), "kill a#0; start a#1"},
	})
}

func TestHashResources(t *testing.T) {
	of := func(tweaks ...tweak) string {
		c := corev1.Container{Name: "a", Image: "b"}
		for _, by := range tweaks {
			by(&c)
		}
		return runtime.HashResources(&c)
	}
	assert.Equal(t, of(limits("1", "1Gi")), of(limits("1", "1Gi"), func(c *corev1.Container) { c.Image = "c" }))
	assert.NotEqual(t, of(limits("1", "1Gi")), of(requests("1", "1Gi")))
	assert.NotEqual(t, of(), of(limits("1", "")))
	assert.NotEmpty(t, of())
}
