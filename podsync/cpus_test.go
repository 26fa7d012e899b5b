package podsync_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/runtime"
)

// assigner gives containers CPUs for themselves when they are created.
type assigner struct {
	has map[string]bool
	bug bool
}

func (a *assigner) Inject(_ context.Context, _ *corev1.Pod, c *corev1.Container, running bool) (runtime.Injection, error) {
	if !running {
		a.has[c.Name] = true
	}
	return runtime.Injection{}, nil
}

func (a *assigner) HasExclusiveCPUs(_ *corev1.Pod, c *corev1.Container) bool {
	if a.bug {
		panic("bug of a vendor")
	}
	return a.has[c.Name]
}

func (a *assigner) PodHasExclusiveCPUs(*corev1.Pod) bool {
	if a.bug {
		panic("bug of a vendor")
	}
	return true
}

// A container with CPUs for itself is created without a quota, as is its pod, and the missing
// quota is no reason to change it: not in the status, not in the plan, and not for an agent that
// was restarted.
func TestSync_NoQuotaOnExclusiveCPUs(t *testing.T) {
	pod := newTestPod()
	c := &pod.Spec.Containers[0]
	c.Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
	n := &fakeNode{phase: corev1.PodPending}
	cfg := newConfig(t, n)
	cpus := &assigner{has: map[string]bool{}}
	cfg.Injectors = []podsync.Injector{&injector{}, cpus}
	_, err := newSyncer(t, cfg).Sync(t.Context(), pod, runtime.Pod{})
	require.NoError(t, err)
	require.True(t, n.opts.NoCPUQuota(""), "known before the first container is created")
	require.False(t, n.opts.NoCPUQuota(c.Name))
	require.False(t, n.opts.NoCPUQuota("unknown"))
	_, err = n.opts.Inject(t.Context(), c)
	require.NoError(t, err)
	require.True(t, n.opts.NoCPUQuota(c.Name))

	n.phase = corev1.PodRunning
	cfg.Injectors = []podsync.Injector{cpus}
	request := resource.MustParse("1")
	observed := podWith(runtime.Injection{})
	observed.Containers[0].Resources = &runtime.Resources{CPURequest: &request}
	sync := func() {
		t.Helper()
		n.reports, n.plan = nil, nil
		_, err := newSyncer(t, cfg).Sync(t.Context(), pod, observed)
		require.NoError(t, err)
		require.False(t, observed.Containers[0].Resources.ExclusiveCPUs, "what others read is not changed")
	}
	sync()
	require.Empty(t, n.plan)
	require.True(t, n.reports[0].Observed.Containers[0].Resources.ExclusiveCPUs)
	n.reports = nil
	require.NoError(t, newSyncer(t, cfg).Terminate(t.Context(), pod, observed, runtime.Termination{}))
	require.True(t, n.reports[0].Observed.Containers[0].Resources.ExclusiveCPUs)

	observed.Containers[0].Resources = &runtime.Resources{CPURequest: &request, CPULimit: &request}
	sync()
	require.Len(t, n.plan, 1)
	require.Equal(t, runtime.UpdateResources, n.plan[0].Type)

	cpus.has[c.Name] = false
	sync()
	require.Empty(t, n.plan, "it shares: its quota counts")
	cpus.bug = true
	sync()
	require.Empty(t, n.plan)
	require.False(t, n.opts.NoCPUQuota(""))
	require.False(t, n.opts.NoCPUQuota(c.Name))
}

func TestPodHasExclusiveCPUs(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	require.Nil(t, podsync.PodHasExclusiveCPUs(log, []podsync.Injector{&injector{}}))
	cpus := &assigner{}
	f := podsync.PodHasExclusiveCPUs(log, []podsync.Injector{&injector{}, cpus})
	require.True(t, f(newTestPod()))
	cpus.bug = true
	require.False(t, f(newTestPod()))
}
