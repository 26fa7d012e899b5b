package runtime_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/runtime"
)

func limits(cpu, memory string) tweak {
	return func(c *corev1.Container) { c.Resources.Limits = amounts(cpu, memory) }
}

func requests(cpu, memory string) tweak {
	return func(c *corev1.Container) { c.Resources.Requests = amounts(cpu, memory) }
}

// podLimits bounds all containers together.
func podLimits(cpu, memory string) edit {
	return func(p *corev1.Pod) { p.Spec.Resources = &corev1.ResourceRequirements{Limits: amounts(cpu, memory)} }
}

// amounts is a list of what is not "".
func amounts(cpu, memory string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for name, amount := range map[corev1.ResourceName]string{corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory} {
		if amount != "" {
			list[name] = resource.MustParse(amount)
		}
	}
	return list
}

func restartOn(name corev1.ResourceName) tweak {
	return func(c *corev1.Container) {
		if name != corev1.ResourceCPU {
			c.ResizePolicy = append(c.ResizePolicy, corev1.ContainerResizePolicy{ResourceName: "cpu", RestartPolicy: corev1.NotRequired})
		}
		c.ResizePolicy = append(c.ResizePolicy, corev1.ContainerResizePolicy{ResourceName: name, RestartPolicy: corev1.RestartContainer})
	}
}

// has are the resources that a container was seen with; "" is none.
func has(request, cpu, memory string, tweaks ...func(*runtime.Resources)) func(*runtime.Container) {
	quantity := func(s string) *resource.Quantity {
		if s == "" {
			return nil
		}
		q := resource.MustParse(s)
		return &q
	}
	return func(c *runtime.Container) {
		c.Resources = &runtime.Resources{CPURequest: quantity(request), CPULimit: quantity(cpu), MemoryLimit: quantity(memory)}
		for _, tweak := range tweaks {
			tweak(c.Resources)
		}
	}
}

func memoryRequest(s string) func(*runtime.Resources) {
	return func(r *runtime.Resources) { r.MemoryRequest = new(resource.MustParse(s)) }
}

func noQuota(r *runtime.Resources) { r.NoCPUQuota = true }

func shortPeriod(r *runtime.Resources) { r.MinCPULimit = 200 } // 5 ms

func exclusive(r *runtime.Resources) { r.ExclusiveCPUs = true }

// What becomes lower comes first: only if that succeeds others may get more.
func TestResize_LowersFirst(t *testing.T) {
	two := newPod(always, regular("a", limits("500m", "64Mi")), regular("b", limits("500m", "64Mi")))
	view := func(a, b func(*runtime.Container)) runtime.PlanInput {
		return newView(ready(0), running("a", a), running("b", b))
	}
	testPlans(t, []planCase{
		{"both more", two, view(has("500m", "500m", "32Mi"), has("500m", "400m", "64Mi")), "update a#0; update b#0"},
		{"less memory", two, view(has("500m", "500m", "32Mi"), has("500m", "500m", "96Mi")), "update b#0; update a#0"},
		{"less CPU", two, view(has("500m", "400m", "64Mi"), has("500m", "600m", "64Mi")), "update b#0; update a#0"},
		{"a first limit", two, view(has("500m", "500m", "32Mi"), has("500m", "500m", "")), "update b#0; update a#0"},
		{"more memory, less CPU", two, view(has("500m", "400m", "64Mi"), has("500m", "600m", "32Mi")), "update a#0; update b#0"},
	})
}

