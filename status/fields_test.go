package status_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/status"
)

func generate(p *corev1.Pod, r runtime.Report) corev1.PodStatus {
	return generateAfter(corev1.PodStatus{}, p, r)
}

func generateAfter(previous corev1.PodStatus, p *corev1.Pod, r runtime.Report) corev1.PodStatus {
	return status.Generate(p, r, previous, status.NodeInfo{
		HostIPs: []string{"192.0.2.1", "2001:db8::1"}, RuntimeName: "containerd", Handlers: []runtime.Handler{{RecursiveReadOnlyMounts: true}},
	}, testTime)
}

// ST-1, ST-4: every field that a running pod has.
func TestFields(t *testing.T) {
	p := pod("main:c")
	always, ifPossible := corev1.RecursiveReadOnlyEnabled, corev1.RecursiveReadOnlyIfPossible
	c := &p.Spec.Containers[0]
	c.Resources = corev1.ResourceRequirements{
		Requests: corev1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("64Mi")},
		Limits:   corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("128Mi")},
	}
	c.VolumeMounts = []corev1.VolumeMount{
		{Name: "a", MountPath: "/a"},
		{Name: "b", MountPath: "/b", ReadOnly: true},
		{Name: "d", MountPath: "/d", ReadOnly: true, RecursiveReadOnly: &ifPossible},
	}
	ctr := running("c", 2)
	ctr.User = &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{UID: 7}}
	ctr.StopSignal = corev1.SIGUSR1
	qty := func(s string) *resource.Quantity { q := resource.MustParse(s); return &q }
	// What the kernel's units make of 100m, and a memory limit not yet changed.
	ctr.Resources = &runtime.Resources{CPURequest: qty("99m"), CPULimit: qty("1"), MemoryLimit: qty("256Mi")}
	st := generate(p, runtime.Report{Observed: view(ctr)})

	assert.Equal(t, int64(3), st.ObservedGeneration)
	assert.Equal(t, "192.0.2.1", st.HostIP)
	assert.Len(t, st.HostIPs, 2)
	assert.Equal(t, "10.0.0.7", st.PodIP)
	assert.Equal(t, []corev1.PodIP{{IP: "10.0.0.7"}}, st.PodIPs)
	assert.Equal(t, corev1.PodQOSBurstable, st.QOSClass)
	assert.Equal(t, testTime, st.StartTime.Time)
	cs := st.ContainerStatuses[0]
	assert.Equal(t, "containerd://c-2", cs.ContainerID)
	assert.Equal(t, "sha256:c", cs.ImageID)
	assert.Equal(t, "img-c", cs.Image)
	assert.Equal(t, int32(2), cs.RestartCount)
	assert.Equal(t, at(2, 0), cs.State.Running.StartedAt.Time)
	assert.Equal(t, int64(7), cs.User.Linux.UID)
	assert.Equal(t, corev1.SIGUSR1, *cs.StopSignal)
	assert.Equal(t, c.Resources.Requests, cs.AllocatedResources)
	assert.Equal(t, "100m", cs.Resources.Requests.Cpu().String())
	assert.Equal(t, "256Mi", cs.Resources.Limits.Memory().String())
	require.Len(t, cs.VolumeMounts, 3)
	assert.Nil(t, cs.VolumeMounts[0].RecursiveReadOnly)
	assert.Equal(t, corev1.RecursiveReadOnlyDisabled, *cs.VolumeMounts[1].RecursiveReadOnly)
	assert.Equal(t, always, *cs.VolumeMounts[2].RecursiveReadOnly)
	resizing := conditionOf(&st, corev1.PodResizeInProgress)
	require.NotNil(t, resizing)
	assert.Equal(t, corev1.ConditionTrue, resizing.Status)

	ctr.Resources.MemoryLimit = qty("128Mi")
	st = generate(p, runtime.Report{Observed: view(ctr)})
	assert.Nil(t, conditionOf(&st, corev1.PodResizeInProgress))
	assert.Equal(t, c.Resources, *st.ContainerStatuses[0].Resources)
	assert.Equal(t, "128Mi", p.Spec.Containers[0].Resources.Limits.Memory().String(), "the pod is untouched")
}

func conditionOf(st *corev1.PodStatus, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range st.Conditions {
		if st.Conditions[i].Type == t {
			return &st.Conditions[i]
		}
	}
	return nil
}

