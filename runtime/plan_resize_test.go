package runtime_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/runtime"
)

func limits(cpu, memory string) tweak {
	return func(c *corev1.Container) {
		c.Resources.Limits = corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
		}
	}
}

func restartOn(name corev1.ResourceName) tweak {
	return func(c *corev1.Container) {
		c.ResizePolicy = append(c.ResizePolicy,
			corev1.ContainerResizePolicy{ResourceName: "cpu", RestartPolicy: corev1.NotRequired},
			corev1.ContainerResizePolicy{ResourceName: name, RestartPolicy: corev1.RestartContainer})
	}
}

// has are the resources that a container was seen with; "" is none.
func has(request, cpu, memory string) func(*runtime.Container) {
	quantity := func(s string) *resource.Quantity {
		if s == "" {
			return nil
		}
		q := resource.MustParse(s)
		return &q
	}
	return func(c *runtime.Container) {
		c.Resources = &runtime.Resources{CPURequest: quantity(request), CPULimit: quantity(cpu), MemoryLimit: quantity(memory)}
	}
}

// RT-2: resources change in place.
func TestResize(t *testing.T) {
	pod := newPod(always, regular("a", limits("500m", "64Mi")))
	byRestart := newPod(always, regular("a", limits("500m", "64Mi"), restartOn("memory")))
	view := func(tweaks ...func(*runtime.Container)) runtime.View {
		return newView(ready(0), running("a", tweaks...))
	}
	testPlans(t, []planCase{
		{"same", pod, view(has("500m", "500m", "64Mi")), ""},
		{"not told", pod, view(), ""},
		{"more CPU", pod, view(has("500m", "400m", "64Mi")), "update a#0"},
		{"another request", pod, view(has("400m", "500m", "64Mi")), "update a#0"},
		{"less memory", pod, view(has("500m", "500m", "128Mi")), "update a#0"},
		{"a memory limit where none was", pod, view(has("500m", "500m", "")), "update a#0"},
		{"quotas are off on the node", pod, view(has("500m", "", "64Mi")), ""},
		{"memory by restart", byRestart, view(has("500m", "500m", "128Mi"), step(3)), "kill a#0; start a#1 step 3"},
		{"CPU in place all the same", byRestart, view(has("500m", "400m", "64Mi")), "update a#0"},
		{"rounding is no change", byRestart, view(has("499m", "501m", "67100000")), ""},
		{"what the kernel cannot tell apart", newPod(always, regular("a", limits("1m", "64Mi"))), view(has("2m", "10m", "64Mi")), ""},
		{"no limits asked for", newPod(always, regular("a")), view(has("2m", "", "64Mi")), ""},
		{"init containers are not resized", newPod(always, initC("a", limits("1", "1Gi")), regular("b")), view(has("2m", "10m", "64Mi")), ""},
		{"sidecars are", newPod(always, sidecarC("a", limits("1", "1Gi")), regular("b")), newView(ready(0), running("a", has("1", "10m", "1Gi")), running("b")), "update a#0"},
		{"a resize is no change of spec", pod, view(has("500m", "400m", "64Mi"), hash(runtime.HashContainer(&newPod(always, regular("a")).Spec.Containers[0]))), "update a#0"},
	})
}

func TestHashContainer(t *testing.T) {
	base := func() *corev1.Container { return &newPod(always, regular("a")).Spec.Containers[0] }
	want := runtime.HashContainer(base())
	signal := corev1.Signal("SIGUSR1")
	for _, tt := range []struct {
		name string
		edit tweak
		same bool
	}{
		{"nothing", func(*corev1.Container) {}, true},
		{"resources", limits("1", "1Gi"), true},
		{"resize policy", restartOn("memory"), true},
		{"liveness probe", livenessProbe(3), true},
		{"startup probe", startupProbe, true},
		{"restart policy", policy(corev1.ContainerRestartPolicyNever), true},
		{"restart rules", rule(again, in, 1), true},
		{"pull policy", func(c *corev1.Container) { c.ImagePullPolicy = corev1.PullNever }, true},
		{"preStop hook", func(c *corev1.Container) {
			c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 1}}}
		}, true},
		{"stop signal", func(c *corev1.Container) { c.Lifecycle = &corev1.Lifecycle{StopSignal: &signal} }, false},
		{"image", func(c *corev1.Container) { c.Image = "img:2" }, false},
		{"command", func(c *corev1.Container) { c.Command = []string{"x"} }, false},
		{"env", func(c *corev1.Container) { c.Env = []corev1.EnvVar{{Name: "A", Value: "b"}} }, false},
		{"mounts", func(c *corev1.Container) { c.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}} }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := base()
			tt.edit(c)
			before := c.DeepCopy()
			assert.Equal(t, tt.same, runtime.HashContainer(c) == want)
			assert.Equal(t, before, c, "it only reads")
		})
	}
	// Stored with running containers: it must not change from one release to the next.
	assert.Equal(t, "s1-851125ff553db523", runtime.HashContainer(&corev1.Container{Name: "a", Image: "img:1"}))
	testPlans(t, []planCase{
		{"changed", newPod(never, regular("a")), newView(ready(0), running("a", hash("s1-0000000000000000"))), "kill a#0; start a#1"},
		{"same", newPod(never, regular("a")), newView(ready(0), running("a", hash(want))), ""},
		{"the kubelet's", newPod(never, regular("a")), newView(ready(0), running("a", hash("8a1b2c3d"))), ""},
		{"ended for good stays so", newPod(never, regular("a"), regular("b")), newView(ready(0), exited("a", 0, hash("s1-0")), running("b")), ""},
	})
}