// RT-2: resources change in place.
func TestResize(t *testing.T) {
	pod := newPod(always, regular("a", limits("500m", "64Mi")))
	tiny := newPod(always, regular("a", limits("50m", "64Mi")))
	byRestart := newPod(always, regular("a", limits("500m", "64Mi"), restartOn("memory")))
	view := func(tweaks ...func(*runtime.Container)) runtime.PlanInput {
		return newView(ready(0), running("a", tweaks...))
	}
	testPlans(t, []planCase{
		{"same", pod, view(has("500m", "500m", "64Mi")), ""},
		{"not told", pod, view(), ""},
		{"more CPU", pod, view(has("500m", "400m", "64Mi")), "update a#0"},
		{"less CPU", pod, view(has("500m", "600m", "64Mi")), "update a#0"},
		{"another request", pod, view(has("400m", "500m", "64Mi")), "update a#0"},
		{"less memory", pod, view(has("500m", "500m", "128Mi")), "update a#0"},
		{"more memory", pod, view(has("500m", "500m", "32Mi")), "update a#0"},
		{"a memory limit where none was", pod, view(has("500m", "500m", "")), "update a#0"},
		{"a CPU limit where none was", pod, view(has("500m", "", "64Mi")), "update a#0"},
		{"the least of a short period", tiny, view(has("50m", "200m", "64Mi", shortPeriod)), ""},
		{"more than the least of a short period", tiny, view(has("50m", "300m", "64Mi", shortPeriod)), "update a#0"},
		{"quotas are off on the node", pod, view(has("500m", "", "64Mi", noQuota)), ""},
		{"memory all the same", pod, view(has("500m", "", "32Mi", noQuota)), "update a#0"},
		{"a runtime that tells of limits only", pod, view(has("", "500m", "")), ""},
		{"memory by restart", byRestart, view(has("500m", "500m", "128Mi"), step(3)), "kill a#0; start a#1"},
		{"CPU in place all the same", byRestart, view(has("500m", "400m", "64Mi")), "update a#0"},
		{"both by restart", byRestart, view(has("500m", "400m", "32Mi")), "kill a#0; start a#1"},
		{"a memory limit added by restart", byRestart, view(has("500m", "500m", "")), "kill a#0; start a#1"},
		{"CPU by restart", newPod(always, regular("a", limits("500m", "64Mi"), restartOn("cpu"))), view(has("500m", "", "64Mi")), "kill a#0; start a#1"},
		{"memory in place all the same", newPod(always, regular("a", limits("500m", "64Mi"), restartOn("cpu"))), view(has("500m", "500m", "")), "update a#0"},
		{"rounding is no change", byRestart, view(has("499m", "501m", "67100000")), ""},
		{"what the kernel cannot tell apart", newPod(always, regular("a", limits("1m", "64Mi"))), view(has("2m", "10m", "64Mi")), ""},
		{"more than all shares", newPod(always, regular("a", limits("300", "64Mi"))), view(has("256", "300", "64Mi")), ""},
		{"no limits asked for", newPod(always, regular("a")), view(has("2m", "", "")), ""},
		{"no limits asked for, which is told as 0 and as very much", newPod(always, regular("a")), view(has("0", "0", "9223372036854771712")), ""},
		{"a CPU limit taken away", newPod(always, regular("a", requests("500m", "64Mi"), limits("", "64Mi"))), view(has("500m", "500m", "64Mi")), "update a#0"},
		{"a memory limit taken away", newPod(always, regular("a", requests("500m", "64Mi"), limits("500m", ""))), view(has("500m", "500m", "64Mi")), "update a#0"},
		{
			"a memory limit taken away by restart", newPod(always, regular("a", requests("500m", "64Mi"), limits("500m", ""), restartOn("memory"))),
			view(has("500m", "500m", "64Mi")), "kill a#0; start a#1",
		},
		{"the least CPU limit taken away", newPod(always, regular("a", requests("500m", ""))), view(has("500m", "10m", "")), "update a#0"},
		{"a CPU limit below the least added", newPod(always, regular("a", requests("500m", ""), limits("5m", ""))), view(has("500m", "", "")), "update a#0"},
		{"no memory limit, told as the least that means none", newPod(always, regular("a")), view(has("2m", "", "4611686018427387904")), ""},
		{"another memory request", newPod(always, regular("a", requests("500m", "64Mi"))), view(has("500m", "", "", memoryRequest("128Mi"))), "update a#0"},
		{"the same memory request", newPod(always, regular("a", requests("500m", "64Mi"))), view(has("500m", "", "", memoryRequest("64Mi"))), ""},
		{"the same memory request, and another limit", newPod(always, regular("a", requests("500m", "64Mi"), limits("", "128Mi"))), view(has("500m", "", "256Mi", memoryRequest("64Mi"))), "update a#0"},
		{"a memory request that the spec has not", newPod(always, regular("a", requests("500m", ""))), view(has("500m", "", "", memoryRequest("64Mi"))), ""},
		{"a limit of 0 is none, and the pod's holds", newPod(always, podLimits("1", ""), regular("a", limits("0", ""))), view(has("0", "1", "")), ""},
		{"its own limits below the pod's", newPod(always, podLimits("2", "2Gi"), regular("a", limits("1", "1Gi"))), view(has("1", "1", "1Gi")), ""},
		{"a CPU request taken away", newPod(always, regular("a", limits("", "64Mi"))), view(has("500m", "", "64Mi")), "update a#0"},
		{"a CPU request where none was", newPod(always, regular("a", requests("500m", ""))), view(has("0", "", "")), "update a#0"},
		{"one limit added, one taken away", newPod(always, regular("a", requests("500m", "64Mi"), limits("500m", ""))), view(has("500m", "", "64Mi")), "update a#0"},
		{"the pod's limit holds for who has none", newPod(always, podLimits("1", "1Gi"), regular("a")), view(has("1", "1", "1Gi")), ""},
		{"the pod's limit changed", newPod(always, podLimits("2", "1Gi"), regular("a")), view(has("1", "1", "1Gi")), "update a#0"},
		{"no quota on CPUs of its own", pod, view(has("500m", "", "64Mi", exclusive)), ""},
		{"a quota on CPUs of its own", pod, view(has("500m", "500m", "64Mi", exclusive)), "update a#0"},
		{
			"a quota on CPUs of its own, although a changed limit takes a restart", newPod(always, regular("a", limits("500m", "64Mi"), restartOn("cpu"))),
			view(has("500m", "500m", "64Mi", exclusive)), "update a#0",
		},
		{"another request on CPUs of its own", newPod(always, regular("a", limits("1", "64Mi"), restartOn("cpu"))), view(has("500m", "", "64Mi", exclusive)), "kill a#0; start a#1"},
		{"a quota on CPUs of its own that the node does not enforce", pod, view(has("500m", "500m", "64Mi", exclusive, noQuota)), ""},
		{"CPUs of its own no more", pod, view(has("500m", "", "64Mi")), "update a#0"},
		{"init containers are resized while they run", newPod(always, initC("a", limits("1", "1Gi")), regular("b")), view(has("2m", "10m", "64Mi")), "update a#0"},
		{"an init container in place whatever its policy", newPod(always, initC("a", limits("1", "1Gi"), restartOn("cpu")), regular("b")), view(has("2m", "10m", "64Mi")), "update a#0"},
		{
			"an init container that has completed", newPod(always, initC("a", limits("1", "1Gi")), regular("b")),
			newView(ready(0), exited("a", 0, has("2m", "10m", "64Mi")), running("b")), "",
		},
		{
			"an init container beside a sidecar", newPod(always, sidecarC("s", limits("1", "1Gi")), initC("a", limits("1", "1Gi")), regular("b")),
			newView(ready(0), running("s", has("1", "1", "1Gi")), running("a", has("1", "1", "2Gi"))), "update a#0",
		},
		{"sidecars are", newPod(always, sidecarC("a", limits("1", "1Gi")), regular("b")), newView(ready(0), running("a", has("1", "10m", "1Gi")), running("b")), "update a#0"},
		{
			"a sidecar by restart", newPod(always, sidecarC("a", limits("1", "1Gi"), restartOn("memory")), regular("b")),
			newView(ready(0), running("a", has("1", "1", "")), running("b")), "kill a#0; start a#1",
		},
		{
			"a sidecar before the regular containers", newPod(always, sidecarC("a", limits("1", "1Gi")), regular("b")),
			newView(ready(0), running("a", has("1", "", "1Gi"))), "update a#0; start b#0",
		},
		{
			"each container for itself", newPod(always, regular("a", limits("1", "1Gi")), regular("b", limits("1", "1Gi")), regular("c", limits("1", "1Gi"), restartOn("cpu"))),
			newView(ready(0), running("a", has("1", "1", "1Gi")), running("b", has("1", "1", "2Gi")), running("c", has("1", "2", "1Gi"))),
			"kill c#0; update b#0; start c#1",
		},
		{"ephemeral ones are not", newPod(always, regular("b"), ephemeralC("a")), newView(ready(0), running("b"), running("a", has("1", "1", "1Gi"))), ""},
		{"a resize is no change of spec", pod, view(has("500m", "400m", "64Mi"), hash(runtime.HashContainer(&newPod(always, regular("a")).Spec.Containers[0]))), "update a#0"},
	})
}