// A pod on the node's network has the node's addresses; one whose sandbox is
// gone keeps its own.
func TestAddresses(t *testing.T) {
	p := pod("main:c")
	p.Spec.HostNetwork = true
	v := view(running("c", 0))
	v.Sandboxes[0].IPs, v.Sandboxes[0].HostNetwork = nil, true
	st := generate(p, runtime.Report{Observed: v})
	assert.Equal(t, []corev1.PodIP{{IP: "192.0.2.1"}, {IP: "2001:db8::1"}}, st.PodIPs)
	assert.Equal(t, corev1.ConditionTrue, conditionOf(&st, corev1.PodReadyToStartContainers).Status)

	previous := corev1.PodStatus{PodIP: "10.1.1.1", PodIPs: []corev1.PodIP{{IP: "10.1.1.1"}}}
	v.Sandboxes = nil
	st = status.Generate(pod("main:c"), runtime.Report{Observed: v}, previous, status.NodeInfo{}, testTime)
	assert.Equal(t, "10.1.1.1", st.PodIP)
}

// An API server rejects two addresses of one family.
// A pod on the host network has its addresses before it has a sandbox, if it is admitted.
func TestAddresses_OfTheHost(t *testing.T) {
	p := pod("main:c")
	p.Spec.HostNetwork = true
	node := []corev1.PodIP{{IP: "192.0.2.1"}, {IP: "2001:db8::1"}}
	none := runtime.Pod{UID: p.UID, ObservedAt: testTime}
	st := generate(p, runtime.Report{Observed: none})
	assert.Equal(t, node, st.PodIPs)
	assert.Equal(t, "192.0.2.1", st.PodIP)
	assert.Equal(t, node, generateAfter(st, p, runtime.Report{Observed: none, Termination: &runtime.Termination{}, Finished: true}).PodIPs)

	m, err := status.New(status.Config{NodeInfo: func() status.NodeInfo { return status.NodeInfo{HostIPs: []string{"192.0.2.1"}} }})
	require.NoError(t, err)
	st = m.Reject(p, "OutOfcpu", "no")
	assert.Empty(t, st.PodIPs)
	assert.Empty(t, st.PodIP)
	st = m.Observe(p, runtime.Report{Observed: none, Termination: &runtime.Termination{}, Finished: true})
	assert.Empty(t, st.PodIPs)
}

func TestAddresses_OneOfEachFamily(t *testing.T) {
	v := view(running("c", 0))
	v.Sandboxes[0].IPs = []string{"fd00::7", "10.0.0.7", "10.0.0.8", "fd00::8", "?"}
	st := generate(pod("main:c"), runtime.Report{Observed: v})
	assert.Equal(t, []corev1.PodIP{{IP: "10.0.0.7"}, {IP: "fd00::7"}}, st.PodIPs)
	assert.Equal(t, "10.0.0.7", st.PodIP)
	st = status.Generate(pod("main:c"), runtime.Report{Observed: v}, corev1.PodStatus{}, status.NodeInfo{HostIPs: []string{"2001:db8::1"}}, testTime)
	assert.Equal(t, []corev1.PodIP{{IP: "fd00::7"}, {IP: "10.0.0.7"}}, st.PodIPs)
}

// What a listing lacks comes from the spec or the previous status.
func TestAddresses_OfAListing(t *testing.T) {
	p := pod("main:c")
	v := listed(view(running("c", 0)))
	v.Sandboxes[0].IPs = nil
	previous := corev1.PodStatus{PodIP: "10.1.1.1", PodIPs: []corev1.PodIP{{IP: "10.1.1.1"}}}
	assert.Equal(t, previous.PodIPs, status.Generate(p, runtime.Report{Observed: v}, previous, status.NodeInfo{}, testTime).PodIPs)
	p.Spec.HostNetwork = true
	assert.Equal(t, []corev1.PodIP{{IP: "192.0.2.1"}, {IP: "2001:db8::1"}}, generate(p, runtime.Report{Observed: v}).PodIPs)
}

// A pod has started when it was first reported, by this or a previous agent, or
// else as the API has it.
func TestGenerate_StartTime(t *testing.T) {
	reported, api := metav1.NewTime(testTime.Add(-time.Minute)), metav1.NewTime(testTime.Add(-time.Hour))
	p := pod("main:c")
	assert.Equal(t, testTime, generate(p, runtime.Report{}).StartTime.Time)
	p.Status.StartTime = &api
	assert.Equal(t, api, *generate(p, runtime.Report{}).StartTime)
	assert.Equal(t, reported, *status.Generate(p, runtime.Report{}, corev1.PodStatus{StartTime: &reported}, status.NodeInfo{}, testTime).StartTime)
}

