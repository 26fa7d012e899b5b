package translate

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/podspec"
)

func list(cpu, memory string) corev1.ResourceList {
	out := corev1.ResourceList{}
	if cpu != "" {
		out[corev1.ResourceCPU] = resource.MustParse(cpu)
	}
	if memory != "" {
		out[corev1.ResourceMemory] = resource.MustParse(memory)
	}
	return out
}

func resources(requests, limits corev1.ResourceList) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: requests, Limits: limits}
}

// A limit of zero is none: then that of the pod counts.
func TestTranslator_LimitsOfThePod(t *testing.T) {
	tr := bare(func(p *corev1.Pod, ct *corev1.Container) {
		pod := resources(nil, list("2", "2Gi"))
		p.Spec.Resources = &pod
		ct.Resources = resources(nil, list("0", "1Gi"))
	})
	tr.Node.CPUQuotaPeriod = 100 * time.Millisecond
	got := tr.Resources(&tr.Pod.Spec.Containers[0])
	assert.Equal(t, int64(200_000), got.GetCpuQuota())
	assert.Equal(t, int64(1<<30), got.GetMemoryLimitInBytes())
	assert.Equal(t, int64(2048), got.GetCpuShares(), "without a request the limit is one")

	tr = bare(func(_ *corev1.Pod, ct *corev1.Container) { ct.Resources = resources(nil, list("2", "")) })
	cfg, err := tr.Sandbox(0)
	require.NoError(t, err)
	assert.Equal(t, int64(2048), cfg.GetLinux().GetResources().GetCpuShares())
	assert.Zero(t, cfg.GetLinux().GetResources().GetMemoryLimitInBytes())
}

// A container with CPUs for itself has no quota, and neither has its pod. What it requests
// counts as ever.
func TestTranslator_NoCPUQuota(t *testing.T) {
	tr := bare(func(p *corev1.Pod, ct *corev1.Container) {
		ct.Resources = resources(list("2", "1Gi"), list("2", "1Gi"))
		other := *ct.DeepCopy()
		other.Name = "other"
		p.Spec.Containers = append(p.Spec.Containers, other)
	})
	tr.Node.CPUQuotaPeriod = 100 * time.Millisecond
	own := tr.Pod.Spec.Containers[0].Name
	tr.Options.NoCPUQuota = func(container string) bool { return container == own || container == "" }
	got := tr.Resources(&tr.Pod.Spec.Containers[0])
	assert.Zero(t, got.GetCpuQuota())
	assert.Equal(t, int64(100_000), got.GetCpuPeriod(), "without a period an update would change nothing")
	assert.Equal(t, int64(2048), got.GetCpuShares())
	assert.Equal(t, int64(1<<30), got.GetMemoryLimitInBytes())
	assert.Equal(t, int64(200_000), tr.Resources(&tr.Pod.Spec.Containers[1]).GetCpuQuota())
	cfg, err := tr.Sandbox(0)
	require.NoError(t, err)
	assert.Zero(t, cfg.GetLinux().GetResources().GetCpuQuota())
	assert.Equal(t, int64(4096), cfg.GetLinux().GetResources().GetCpuShares())

	tr.Options.NoCPUQuota = func(string) bool { return false }
	assert.Equal(t, int64(200_000), tr.Resources(&tr.Pod.Spec.Containers[0]).GetCpuQuota())
	cfg, err = tr.Sandbox(0)
	require.NoError(t, err)
	assert.Equal(t, int64(400_000), cfg.GetLinux().GetResources().GetCpuQuota())
}

