package status_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/status"
)

// ST-3: a limit that is not there yet, or still there, is a resize under way, and
// the resources of a running container are reported as observed. What a runtime does not report is
// neither.
func TestLimitsAddedAndTakenAway(t *testing.T) {
	qty := func(s string) *resource.Quantity { q := resource.MustParse(s); return &q }
	list := func(cpu, memory string) corev1.ResourceList {
		l := corev1.ResourceList{}
		for name, s := range map[corev1.ResourceName]string{"cpu": cpu, "memory": memory} {
			if s != "" {
				l[name] = *qty(s)
			}
		}
		return l
	}
	request := qty("100m")
	for _, tt := range []struct {
		name     string
		want     corev1.ResourceList
		ofPod    corev1.ResourceList
		has      runtime.Resources
		resizing bool
		reported corev1.ResourceList
	}{
		{"as asked for", list("1", "1Gi"), nil, runtime.Resources{CPURequest: request, CPULimit: qty("1"), MemoryLimit: qty("1Gi")}, false, list("1", "1Gi")},
		{"none and none", list("", ""), nil, runtime.Resources{CPURequest: request}, false, list("", "")},
		{"added", list("1", "1Gi"), nil, runtime.Resources{CPURequest: request}, true, list("", "")},
		{"one added", list("1", "1Gi"), nil, runtime.Resources{CPURequest: request, MemoryLimit: qty("1Gi")}, true, list("", "1Gi")},
		{"taken away", list("", ""), nil, runtime.Resources{CPURequest: request, CPULimit: qty("1"), MemoryLimit: qty("1Gi")}, true, list("1", "1Gi")},
		{"added, where none is told as a large one", list("", "1Gi"), nil, runtime.Resources{CPURequest: request, MemoryLimit: qty("9223372036854771712")}, true, list("", "")},
		{"none, where none is told as a large one", list("", ""), nil, runtime.Resources{CPURequest: request, MemoryLimit: qty("9223372036854771712")}, false, list("", "")},
		{"nothing is told", list("1", "1Gi"), nil, runtime.Resources{}, false, list("1", "1Gi")},
		{"no CPU limits on this node", list("1", ""), nil, runtime.Resources{CPURequest: request, NoCPUQuota: true}, false, list("1", "")},
		{"CPUs of its own", list("1", ""), nil, runtime.Resources{CPURequest: request, ExclusiveCPUs: true}, false, list("1", "")},
		{"CPUs of its own, still with a quota", list("1", ""), nil, runtime.Resources{CPURequest: request, CPULimit: qty("1"), ExclusiveCPUs: true}, true, list("1", "")},
		{"the pod's as a whole", list("", ""), list("2", "2Gi"), runtime.Resources{CPURequest: request, CPULimit: qty("2"), MemoryLimit: qty("2Gi")}, false, list("", "")},
		{"its own below the pod's, taken away", list("", ""), list("2", "2Gi"), runtime.Resources{CPURequest: request, CPULimit: qty("1"), MemoryLimit: qty("2Gi")}, true, list("1", "")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := pod("main:c")
			p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list("100m", ""), Limits: tt.want}
			if tt.ofPod != nil {
				p.Spec.Resources = &corev1.ResourceRequirements{Limits: tt.ofPod}
			}
			ctr := running("c", 0)
			ctr.Resources = &tt.has
			st := generate(p, runtime.Report{Observed: view(ctr)})
			assert.Equal(t, tt.resizing, conditionOf(&st, corev1.PodResizeInProgress) != nil)
			got := st.ContainerStatuses[0].Resources.Limits
			assert.Len(t, got, len(tt.reported))
			for name, want := range tt.reported {
				have := got[name]
				assert.Zero(t, want.Cmp(have), "%s: %s", name, have.String())
			}
		})
	}
}

