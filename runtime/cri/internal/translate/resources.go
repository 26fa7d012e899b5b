package translate

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/hugepages"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// Resources translates what a container may use.
func (tr *Translator) Resources(spec *corev1.Container) *v1.LinuxContainerResources {
	request, hasRequest := spec.Resources.Requests[corev1.ResourceCPU]
	cpu, memory := tr.limit(spec, corev1.ResourceCPU), tr.limit(spec, corev1.ResourceMemory)
	if !hasRequest {
		request = cpu
	}
	r := tr.linux(request, tr.throttled(spec.Name, cpu), memory)
	r.OomScoreAdj = tr.oomScore(spec)
	r.HugepageLimits = tr.hugePages(spec)
	tr.swap(r, spec)
	if tr.Node.CgroupV2 {
		if !tr.Node.SingleProcessOOMKill {
			unified(r, "memory.oom.group", "1")
		}
		tr.memoryQoS(r, spec)
	}
	return r
}

// memoryQoS protects and throttles the memory of a container. What is off is set too: a
// change of a running container must not leave what an earlier agent or spec has set.
func (tr *Translator) memoryQoS(r *v1.LinuxContainerResources, spec *corev1.Container) {
	request := memoryRequest(spec)
	minimum, low := tr.Node.MemoryQoS.Reserved(podspec.QOS(tr.Pod), request)
	unified(r, "memory.min", strconv.FormatInt(minimum, 10))
	unified(r, "memory.low", strconv.FormatInt(low, 10))
	high := "max"
	if n := tr.Node.MemoryQoS.High(request, tr.mostMemory(spec)); n > 0 {
		high = strconv.FormatInt(n, 10)
	}
	unified(r, "memory.high", high)
}

// mostMemory is what a container may use of memory: what is allocatable if neither it nor
// its pod has a limit. It is 0 if the limit of the pod alone counts, whose cgroup is throttled.
func (tr *Translator) mostMemory(spec *corev1.Container) int64 {
	limit := spec.Resources.Limits[corev1.ResourceMemory]
	if limit.Sign() > 0 {
		return limit.Value()
	}
	if pod := tr.Pod.Spec.Resources; pod != nil {
		if q := pod.Limits[corev1.ResourceMemory]; q.Sign() > 0 {
			return 0
		}
	}
	allocatable := tr.Options.Allocatable[corev1.ResourceMemory]
	return allocatable.Value()
}

// limit is the container's, or else the pod's for all its containers together.
func (tr *Translator) limit(spec *corev1.Container, name corev1.ResourceName) resource.Quantity {
	if q, ok := spec.Resources.Limits[name]; ok && !q.IsZero() {
		return q
	}
	if tr.Pod.Spec.Resources != nil {
		return tr.Pod.Spec.Resources.Limits[name]
	}
	return resource.Quantity{}
}

// throttled is the CPU limit of a container, as far as it is enforced.
func (tr *Translator) throttled(container string, limit resource.Quantity) resource.Quantity {
	if f := tr.Options.NoCPUQuota; f != nil && f(container) {
		return resource.Quantity{}
	}
	return limit
}

func (tr *Translator) linux(cpuRequest, cpuLimit, memoryLimit resource.Quantity) *v1.LinuxContainerResources {
	r := &v1.LinuxContainerResources{
		CpuShares: milliToShares(cpuRequest.MilliValue()), MemoryLimitInBytes: max(memoryLimit.Value(), 0),
	}
	if !tr.Node.NoCPUQuota {
		r.CpuPeriod = int64(tr.Node.CPUQuotaPeriod / time.Microsecond)
		r.CpuQuota = milliToQuota(cpuLimit.MilliValue(), r.CpuPeriod)
	}
	return r
}

// Overhead is what the sandbox costs beside its containers; nil: nothing.
func (tr *Translator) Overhead() *v1.LinuxContainerResources {
	o := tr.Pod.Spec.Overhead
	if len(o) == 0 {
		return nil
	}
	return tr.linux(o[corev1.ResourceCPU], o[corev1.ResourceCPU], o[corev1.ResourceMemory])
}

// podResources is the sum of what the containers may use.
func (tr *Translator) podResources() *v1.LinuxContainerResources {
	r := runtime.PodResourcesOf(tr.Pod)
	if f := tr.Options.NoCPUQuota; f != nil && f("") {
		r.CPULimit = 0
	}
	return tr.together(r)
}

func (tr *Translator) together(r runtime.PodResources) *v1.LinuxContainerResources {
	milli := func(n int64) resource.Quantity { return *resource.NewMilliQuantity(n, resource.DecimalSI) }
	return tr.linux(milli(r.CPURequest), milli(r.CPULimit), *resource.NewQuantity(r.MemoryLimit, resource.BinarySI))
}

// ResizedPod translates a change of the sum of what the containers may use. Memory that is kept for
// the pod, or throttled, is that of its cgroup, with the overhead.
func (tr *Translator) ResizedPod(r runtime.PodResources) *v1.LinuxContainerResources {
	out := tr.together(r)
	if !tr.Node.CgroupV2 {
		return out
	}
	request, limit := podspec.Requests(tr.Pod)[corev1.ResourceMemory], podspec.Limits(tr.Pod)[corev1.ResourceMemory]
	minimum, low, high := tr.Node.MemoryQoS.OfPod(tr.Pod, request.Value(), limit.Value())
	for file, bytes := range map[string]int64{"memory.min": minimum, "memory.low": low, "memory.high": high} {
		if bytes > 0 {
			unified(out, file, strconv.FormatInt(bytes, 10))
		}
	}
	return out
}

