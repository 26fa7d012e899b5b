package status_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/status"
)

func terminatedStatus(name string, exitCode int32) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: exitCode}}}
}

func waitingAfter(name string, exitCode int32) corev1.ContainerStatus {
	return corev1.ContainerStatus{
		Name: name, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}},
		LastTerminationState: terminatedStatus(name, exitCode).State,
	}
}

// ST-2
func TestPhase_FromStatuses(t *testing.T) {
	list := func(c ...corev1.ContainerStatus) []corev1.ContainerStatus { return c }
	for name, tt := range map[string]struct {
		pod  *corev1.Pod
		st   corev1.PodStatus
		want corev1.PodPhase
	}{
		"an init container that succeeded runs again in a new sandbox": {
			pod("init:i", "main:c"), corev1.PodStatus{InitContainerStatuses: list(waitingAfter("i", 0)), ContainerStatuses: list(waitingAfter("c", 1))}, corev1.PodPending,
		},
		"an init container that failed is restarted": {
			pod("init:i", "main:c"), corev1.PodStatus{InitContainerStatuses: list(terminatedStatus("i", 1)), ContainerStatuses: list(waitingAfter("c", 1))}, corev1.PodPending,
		},
		"a sidecar without a status": {
			pod("sidecar:s", "main:c"), corev1.PodStatus{ContainerStatuses: list(waitingAfter("c", 1))}, corev1.PodPending,
		},
		"a regular container without a status": {
			pod("main:c", "main:d"), corev1.PodStatus{ContainerStatuses: list(terminatedStatus("c", 0))}, corev1.PodPending,
		},
		"no containers": {pod(), corev1.PodStatus{}, corev1.PodPending},
	} {
		assert.Equal(t, tt.want, status.Phase(tt.pod, tt.st, false), name)
	}
}

// ST-2, ST-5: a termination that was only listed does not make a pod fail.
func TestGenerate_ListingDuringTerminationIsNotTerminal(t *testing.T) {
	evicted := &runtime.Termination{Reason: "Evicted", Evicted: true}
	st := generate(pod("main:c"), runtime.Report{Observed: listed(view()), Termination: evicted})
	assert.Equal(t, corev1.PodPending, st.Phase)
	assert.Empty(t, st.Reason)
}

func TestGenerate_BlockedWithoutReason(t *testing.T) {
	st := generate(pod("main:c"), runtime.Report{Observed: view(), Blocked: &runtime.Failure{Message: "not now"}})
	assert.Equal(t, "Blocked", st.Reason)
	assert.Equal(t, "not now", st.Message)
}

// A status that another program wrote may lack what this package always sets.
func TestGenerate_PreviousStatusWithoutStarted(t *testing.T) {
	previous := corev1.PodStatus{Phase: corev1.PodPending, InitContainerStatuses: []corev1.ContainerStatus{{Name: "s"}}}
	st := generateAfter(previous, pod("sidecar:s", "main:c"), runtime.Report{Observed: view(), Finished: true})
	assert.Equal(t, corev1.PodFailed, st.Phase)
}

// ST-4
func TestGenerate_ContainerResources(t *testing.T) {
	generateFor := func(p *corev1.Pod, previous corev1.ContainerStatus, r runtime.Report) corev1.ContainerStatus {
		return generateAfter(corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{previous}}, p, r).ContainerStatuses[0]
	}
	p := pod("main:c")
	p.Spec.Containers[0].Resources.Limits = amounts("cpu", "2")
	previous := corev1.ContainerStatus{
		Name: "c", ContainerID: "containerd://c-0", AllocatedResources: amounts("cpu", "1"),
		Resources: &corev1.ResourceRequirements{Limits: amounts("cpu", "1")},
	}
	t.Run("a container that is gone keeps no allocation that its spec lacks", func(t *testing.T) {
		assert.Nil(t, generateFor(p, previous, runtime.Report{Observed: view()}).AllocatedResources)
	})
	t.Run("empty requests are not an allocation", func(t *testing.T) {
		empty := p.DeepCopy()
		empty.Spec.Containers[0].Resources.Requests = corev1.ResourceList{}
		assert.Nil(t, generateFor(empty, previous, runtime.Report{Observed: view(running("c", 0))}).AllocatedResources)
	})
	t.Run("a container that waits for its restart has those of the spec", func(t *testing.T) {
		r := runtime.Report{Observed: view(exited("c", 0, 1)), Failures: map[string]runtime.Failure{"c": {Reason: "CrashLoopBackOff"}}}
		st := generateFor(p, previous, r)
		require.NotNil(t, st.State.Waiting)
		assert.Equal(t, amounts("cpu", "2"), st.Resources.Limits)
	})
	t.Run("an exited container without previous resources has those of the spec", func(t *testing.T) {
		without := previous
		without.Resources = nil
		st := generateFor(p, without, runtime.Report{Observed: view(exited("c", 0, 1))})
		require.NotNil(t, st.Resources)
		assert.Equal(t, amounts("cpu", "2"), st.Resources.Limits)
	})
	t.Run("debug containers have none", func(t *testing.T) {
		debug := pod("main:c", "debug:d")
		other := previous
		other.Name, other.ContainerID = "d", "containerd://d-0"
		st := generateAfter(corev1.PodStatus{EphemeralContainerStatuses: []corev1.ContainerStatus{other}}, debug, runtime.Report{Observed: view()})
		assert.Nil(t, st.EphemeralContainerStatuses[0].Resources)
		assert.Nil(t, st.EphemeralContainerStatuses[0].AllocatedResources)
	})
}

