package eviction

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/kubernetes/cases"
)

// rankCase is what pods use of what is short, and the order in which they are evicted.
type rankCase struct {
	Signal string    `json:"signal"`
	Pods   []rankPod `json:"pods"`
	Order  []string  `json:"order"`
}

type rankPod struct {
	Name     string   `json:"name"`
	Priority *int32   `json:"priority,omitempty"`
	Requests []uint64 `json:"requests,omitempty"` // of each container: bytes of memory or disk
	Usage    uint64   `json:"usage"`              // bytes of memory, in layers or in logs, or processes
}

func TestRankCases(t *testing.T) {
	ranks := map[string]rankFunc{
		"memory.available": rankMemoryPressure, "pid.available": rankPIDPressure,
		"nodefs.available":  rankDiskPressureFunc([]fsStatsType{fsStatsLogs, fsStatsLocalVolumeSource, fsStatsRoot}, v1.ResourceEphemeralStorage),
		"nodefs.inodesFree": rankDiskPressureFunc([]fsStatsType{fsStatsLogs, fsStatsLocalVolumeSource, fsStatsRoot}, resourceInodes),
	}
	cases.Write(t, "eviction/testdata/kubelet-ranks.jsonl", `
		Pods with what they request and use of what is short on a node with one disk, and the order in which they are
		evicted. usage is the working set of the pod, the bytes or inodes of logs, or the number of processes.`,
		5000, func(r *rand.Rand, size float64) (rankCase, []string) {
			c := rankCase{Signal: cases.One(r, "memory.available", "pid.available", "nodefs.available", "nodefs.inodesFree")}
			usages := r.Perm(12)
			var pods []*v1.Pod
			stats := map[string]statsapi.PodStats{}
			for i := range 2 + int(3*size) {
				p := rankPod{Name: string(rune('a' + i)), Usage: uint64(usages[i])*1000 + 1 + uint64(r.IntN(3))}
				if cases.Chance(r, 0.7) {
					p.Priority = cases.One(r, new(int32(0)), new(int32(0)), new(int32(7)), new(int32(-7)))
				}
				if cases.Chance(r, 0.7) && c.Signal != "nodefs.inodesFree" {
					p.Requests = cases.One(r, []uint64{p.Usage}, []uint64{3000}, []uint64{3000, 2000}, []uint64{100000})
				}
				c.Pods = append(c.Pods, p)
				pod := &v1.Pod{Spec: v1.PodSpec{Priority: p.Priority}}
				pod.Name = p.Name
				for _, n := range p.Requests {
					q := *resource.NewQuantity(int64(n), resource.BinarySI)
					pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceMemory: q, v1.ResourceEphemeralStorage: q}}})
				}
				pods = append(pods, pod)
				logs := &statsapi.FsStats{UsedBytes: &p.Usage, InodesUsed: &p.Usage}
				stats[p.Name] = statsapi.PodStats{
					Memory:       &statsapi.MemoryStats{WorkingSetBytes: &p.Usage},
					ProcessStats: &statsapi.ProcessStats{ProcessCount: &p.Usage}, Containers: []statsapi.ContainerStats{{Logs: logs}},
				}
			}
			ranks[c.Signal](pods, func(pod *v1.Pod) (statsapi.PodStats, bool) { s, ok := stats[pod.Name]; return s, ok })
			var traits []string
			for i, pod := range pods {
				c.Order = append(c.Order, pod.Name)
				if i > 0 {
					traits = append(traits, c.Signal+relation(c.pod(pods[i-1].Name), c.pod(pod.Name)))
				}
			}
			return c, traits
		})
}

func (c *rankCase) pod(name string) rankPod {
	return c.Pods[slices.IndexFunc(c.Pods, func(p rankPod) bool { return p.Name == name })]
}

// relation says how a pod differs from the one that is evicted next.
func relation(a, b rankPod) string {
	pa, pb := int32(0), int32(0)
	if a.Priority != nil {
		pa = *a.Priority
	}
	if b.Priority != nil {
		pb = *b.Priority
	}
	return fmt.Sprint(a.excess() > 0, b.excess() > 0, cmp.Compare(pa, pb), a.Usage > b.Usage, a.excess() > b.excess(), a.excess() == 0 || b.excess() == 0)
}

func (p rankPod) excess() int64 {
	excess := int64(p.Usage)
	for _, n := range p.Requests {
		excess -= int64(n)
	}
	return excess
}
