package cgroup

import (
	"cmp"
	"math"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/internal/hugepages"
	"github.com/sublet-dev/agent/podspec"
)

// Bounds of the kernel for CPU shares (v1), weights (v2) and quotas, and the default of the
// period to which quotas refer.
const (
	minShares   = 2
	maxShares   = 262144
	minWeight   = 1
	maxWeight   = 10000
	minQuota    = 1000   // µs
	quotaPeriod = 100000 // µs
)

// limits are the limits and the weight of a cgroup.
type limits struct {
	shares uint64            // CPU weight in the unit of v1; 0: not set
	quota  int64             // CPU time per period in µs; 0: no limit
	period int64             // µs; 0: quotaPeriod
	memory int64             // bytes; 0: no limit
	qos    memoryQoS         // of v2 only
	pids   int64             // 0: no limit
	huge   map[string]uint64 // bytes by page size, in the form of pageSize; nil: not set
}

// memoryQoS is how memory below the limit is treated, in bytes.
type memoryQoS struct {
	minimum int64 // never reclaimed
	low     int64 // reclaimed last
	high    int64 // throttled from there; 0: not throttled
}

func (l limits) equal(o limits) bool {
	if l.shares != o.shares || l.quota != o.quota || l.period != o.period || l.memory != o.memory || l.qos != o.qos || l.pids != o.pids || len(l.huge) != len(o.huge) {
		return false
	}
	for size, n := range l.huge {
		if m, ok := o.huge[size]; !ok || m != n {
			return false
		}
	}
	return true
}

func (l limits) quotaPeriod() int64 { return cmp.Or(l.period, quotaPeriod) }

// podLimits returns the limits of the cgroup of a pod. A pod has a CPU or memory limit only
// if all its containers have one. Its memory is throttled here if it has limits of its own;
// otherwise that of its containers is.
func (c *Config) podLimits(pod *corev1.Pod, pageSizes []string) limits {
	class, requests, bounds := podspec.QOS(pod), podspec.Requests(pod), podspec.Limits(pod)
	l := limits{pids: c.PodPidsLimit, shares: sharesOf(milliCPU(requests)), period: int64(c.CPUQuotaPeriod / time.Microsecond)}
	if class == corev1.PodQOSBestEffort {
		l.shares = minShares
	}
	l.qos.minimum, l.qos.low, l.qos.high = c.MemoryQoS.OfPod(pod, memoryBytes(requests), memoryBytes(bounds))
	if cpu, ok := bounds[corev1.ResourceCPU]; ok && cpu.Sign() > 0 {
		l.quota = max(cpu.MilliValue()*l.quotaPeriod()/1000, minQuota)
	}
	if memory, ok := bounds[corev1.ResourceMemory]; ok && memory.Sign() > 0 {
		l.memory = memory.Value()
	}
	l.huge = hugeLimits(requests, pageSizes)
	return l
}

// hugeLimits returns a limit for every huge page size of the node: what the pod requests,
// which is its limit, as huge pages cannot be overcommitted. A container without a limit
// gets none of them, and takes nothing from the others.
func hugeLimits(requests corev1.ResourceList, pageSizes []string) map[string]uint64 {
	if len(pageSizes) == 0 {
		return nil
	}
	out := make(map[string]uint64, len(pageSizes))
	for _, size := range pageSizes {
		out[size] = 0
	}
	for name, q := range requests {
		rest, ok := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix)
		if !ok {
			continue
		}
		size, err := resource.ParseQuantity(rest)
		if err != nil {
			continue
		}
		kernel := hugepages.Name(size.Value())
		if _, known := out[kernel]; known {
			out[kernel] += uint64(max(q.Value(), 0)) // two names can be of one size
		}
	}
	return out
}

// maxMilliCPU is far above the range of weights, and small enough that the requests of all
// pods of a node can be added without overflow.
const maxMilliCPU = 1e9

// milliCPU returns the CPU in the list in millicores, at most maxMilliCPU.
func milliCPU(list corev1.ResourceList) int64 {
	q := list[corev1.ResourceCPU]
	return min(q.MilliValue(), maxMilliCPU)
}

// maxMemory is far above what machines have, and small enough for sums as maxMilliCPU is.
const maxMemory = 1 << 50

// memoryBytes returns the memory in the list in bytes, at most maxMemory.
func memoryBytes(list corev1.ResourceList) int64 {
	q := list[corev1.ResourceMemory]
	return min(q.Value(), maxMemory)
}

// sharesOf converts millicores to CPU shares.
func sharesOf(milli int64) uint64 {
	if milli <= 0 {
		return minShares
	}
	return uint64(min(max(milli*1024/1000, minShares), maxShares))
}

// weightOf converts shares to the weight of v2, 1 to 10000, as runc since 1.3.2, crun since
// 1.23 and the kubelet do: by a quadratic function of the logarithm. It maps the bounds of
// shares to those of weights and the default of 1024 shares to the default weight of 100,
// so that a pod that requests one CPU has the weight of a system service.
func weightOf(shares uint64) uint64 {
	switch {
	case shares <= minShares:
		return minWeight
	case shares >= maxShares:
		return maxWeight
	}
	l := math.Log2(float64(shares))
	return uint64(math.Ceil(math.Pow(10, l*(l+125)/612-7.0/34)))
}

// nodeLimits returns the limits of the cgroup of all pods.
func nodeLimits(allocatable corev1.ResourceList) limits {
	var l limits
	if cpu, ok := allocatable[corev1.ResourceCPU]; ok {
		l.shares = sharesOf(min(cpu.MilliValue(), maxMilliCPU))
	}
	if memory, ok := allocatable[corev1.ResourceMemory]; ok {
		l.memory = memory.Value()
	}
	if pids, ok := allocatable[resourcePIDs]; ok {
		l.pids = pids.Value()
	}
	return l
}

// resourcePIDs is the kubelet's name for the number of processes in a reservation.
const resourcePIDs corev1.ResourceName = "pid"