// The score of a burstable container follows from what the node has and what it did not
// ask for.
func TestTranslator_OOMScore(t *testing.T) {
	const gi = int64(1) << 30
	burstable := func(request string) func(*corev1.Pod, *corev1.Container) {
		return func(_ *corev1.Pod, ct *corev1.Container) { ct.Resources = resources(list("", request), nil) }
	}
	prioritized := func(priority int32) func(*corev1.Pod, *corev1.Container) {
		return func(p *corev1.Pod, ct *corev1.Container) {
			p.Spec.Priority = &priority
			ct.Resources = resources(list("", "1Gi"), nil)
		}
	}
	shared := func(pod string) func(*corev1.Pod, *corev1.Container) {
		return func(p *corev1.Pod, ct *corev1.Container) {
			own := resources(list("", pod), nil)
			p.Spec.Resources = &own
			ct.Resources = resources(list("", "1Gi"), nil)
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "other"})
		}
	}
	for name, tc := range map[string]struct {
		change                func(*corev1.Pod, *corev1.Container)
		capacity, allocatable int64
		want                  int64
	}{
		"a quarter of the node":             {burstable("1Gi"), 4 * gi, 0, 750},
		"a quarter of what is allocatable":  {burstable("1Gi"), 0, 4 * gi, 750},
		"more than the node has":            {burstable("8Gi"), 4 * gi, 0, 3},
		"all but nothing":                   {burstable("1"), 4 * gi, 0, 999},
		"an unknown node":                   {burstable("1Gi"), 0, 0, 999},
		"a machine without a bound":         {burstable("2Ei"), math.MaxInt64, 0, 751},
		"the largest machine that is exact": {burstable("1Ki"), math.MaxInt64 / 1000, 0, 999},
		"one priority below the node's own": {prioritized(podspec.SystemCriticalPriority + 999), 4 * gi, 0, 750},
		"the node's own":                    {prioritized(podspec.SystemCriticalPriority + 1000), 4 * gi, 0, oomGuaranteed},
		"a share of what the pod has left":  {shared("2Gi"), 4 * gi, 0, 625},
		"nothing is left of the pod's":      {shared("1Gi"), 4 * gi, 0, 750},
	} {
		t.Run(name, func(t *testing.T) {
			tr := bare(tc.change)
			tr.Node.MemoryCapacity = tc.capacity
			if tc.allocatable > 0 {
				tr.Options.Allocatable = corev1.ResourceList{corev1.ResourceMemory: *resource.NewQuantity(tc.allocatable, resource.BinarySI)}
			}
			assert.Equal(t, tc.want, tr.Resources(&tr.Pod.Spec.Containers[0]).GetOomScoreAdj())
		})
	}
}

// Swap is for burstable containers that may use more memory than they asked for.
func TestTranslator_SwapShare(t *testing.T) {
	for name, tc := range map[string]struct {
		change   func(*corev1.Pod, *corev1.Container)
		capacity int64
		want     string
	}{
		"a quarter of the memory": {func(_ *corev1.Pod, ct *corev1.Container) { ct.Resources = resources(list("", "1Gi"), nil) }, 4 << 30, "256"},
		"no memory is asked for":  {func(_ *corev1.Pod, ct *corev1.Container) { ct.Resources = resources(list("1", ""), list("", "1Gi")) }, 4 << 30, "0"},
		"an unknown node":         {func(_ *corev1.Pod, ct *corev1.Container) { ct.Resources = resources(list("", "1Gi"), nil) }, 0, "0"},
		"all that it may use":     {func(_ *corev1.Pod, ct *corev1.Container) { ct.Resources = resources(list("", "1Gi"), list("", "1Gi")) }, 4 << 30, "0"},
		"more than the memory":    {func(_ *corev1.Pod, ct *corev1.Container) { ct.Resources = resources(list("", "5Gi"), nil) }, 4 << 30, "0"},
		"exactly the memory":      {func(_ *corev1.Pod, ct *corev1.Container) { ct.Resources = resources(list("", "4Gi"), nil) }, 4 << 30, "1024"},
		"a best-effort pod":       {func(*corev1.Pod, *corev1.Container) {}, 4 << 30, "0"},
		"a static pod": {func(p *corev1.Pod, ct *corev1.Container) {
			p.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
			ct.Resources = resources(list("", "1Gi"), nil)
		}, 4 << 30, "0"},
		"a guaranteed pod": {func(p *corev1.Pod, ct *corev1.Container) {
			pod := resources(list("1", "1Gi"), list("1", "1Gi"))
			p.Spec.Resources = &pod
			ct.Resources = resources(list("", "512Mi"), nil)
		}, 4 << 30, "0"},
		"a critical pod": {func(p *corev1.Pod, ct *corev1.Container) {
			p.Spec.Priority = new(podspec.SystemCriticalPriority)
			ct.Resources = resources(list("", "1Gi"), nil)
		}, 4 << 30, "0"},
	} {
		t.Run(name, func(t *testing.T) {
			tr := bare(tc.change)
			tr.Node = Node{LimitsSwap: true, CgroupV2: true, SwapCapacity: 1024, MemoryCapacity: tc.capacity}
			assert.Equal(t, tc.want, tr.Resources(&tr.Pod.Spec.Containers[0]).GetUnified()["memory.swap.max"])
		})
	}
}