// Resizing is what Plan would do.
func TestResizing(t *testing.T) {
	pod := newPod(always, regular("a", limits("500m", "64Mi")))
	c := &pod.Spec.Containers[0]
	resources := func(cpu, memory string) *runtime.Resources {
		var made runtime.Container
		has("500m", cpu, memory)(&made)
		return made.Resources
	}
	assert.False(t, runtime.NeedsResize(pod, c, runtime.Regular, nil))
	assert.False(t, runtime.NeedsResize(pod, c, runtime.Regular, resources("500m", "64Mi")))
	assert.True(t, runtime.NeedsResize(pod, c, runtime.Regular, resources("400m", "64Mi")))
	assert.True(t, runtime.NeedsResize(pod, c, runtime.Regular, resources("500m", "32Mi")))
	assert.True(t, runtime.NeedsResize(pod, c, runtime.Sidecar, resources("400m", "64Mi")))
	assert.True(t, runtime.NeedsResize(pod, c, runtime.Init, resources("400m", "64Mi")))
	assert.False(t, runtime.NeedsResize(pod, c, runtime.Ephemeral, resources("400m", "64Mi")))
	alone := resources("500m", "64Mi")
	alone.ExclusiveCPUs = true
	assert.True(t, runtime.NeedsResize(pod, c, runtime.Regular, alone))
	assert.True(t, runtime.NeedsResize(pod, c, runtime.Init, alone))
	assert.False(t, runtime.NeedsResize(pod, c, runtime.Ephemeral, alone))
	alone.CPULimit = nil
	assert.False(t, runtime.NeedsResize(pod, c, runtime.Regular, alone))
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
		{"restart rules", rule(restartAction, in, 1), true},
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
