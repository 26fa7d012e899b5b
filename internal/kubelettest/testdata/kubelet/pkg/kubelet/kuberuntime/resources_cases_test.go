package kuberuntime

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/kubernetes/cases"
	"k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	"k8s.io/kubernetes/test/utils/ktesting"
)

// resourcesCase is a pod, and what it and its containers get of the node.
type resourcesCase struct {
	MemoryQoS  bool              `json:"memoryQoS,omitempty"` // throttled at 0.9, and reserved by class
	Spec       v1.PodSpec        `json:"spec"`
	Class      v1.PodQOSClass    `json:"class"`
	Pod        string            `json:"pod"`
	Containers map[string]string `json:"containers"`
}

func TestResourcesCases(t *testing.T) {
	_, _, m, err := createTestRuntimeManager(ktesting.Init(t))
	if err != nil {
		t.Fatal(err)
	}
	setCgroupVersionDuringTest(cgroupV2)
	m.machineInfo.MemoryCapacity, m.cpuCFSQuota, m.cpuCFSQuotaPeriod.Duration = 16<<30, true, 100_000_000
	m.getNodeAllocatable = func() v1.ResourceList { return v1.ResourceList{"memory": resource.MustParse("15Gi")} }
	factor := 0.9
	cases.Write(t, "podspec/testdata/kubelet-resources.jsonl", `
		Pods with their QoS class, and what the cgroups of the pod and of its containers are set to with cgroup v2 on a
		node with 16 GiB of memory, of which 15 are allocatable: shares of CPU and a quota in 100 ms, both in the units of
		cgroup v1, the limit on memory, the OOM score, and memory.min, low and high. 0 is no limit. With memoryQoS,
		memoryThrottlingFactor is 0.9 and memoryReservationPolicy TieredReservation.`,
		20000, func(r *rand.Rand, size float64) (resourcesCase, []string) {
			c := resourcesCase{MemoryQoS: cases.Chance(r, 0.5), Spec: randomResources(r, size), Containers: map[string]string{}}
			m.memoryThrottlingFactor, m.memoryReservationPolicy = nil, kubeletconfig.NoneMemoryReservationPolicy
			if c.MemoryQoS {
				m.memoryThrottlingFactor, m.memoryReservationPolicy = &factor, kubeletconfig.TieredReservationMemoryReservationPolicy
			}
			pod := &v1.Pod{Spec: c.Spec}
			c.Class = qos.GetPodQOS(pod)
			p := cm.ResourceConfigForPod(pod, true, 100_000, c.MemoryQoS, m.memoryReservationPolicy)
			c.Pod = fmt.Sprintf("shares %d quota %d memory %d", value(p.CPUShares), max(value(p.CPUQuota), 0), value(p.Memory))
			traits := []string{fmt.Sprint(c.Class, p.CPUQuota != nil, p.Memory != nil, pod.Spec.Resources != nil, len(pod.Spec.InitContainers), len(pod.Spec.Containers)), fmt.Sprint(c.Class, pod.Spec.Overhead != nil, pod.Spec.Priority != nil)}
			for _, list := range [][]v1.Container{c.Spec.InitContainers, c.Spec.Containers} {
				for i := range list {
					l := m.generateLinuxContainerResources(t.Context(), pod, &list[i], true)
					c.Containers[list[i].Name] = fmt.Sprintf("shares %d quota %d memory %d oom %d min %s low %s high %s", l.CpuShares, max(l.CpuQuota, 0), l.MemoryLimitInBytes, l.OomScoreAdj,
						cmp.Or(l.Unified["memory.min"], "0"), cmp.Or(l.Unified["memory.low"], "0"), cmp.Or(l.Unified["memory.high"], "max"))
					traits = append(traits, fmt.Sprint(c.MemoryQoS, c.Class, isAlways(&list[i]), l.CpuShares == 2, l.CpuQuota > 1000, l.MemoryLimitInBytes > 0, l.OomScoreAdj > 3 && l.OomScoreAdj < 999, pod.Spec.Resources != nil))
				}
			}
			return c, traits
		})
}

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

func randomResources(r *rand.Rand, size float64) v1.PodSpec {
	spec := v1.PodSpec{}
	for i, name := range []string{"i", "a", "b"} {
		c := v1.Container{Name: name, Resources: randomRequirements(r)}
		switch {
		case i == 1:
			spec.Containers = append(spec.Containers, c)
		case !cases.Chance(r, size/2):
		case i == 2:
			if cases.Chance(r, 0.4) {
				c.Resources = spec.Containers[0].Resources
			}
			spec.Containers = append(spec.Containers, c)
		default:
			if cases.Chance(r, 0.6) {
				always := v1.ContainerRestartPolicyAlways
				c.RestartPolicy = &always
			}
			spec.InitContainers = append(spec.InitContainers, c)
		}
	}
	if cases.Chance(r, size/4) { // more than all containers together request
		spec.Resources = &v1.ResourceRequirements{Requests: v1.ResourceList{"cpu": resource.MustParse(cases.One(r, "10", "12")), "memory": resource.MustParse(cases.One(r, "10Gi", "12Gi"))}}
		if cases.Chance(r, 0.6) {
			spec.Resources.Limits = v1.ResourceList{"cpu": resource.MustParse(cases.One(r, "12", "14")), "memory": resource.MustParse(cases.One(r, "12Gi", "14Gi"))}
			if cases.Chance(r, 0.3) {
				delete(spec.Resources.Limits, cases.One[v1.ResourceName](r, "cpu", "memory"))
			}
		}
	}
	if cases.Chance(r, size/5) {
		spec.Overhead = v1.ResourceList{"cpu": resource.MustParse("250m"), "memory": resource.MustParse("120Mi")}
	}
	if cases.Chance(r, 0.1) {
		spec.Priority, spec.PriorityClassName = new(int32(2000000000)), "system-cluster-critical"
		if cases.Chance(r, 0.5) {
			spec.Priority, spec.PriorityClassName = new(int32(2000001000)), "system-node-critical"
		}
	}
	return spec
}

// randomRequirements are as an API server leaves them: a limit without a request is one too.
func randomRequirements(r *rand.Rand) v1.ResourceRequirements {
	rr := v1.ResourceRequirements{Requests: v1.ResourceList{}, Limits: v1.ResourceList{}}
	for name, amounts := range map[v1.ResourceName][]string{"cpu": {"1m", "3m", "100m", "333m", "1", "2500m"}, "memory": {"1", "4097", "64Mi", "1000M", "1Gi", "3Gi"}} {
		request, limit := r.IntN(len(amounts)), r.IntN(len(amounts))
		switch r.IntN(4) {
		case 1:
			rr.Requests[name] = resource.MustParse(amounts[request])
		case 2:
			rr.Requests[name], rr.Limits[name] = resource.MustParse(amounts[limit]), resource.MustParse(amounts[limit])
		case 3:
			rr.Requests[name], rr.Limits[name] = resource.MustParse(amounts[min(request, limit)]), resource.MustParse(amounts[limit])
		}
	}
	return rr
}