func TestGenerate_RecursiveReadOnlyIfPossible(t *testing.T) {
	ifPossible := corev1.RecursiveReadOnlyIfPossible
	p := pod("main:c")
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v", ReadOnly: true, RecursiveReadOnly: &ifPossible}}
	for possible, want := range map[bool]corev1.RecursiveReadOnlyMode{true: corev1.RecursiveReadOnlyEnabled, false: corev1.RecursiveReadOnlyDisabled} {
		st := status.Generate(p, runtime.Report{Observed: view(running("c", 0))}, corev1.PodStatus{}, status.NodeInfo{Handlers: []runtime.Handler{{RecursiveReadOnlyMounts: possible}}}, testTime)
		assert.Equal(t, want, *st.ContainerStatuses[0].VolumeMounts[0].RecursiveReadOnly)
	}
}

// What the handler of the pod can do counts, as when the mount is made.
func TestGenerate_RecursiveReadOnlyOfAHandler(t *testing.T) {
	ifPossible := corev1.RecursiveReadOnlyIfPossible
	env := status.NodeInfo{Handlers: []runtime.Handler{{}, {Name: "new", RecursiveReadOnlyMounts: true}}}
	for class, want := range map[string]corev1.RecursiveReadOnlyMode{"": corev1.RecursiveReadOnlyDisabled, "new": corev1.RecursiveReadOnlyEnabled, "other": corev1.RecursiveReadOnlyDisabled} {
		p := pod("main:c")
		if class != "" {
			p.Spec.RuntimeClassName = &class
		}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v", ReadOnly: true, RecursiveReadOnly: &ifPossible}}
		st := status.Generate(p, runtime.Report{Observed: view(running("c", 0))}, corev1.PodStatus{}, env, testTime)
		assert.Equal(t, want, *st.ContainerStatuses[0].VolumeMounts[0].RecursiveReadOnly, class)
	}
}

// ST-4: a sidecar that exited with success is restarted too.
func TestGenerate_SidecarInBackOffAfterSuccess(t *testing.T) {
	r := runtime.Report{
		Observed: view(running("c", 0), exited("s", 0, 0)),
		Failures: map[string]runtime.Failure{"s": {Reason: "CrashLoopBackOff"}},
	}
	st := generate(pod("policy=Always", "sidecar:s", "main:c"), r)
	require.NotNil(t, st.InitContainerStatuses[0].State.Waiting)
	assert.Equal(t, "CrashLoopBackOff", st.InitContainerStatuses[0].State.Waiting.Reason)
}

// ST-8: after the deletion of a pod with a deletion timestamp was sent, another
// report that it is finished is not sent.
func TestManager_ReportAfterDeletion(t *testing.T) {
	deleted := func() *corev1.Pod {
		p := pod("main:c")
		now := metav1.NewTime(testTime)
		p.DeletionTimestamp = &now
		return p
	}
	finished := runtime.Report{Observed: view(), Finished: true}
	for name, tt := range map[string]struct {
		report  func(m *status.Manager)
		isKnown bool
	}{
		"finished again":                      {func(m *status.Manager) { m.Observe(deleted(), finished) }, false},
		"rejected":                            {func(m *status.Manager) { m.Reject(deleted(), "OutOfcpu", "no") }, false},
		"not finished":                        {func(m *status.Manager) { m.Observe(deleted(), runtime.Report{Observed: view(running("c", 1))}) }, true},
		"finished without deletion timestamp": {func(m *status.Manager) { m.Observe(pod("main:c"), finished) }, true},
	} {
		m, err := status.New(status.Config{})
		require.NoError(t, err)
		want := m.Observe(deleted(), finished)
		_, ok := m.Get("uid-1")
		require.False(t, ok)
		tt.report(m)
		st, ok := m.Get("uid-1")
		assert.Equal(t, tt.isKnown, ok, name)
		if !tt.isKnown {
			assert.Equal(t, want, m.Observe(deleted(), finished), name)
			assert.Equal(t, corev1.PodStatus{}, st, name)
		}
		assert.Len(t, m.PodUIDs(), 1, name)
		m.Forget("uid-1")
	}
}