// The settings of cgroup v2 are always there, so that an update removes those of an earlier
// agent. The factor applies between the request and the limit, or else what is allocatable.
func TestTranslator_MemoryQoS(t *testing.T) {
	both := podspec.MemoryQoS{ThrottlingFactor: 0.5, ReserveRequests: true}
	const mi64, mi96, mi576 = "67108864", "100663296", "603979776" // the last is half of the way from 128Mi to 1Gi
	for name, tc := range map[string]struct {
		qos                                podspec.MemoryQoS
		requests, limits, podLimits        corev1.ResourceList
		wantMinimum, wantLow, wantThrottle string
	}{
		"off":                             {podspec.MemoryQoS{}, list("", "64Mi"), list("", "128Mi"), nil, "0", "0", "max"},
		"a burstable container":           {both, list("", "64Mi"), list("", "128Mi"), nil, "0", mi64, mi96},
		"throttled only":                  {podspec.MemoryQoS{ThrottlingFactor: 0.5}, list("", "64Mi"), list("", "128Mi"), nil, "0", "0", mi96},
		"reserved only":                   {podspec.MemoryQoS{ReserveRequests: true}, list("", "64Mi"), list("", "128Mi"), nil, "0", mi64, "max"},
		"a guaranteed container":          {both, list("1", "64Mi"), list("1", "64Mi"), nil, mi64, "0", "max"},
		"no limit":                        {both, list("", "128Mi"), nil, nil, "0", "134217728", mi576},
		"best effort":                     {both, nil, nil, nil, "0", "0", "536870912"},
		"the pod's cgroup has the limit":  {both, list("", "64Mi"), nil, list("", "256Mi"), "0", mi64, "max"},
		"the pod has a limit of CPU only": {both, list("", "128Mi"), nil, list("1", ""), "0", "134217728", mi576},
	} {
		t.Run(name, func(t *testing.T) {
			tr := bare(func(p *corev1.Pod, ct *corev1.Container) {
				ct.Resources = resources(tc.requests, tc.limits)
				if tc.podLimits != nil {
					pod := resources(tc.requests, tc.podLimits)
					p.Spec.Resources = &pod
				}
			})
			tr.Node.CgroupV2, tr.Node.MemoryQoS = true, tc.qos
			tr.Options.Allocatable = list("", "1Gi")
			got := tr.Resources(&tr.Pod.Spec.Containers[0]).GetUnified()
			assert.Equal(t, map[string]string{
				"memory.min": tc.wantMinimum, "memory.low": tc.wantLow, "memory.high": tc.wantThrottle, "memory.oom.group": "1",
			}, got)
			tr.Node.CgroupV2 = false
			assert.Empty(t, tr.Resources(&tr.Pod.Spec.Containers[0]).GetUnified(), "version 1 has none of them")
		})
	}
}

// One process that runs out of memory takes its container along, unless it must not.
func TestTranslator_SingleProcessOOMKill(t *testing.T) {
	tr := bare(func(*corev1.Pod, *corev1.Container) {})
	tr.Node.CgroupV2 = true
	spec := &tr.Pod.Spec.Containers[0]
	assert.Equal(t, "1", tr.Resources(spec).GetUnified()["memory.oom.group"])
	tr.Node.SingleProcessOOMKill = true
	assert.NotContains(t, tr.Resources(spec).GetUnified(), "memory.oom.group")
}

// Limits on huge pages of one size under two names count together, and those of the container, of whatever name, replace
// those of the pod.
func TestTranslator_HugePagesOfTwoNames(t *testing.T) {
	limits := corev1.ResourceList{"hugepages-2Mi": resource.MustParse("4Mi"), "hugepages-2048Ki": resource.MustParse("8Mi")}
	want := []*v1.HugepageLimit{{PageSize: "2MB", Limit: 12 << 20}}
	for range 20 { // the order of a map is random
		tr := bare(func(_ *corev1.Pod, ct *corev1.Container) { ct.Resources = resources(nil, limits) })
		assert.Equal(t, want, tr.Resources(&tr.Pod.Spec.Containers[0]).GetHugepageLimits())
		tr = bare(func(p *corev1.Pod, _ *corev1.Container) { p.Spec.Resources = new(resources(nil, limits)) })
		assert.Equal(t, want, tr.Resources(&tr.Pod.Spec.Containers[0]).GetHugepageLimits())
		tr.Pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"hugepages-2048Ki": resource.MustParse("2Mi")}
		assert.Equal(t, uint64(2<<20), tr.Resources(&tr.Pod.Spec.Containers[0]).GetHugepageLimits()[0].GetLimit())
	}
}