// ST-5: the last termination state is the later of the known ones.
func TestGenerate_LastState(t *testing.T) {
	p := pod("main:c")
	previous := generate(p, runtime.Report{Observed: view(exited("c", 1, 7), exited("c", 0, 3))})
	for name, tc := range map[string]struct {
		observed []runtime.Container
		want     string
	}{
		"the runtime has lost the one between": {[]runtime.Container{running("c", 2), exited("c", 0, 3)}, "containerd://c-1"},
		"the runtime has it still":             {[]runtime.Container{running("c", 2), exited("c", 1, 7), exited("c", 0, 3)}, "containerd://c-1"},
		"the runtime has a later one":          {[]runtime.Container{running("c", 3), exited("c", 2, 9)}, "containerd://c-2"},
		"the runtime has none":                 {[]runtime.Container{running("c", 2)}, "containerd://c-1"},
	} {
		t.Run(name, func(t *testing.T) {
			st := generateAfter(previous, p, runtime.Report{Observed: view(tc.observed...)})
			assert.Equal(t, tc.want, st.ContainerStatuses[0].LastTerminationState.Terminated.ContainerID)
		})
	}
}

// ST-3: readiness gates are others' conditions in the pod; they are kept.
func TestReadinessGates(t *testing.T) {
	p := pod("main:c")
	p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "lb"}, {ConditionType: "dns"}}
	p.Status.Conditions = []corev1.PodCondition{{Type: "lb", Status: corev1.ConditionFalse}}
	r := runtime.Report{Observed: view(running("c", 0))}
	st := generate(p, r)
	ready := conditionOf(&st, corev1.PodReady)
	assert.Equal(t, corev1.ConditionFalse, ready.Status)
	assert.Equal(t, "ReadinessGatesNotReady", ready.Reason)
	assert.Equal(t, `the status of pod readiness gate "lb" is not "True", but False, corresponding condition of pod readiness gate "dns" does not exist.`, ready.Message)
	assert.Equal(t, corev1.ConditionTrue, conditionOf(&st, corev1.ContainersReady).Status)
	assert.NotNil(t, conditionOf(&st, "lb"))

	p.Status.Conditions = []corev1.PodCondition{{Type: "lb", Status: corev1.ConditionTrue}, {Type: "dns", Status: corev1.ConditionTrue}}
	st = status.Generate(p, r, st, status.NodeInfo{}, testTime.Add(time.Hour))
	ready = conditionOf(&st, corev1.PodReady)
	assert.Equal(t, corev1.ConditionTrue, ready.Status)
	assert.Equal(t, metav1.NewTime(testTime.Add(time.Hour)), ready.LastTransitionTime)
	assert.Equal(t, metav1.NewTime(testTime), conditionOf(&st, corev1.ContainersReady).LastTransitionTime)
	assert.Equal(t, int64(3), ready.ObservedGeneration)
}

// A listing says nothing about what it does not list.
func TestNotInspected(t *testing.T) {
	previous := generate(pod("main:c"), runtime.Report{Observed: view(running("c", 0))})
	st := status.Generate(pod("main:c"), runtime.Report{}, previous, status.NodeInfo{}, testTime)
	assert.Equal(t, previous.ContainerStatuses[0].State, st.ContainerStatuses[0].State)
	assert.Equal(t, corev1.PodRunning, st.Phase)
}

func BenchmarkGenerate(b *testing.B) {
	p := pod("init:i", "sidecar:s", "main:c", "main:d")
	r := runtime.Report{Observed: view(running("d", 0), running("c", 1), exited("c", 0, 1), running("s", 0), exited("i", 0, 0))}
	previous := generate(p, r)
	b.ReportAllocs()
	for b.Loop() {
		previous = status.Generate(p, r, previous, status.NodeInfo{RuntimeName: "containerd"}, testTime)
	}
}

// One pod's change from the report to the sink, among 500 others.
func BenchmarkObserve(b *testing.B) {
	m, err := status.New(status.Config{})
	if err != nil {
		b.Fatal(err)
	}
	p := pod("main:c")
	for i := range 500 {
		m.Observe(withUID(p, types.UID(strconv.Itoa(i))), runtime.Report{Observed: view(running("c", 0))})
	}
	reports := []runtime.Report{{Observed: view(running("c", 1))}, {Observed: view(exited("c", 1, 1))}}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		m.Observe(p, reports[i%2])
	}
}

func BenchmarkFileSink(b *testing.B) {
	s, err := status.NewFileSink(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	p := pod("main:c")
	st := generate(p, runtime.Report{Observed: view(running("c", 0))})
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		st.ContainerStatuses[0].RestartCount = int32(i)
		if err := s.SetStatus(b.Context(), p, st); err != nil {
			b.Fatal(err)
		}
	}
}