// KEP-5419: the cgroup of the pod may lag behind when all its containers are resized.
func TestGenerate_ResizeOfThePodFails(t *testing.T) {
	p := pod("main:c")
	report := runtime.Report{Observed: view(running("c", 0)), Failures: map[string]runtime.Failure{
		"": {Reason: corev1.PodReasonError, Message: "40 MiB are in use", Err: errors.New("40 MiB are in use")},
	}}
	st := generate(p, report)
	resizing := conditionOf(&st, corev1.PodResizeInProgress)
	require.NotNil(t, resizing)
	assert.Equal(t, []string{"True", corev1.PodReasonError, "40 MiB are in use"}, []string{string(resizing.Status), resizing.Reason, resizing.Message})
	assert.Equal(t, corev1.PodRunning, st.Phase)
	assert.Empty(t, st.Reason)

	report.Failures[""] = runtime.Failure{Reason: "FailedMount", Message: "no such Secret", Err: errors.New("no such Secret")}
	st = generate(p, report)
	assert.Nil(t, conditionOf(&st, corev1.PodResizeInProgress), "it is not being resized")
}

// The resources of a container that runs come from the runtime, else from the previous status, else
// from the spec. Those of any other are what the spec has: it may have been resized since it ended.
func TestGenerate_ResourcesOfAContainer(t *testing.T) {
	p := pod("main:c")
	c := &p.Spec.Containers[0]
	c.Resources = corev1.ResourceRequirements{
		Requests: corev1.ResourceList{"cpu": resource.MustParse("500m")}, Limits: corev1.ResourceList{"cpu": resource.MustParse("1")},
		Claims: []corev1.ResourceClaim{{Name: "claim"}},
	}
	sized := func(c runtime.Container, limit string) runtime.Container {
		c.Resources = &runtime.Resources{CPURequest: new(resource.MustParse("500m")), CPULimit: new(resource.MustParse(limit))}
		return c
	}
	for _, tc := range []struct {
		name        string
		before, now runtime.Pod
		want        string
	}{
		{"never seen", view(), view(), "1"},
		{"told by the runtime", view(), view(sized(running("c", 0), "250m")), "250m"},
		{"not told again", view(sized(running("c", 0), "250m")), view(running("c", 0)), "250m"},
		{"ended", view(sized(running("c", 0), "250m")), view(exited("c", 0, 3)), "1"},
		{"ended, whatever the runtime says of it", view(sized(running("c", 0), "250m")), view(sized(exited("c", 0, 3), "125m")), "1"},
		{"another one", view(sized(running("c", 0), "250m")), view(running("c", 1)), "1"},
		{"the next one waits", view(sized(exited("c", 0, 3), "250m")), view(created("c", 1)), "1"},
		{"gone", view(sized(running("c", 0), "250m")), view(), "1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := container(p, tc.before, tc.now)
			assert.Equal(t, tc.want, got.Resources.Limits.Cpu().String())
			assert.Equal(t, "500m", got.AllocatedResources.Cpu().String())
			assert.Equal(t, []corev1.ResourceClaim{{Name: "claim"}}, got.Resources.Claims)
		})
	}
	none := container(pod("main:c"), view(), view(running("c", 0)))
	assert.Nil(t, none.AllocatedResources)
	c.Resources.Requests = nil
	deleted := generateAfter(generate(p, runtime.Report{Observed: view(running("c", 0))}), pod("main:c"), runtime.Report{Observed: view()})
	assert.Nil(t, deleted.ContainerStatuses[0].AllocatedResources, "as the spec is now")
}

// PodResizeInProgress is of the resize that is under way, while a later one is pending.
func TestGenerate_GenerationOfResizes(t *testing.T) {
	p := pod("main:c")
	p.Generation = 2
	p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}
	ctr := running("c", 0)
	ctr.Resources = &runtime.Resources{MemoryLimit: resource.NewQuantity(2<<30, resource.BinarySI)}
	report, st := runtime.Report{Observed: view(ctr)}, corev1.PodStatus{}
	generations := func() (inProgress, pending int64) {
		st = status.Generate(p, report, st, status.NodeInfo{}, testTime)
		if c := conditionOf(&st, corev1.PodResizePending); c != nil {
			pending = c.ObservedGeneration
		}
		return conditionOf(&st, corev1.PodResizeInProgress).ObservedGeneration, pending
	}
	check := func(wantInProgress, wantPending int64) {
		t.Helper()
		inProgress, pending := generations()
		assert.Equal(t, wantInProgress, inProgress)
		assert.Equal(t, wantPending, pending)
	}
	check(2, 0)
	p = p.DeepCopy()
	p.Generation = 3
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: "Deferred"}}
	check(2, 3)
	p = p.DeepCopy()
	p.Generation, p.Status.Conditions = 4, nil
	check(4, 0)
}
