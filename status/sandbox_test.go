package status_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/status"
)

// ST-3: PodReadyToStartContainers is True where Plan makes no new sandbox, and its
// False says why.
func TestGenerate_ReadyToStartContainers(t *testing.T) {
	ready := runtime.Sandbox{ID: "s1", Attempt: 1, State: runtime.SandboxReady, IPs: []string{"10.0.0.7"}}
	deleted := runtime.Sandbox{ID: "s0", State: runtime.SandboxNotReady, IPs: []string{"10.0.0.6"}}
	other := runtime.Sandbox{ID: "s2", State: runtime.SandboxReady, IPs: []string{"10.0.0.8"}}
	onHost := runtime.Sandbox{ID: "s1", Attempt: 1, State: runtime.SandboxReady, HostNetwork: true}
	noAddress := runtime.Sandbox{ID: "s1", Attempt: 1, State: runtime.SandboxReady}
	hostNetwork := pod("main:c")
	hostNetwork.Spec.HostNetwork = true
	wasReady := corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue}}}
	for name, tc := range map[string]struct {
		pod       *corev1.Pod
		sandboxes []runtime.Sandbox
		listed    bool
		previous  corev1.PodStatus
		want      corev1.ConditionStatus
		message   string
	}{
		"none":                             {pod: pod("main:c"), message: "no pod sandbox exists"},
		"none, in a listing":               {pod: pod("main:c"), listed: true, previous: wasReady, message: "no pod sandbox exists"},
		"not ready":                        {pod: pod("main:c"), sandboxes: []runtime.Sandbox{deleted}, message: "pod sandbox is not ready"},
		"two are ready":                    {pod: pod("main:c"), sandboxes: []runtime.Sandbox{ready, other}, message: "multiple pod sandboxes are ready and need to be reconciled"},
		"the network mode changed":         {pod: hostNetwork, sandboxes: []runtime.Sandbox{ready}, message: "network namespace mode changed and sandbox needs to be recreated"},
		"and back":                         {pod: pod("main:c"), sandboxes: []runtime.Sandbox{onHost}, message: "network namespace mode changed and sandbox needs to be recreated"},
		"no address":                       {pod: pod("main:c"), sandboxes: []runtime.Sandbox{noAddress}, message: "pod sandbox has no IP address"},
		"ready":                            {pod: pod("main:c"), sandboxes: []runtime.Sandbox{ready, deleted}, want: corev1.ConditionTrue},
		"ready on the node's network":      {pod: hostNetwork, sandboxes: []runtime.Sandbox{onHost}, want: corev1.ConditionTrue},
		"a listing of one that was ready":  {pod: pod("main:c"), sandboxes: []runtime.Sandbox{noAddress}, listed: true, previous: wasReady, want: corev1.ConditionTrue},
		"a listing of one that is unknown": {pod: pod("main:c"), sandboxes: []runtime.Sandbox{ready}, listed: true, message: "the pod sandbox has not been inspected yet"},
	} {
		t.Run(name, func(t *testing.T) {
			observed := view()
			observed.Sandboxes = tc.sandboxes
			if tc.listed {
				observed = listed(observed)
			}
			st := status.Generate(tc.pod, runtime.Report{Observed: observed}, tc.previous, status.NodeInfo{}, testTime)
			c := conditionOf(&st, corev1.PodReadyToStartContainers)
			assert.Equal(t, tc.message, c.Message)
			if tc.want == corev1.ConditionTrue {
				assert.Equal(t, tc.want, c.Status)
				assert.Empty(t, c.Reason)
				return
			}
			assert.Equal(t, corev1.ConditionFalse, c.Status)
			assert.Equal(t, "PodSandboxNotReady", c.Reason)
		})
	}
}

// ST-4: init containers are listed in the spec's order, others by name; what is not
// ready is listed in the spec's order.
func TestGenerate_OrderOfContainers(t *testing.T) {
	st := generate(pod("init:z", "init:y", "main:b", "main:a", "debug:e", "debug:d"), runtime.Report{Observed: view()})
	var names []string
	for _, list := range lists(&st) {
		for i := range list {
			names = append(names, list[i].Name)
		}
	}
	assert.Equal(t, []string{"z", "y", "a", "b", "d", "e"}, names)
	assert.Equal(t, "containers with unready status: [b a]", conditionOf(&st, corev1.ContainersReady).Message)
}

// Allocated resources are reported for every pod, pod-level resources for those
// that have something.
func TestGenerate_ResourcesOfThePod(t *testing.T) {
	p := pod("main:c", "main:d")
	assert.Nil(t, generate(p, runtime.Report{}).AllocatedResources)
	p.Spec.Containers[0].Resources.Requests = amounts("cpu", "1")
	p.Spec.Containers[1].Resources.Requests = amounts("cpu", "500m")
	st := generate(p, runtime.Report{})
	assert.Equal(t, "1500m", st.AllocatedResources.Cpu().String())
	assert.Nil(t, st.Resources)

	p.Spec.Resources = &corev1.ResourceRequirements{
		Requests: amounts("cpu", "2"), Limits: amounts("memory", "1Gi"), Claims: []corev1.ResourceClaim{{Name: "claim"}},
	}
	st = generate(p, runtime.Report{})
	assert.Equal(t, "2", st.AllocatedResources.Cpu().String())
	assert.Equal(t, "2", st.Resources.Requests.Cpu().String())
	assert.Equal(t, "1Gi", st.Resources.Limits.Memory().String())
	assert.Empty(t, st.Resources.Claims)
}

func amounts(name corev1.ResourceName, amount string) corev1.ResourceList {
	return corev1.ResourceList{name: resource.MustParse(amount)}
}
