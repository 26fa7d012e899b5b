package eviction

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/kubelettest"
	"github.com/sublet-dev/agent/runtime"
)

// kubeletRank is a line of the table of evictions.
type kubeletRank struct {
	Signal Signal
	Pods   []struct {
		Name     string
		Priority *int32
		Requests []uint64
		Usage    uint64
	}
	Order []string
}

// EV-5: pods are evicted in the order in which the kubelet evicts them.
func TestRank_AsKubelet(t *testing.T) {
	kubelettest.RunCases(t, "testdata/kubelet-ranks.jsonl", func(t *testing.T, c kubeletRank) {
		at := time.Now()
		u := &runtime.NodeUsage{}
		var pods []*corev1.Pod
		for _, p := range c.Pods {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.Name, UID: types.UID(p.Name)}, Spec: corev1.PodSpec{Priority: p.Priority}}
			for _, n := range p.Requests {
				q := *resource.NewQuantity(int64(n), resource.BinarySI)
				pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceMemory: q, corev1.ResourceEphemeralStorage: q},
				}})
			}
			pods = append(pods, pod)
			u.Pods = append(u.Pods, runtime.PodUsage{
				UID: pod.UID, Memory: runtime.MemoryUsage{At: at, WorkingSet: p.Usage}, Pids: runtime.PidUsage{At: at, Used: p.Usage},
				Containers: []runtime.ContainerUsage{{Logs: runtime.DiskUsage{At: at, Bytes: p.Usage, Inodes: p.Usage}}},
			})
		}
		var order []string
		for _, candidate := range Rank(c.Signal, pods, u, at) {
			order = append(order, candidate.Pod.Name)
		}
		require.Equal(t, c.Order, order)
	})
}

// kubeletThresholds is a line of the table of thresholds.
type kubeletThresholds struct {
	Hard, Soft, Grace, Reclaim map[string]string
	Transition                 int
	Steps                      []struct {
		At              int
		Available       map[Signal]uint64
		Conditions, Due []string
	}
}

// EV-1, EV-3: thresholds are met, resolved and acted on, and conditions true, when they are with the kubelet.
func TestThresholds_AsKubelet(t *testing.T) {
	list := func(values map[string]string, between string) string {
		var entries []string
		for signal, value := range values {
			entries = append(entries, signal+between+value)
		}
		return strings.Join(entries, ",")
	}
	kubelettest.RunCases(t, "testdata/kubelet-thresholds.jsonl", func(t *testing.T, c kubeletThresholds) {
		thresholds, err := ParseThresholds(list(c.Hard, "<"), list(c.Soft, "<"), list(c.Grace, "="), list(c.Reclaim, "="))
		require.NoError(t, err)
		s := newState(withAllocatableMemory(thresholds), time.Duration(c.Transition)*time.Second)
		start := time.Now()
		for _, step := range c.Steps {
			now := start.Add(time.Duration(step.At) * time.Second)
			observed := map[Signal]observation{}
			for signal, available := range step.Available {
				observed[signal] = observation{Signal: signal, Available: available, Capacity: 1000, At: now}
			}
			due, _ := s.update(observed, now)
			var kinds, conditions []string
			for _, d := range due {
				kind := " soft"
				if d.IsHard() {
					kind = " hard"
				}
				kinds = append(kinds, string(d.Signal)+kind)
			}
			for _, condition := range s.conditions(now) {
				conditions = append(conditions, string(condition))
			}
			slices.Sort(kinds)
			slices.Sort(conditions)
			require.Equal(t, step.Due, kinds, "at %d s", step.At)
			require.Equal(t, step.Conditions, conditions, "at %d s", step.At)
		}
	})
}