// The scale of the kernel's oom_score_adj, and where the classes stand on it.
const (
	oomGuaranteed = -997
	oomBestEffort = 1000
)

// oomScore says how early the kernel ends this container when memory runs out:
// best effort first, guaranteed and critical last, burstable by how much of the
// node's memory it did not ask for.
func (tr *Translator) oomScore(spec *corev1.Container) int64 {
	if podspec.Priority(tr.Pod) >= podspec.SystemCriticalPriority+1000 {
		return oomGuaranteed
	}
	switch podspec.QOS(tr.Pod) {
	case corev1.PodQOSGuaranteed:
		return oomGuaranteed
	case corev1.PodQOSBestEffort:
		return oomBestEffort
	default: // burstable
	}
	share := tr.spareMemory()
	score := tr.scoreOf(memoryRequest(spec) + share)
	if podspec.IsSidecar(spec) {
		// A sidecar serves the regular containers: it must not go before them.
		least := int64(math.MaxInt64)
		for i := range tr.Pod.Spec.Containers {
			least = min(least, memoryRequest(&tr.Pod.Spec.Containers[i]))
		}
		if least != math.MaxInt64 {
			score = min(score, tr.scoreOf(least+share))
		}
	}
	return min(max(score, oomBestEffort+oomGuaranteed), oomBestEffort-1)
}

func memoryRequest(spec *corev1.Container) int64 {
	q := spec.Resources.Requests[corev1.ResourceMemory]
	return max(q.Value(), 0)
}

// spareMemory is what each container gets of the pod's own request that none of
// them asked for. Init containers count as well, though they may have ended.
func (tr *Translator) spareMemory() int64 {
	if tr.Pod.Spec.Resources == nil {
		return 0
	}
	requested := tr.Pod.Spec.Resources.Requests[corev1.ResourceMemory]
	bare := *tr.Pod
	bare.Spec.Resources, bare.Spec.Overhead = nil, nil
	asked := podspec.Requests(&bare)[corev1.ResourceMemory]
	count := int64(len(bare.Spec.InitContainers) + len(bare.Spec.Containers))
	if count == 0 || requested.Value() <= asked.Value() {
		return 0
	}
	return (requested.Value() - asked.Value()) / count
}

func (tr *Translator) scoreOf(memory int64) int64 {
	capacity := tr.memoryCapacity()
	if capacity <= 0 {
		return oomBestEffort
	}
	if capacity > math.MaxInt64/oomBestEffort {
		memory, capacity = memory/oomBestEffort, capacity/oomBestEffort
	}
	return oomBestEffort - oomBestEffort*min(memory, capacity)/capacity
}

func (tr *Translator) memoryCapacity() int64 {
	if tr.Node.MemoryCapacity > 0 {
		return tr.Node.MemoryCapacity
	}
	q := tr.Options.Allocatable[corev1.ResourceMemory]
	return q.Value()
}

// hugePages are the limits by page size: the container's, or else the pod's for
// all its containers together, and none at all of those sizes of the node that
// neither names. None of a size that the node does not have is no limit: there is
// no file for it.
func (tr *Translator) hugePages(spec *corev1.Container) []*v1.HugepageLimit {
	bySize := make(map[string]uint64)
	for _, size := range tr.Node.HugePageSizes {
		bySize[size] = 0
	}
	take := func(limits corev1.ResourceList) {
		taken := make(map[string]uint64)
		for name, q := range limits {
			if size, ok := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix); ok {
				if unit, err := resource.ParseQuantity(size); err == nil && (q.Sign() > 0 || slices.Contains(tr.Node.HugePageSizes, hugepages.Name(unit.Value()))) {
					taken[hugepages.Name(unit.Value())] += uint64(max(q.Value(), 0)) // two names can be of one size
				}
			}
		}
		maps.Copy(bySize, taken)
	}
	if tr.Pod.Spec.Resources != nil {
		take(tr.Pod.Spec.Resources.Limits)
	}
	take(spec.Resources.Limits)
	var out []*v1.HugepageLimit
	for size, limit := range bySize {
		out = append(out, &v1.HugepageLimit{PageSize: size, Limit: limit})
	}
	slices.SortFunc(out, func(a, b *v1.HugepageLimit) int { return strings.Compare(a.PageSize, b.PageSize) })
	return out
}

// swap bounds the swap of a container.
func (tr *Translator) swap(r *v1.LinuxContainerResources, spec *corev1.Container) {
	if !tr.Node.LimitsSwap {
		return
	}
	if !tr.Node.CgroupV2 {
		// Version 1 bounds memory and swap together, and per container only
		// where memory is bounded.
		r.MemorySwapLimitInBytes = r.MemoryLimitInBytes
		return
	}
	unified(r, "memory.swap.max", strconv.FormatInt(tr.swapShare(spec), 10))
}

// swapShare is how much swap a container may use: the same part of the node's
// swap as it asked for of the node's memory. None for those that must not swap:
// guaranteed, best effort and critical pods, and containers whose request is
// their limit.
func (tr *Translator) swapShare(spec *corev1.Container) int64 {
	request, capacity := memoryRequest(spec), tr.memoryCapacity()
	limit := spec.Resources.Limits[corev1.ResourceMemory]
	if request == 0 || request > capacity || limit.Value() == request ||
		podspec.QOS(tr.Pod) != corev1.PodQOSBurstable || podspec.IsCritical(tr.Pod) {
		return 0
	}
	return int64(float64(request) / float64(capacity) * float64(tr.Node.SwapCapacity))
}

func unified(r *v1.LinuxContainerResources, file, value string) {
	if r.Unified == nil {
		r.Unified = make(map[string]string)
	}
	r.Unified[file] = value
}
