package eviction_test

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/stats"
)

// Ranking is pure: pods and a reading of the node in, the order in which they
// would go out.
func ExampleRank() {
	pod := func(name string, priority int32) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
			Spec:       corev1.PodSpec{Priority: &priority},
		}
	}
	calm, greedy := pod("calm", 0), pod("greedy", 100)
	now := time.Now()
	usage := &runtime.NodeUsage{Pods: []runtime.PodUsage{
		{UID: "calm", Memory: runtime.MemoryUsage{At: now, WorkingSet: 10 << 20}},
		{UID: "greedy", Memory: runtime.MemoryUsage{At: now, WorkingSet: 90 << 20}},
	}}
	for _, c := range eviction.Rank(eviction.MemoryAvailable, []*corev1.Pod{calm, greedy}, usage, time.Time{}) {
		fmt.Println(c.Pod.Name, c.Priority, c.ExceedsRequest())
	}
	// Output:
	// calm 0 true
	// greedy 100 true
}

// nodePods are the pods of a node and where they are: those of podworkers, podsync,
// volume and cgroup in an agent.
type nodePods struct{}

func (nodePods) ActivePods() []*corev1.Pod                                     { return nil }
func (nodePods) Evict(context.Context, *corev1.Pod, runtime.Termination) error { return nil }
func (nodePods) LocalVolumePaths(*corev1.Pod) map[string]string                { return nil }
func (nodePods) LogDir(pod *corev1.Pod) (string, error) {
	return "/var/log/pods/" + string(pod.UID), nil
}
func (nodePods) WrittenFiles(*corev1.Pod) []string { return nil }

// An assembly by hand: stats measures where the pods are, and the kernel reports that
// memory runs short. Run of both components is called by the owner.
func ExampleNew() {
	pods := stats.Locator{Pods: nodePods{}, Dirs: nodePods{}, Volumes: nodePods{}, IsTracked: eviction.HasLocalStorageLimit}
	usage, err := stats.New(stats.Config{Pods: pods.All, TrackedPods: pods.Tracked, NodeFS: "/var/lib/node"})
	if err != nil {
		fmt.Println(err)
		return
	}
	manager, err := eviction.New(eviction.Config{
		Usage: usage, Pods: nodePods{},
		Thresholds: append(eviction.DefaultThresholds(), eviction.Threshold{
			Signal: eviction.MemoryAvailable, Value: eviction.ThresholdValue{Percentage: 10}, GracePeriod: 2 * time.Minute,
			MinReclaim: eviction.ThresholdValue{Quantity: resource.MustParse("500Mi")},
		}),
		Notifiers: eviction.KernelNotifiers(eviction.KernelConfig{}),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(manager.UnderPressure())
	// Output: false
}

// Thresholds are written as a kubelet's flags.
func ExampleParseThresholds() {
	list, err := eviction.ParseThresholds("memory.available<100Mi", "nodefs.available<10%", "nodefs.available=2m", "")
	fmt.Println(list, err)
	_, err = eviction.ParseThresholds("memory.available>100Mi", "", "", "")
	fmt.Println(err)
	// Output:
	// [memory.available<100Mi nodefs.available<10%] <nil>
	// eviction-hard: "memory.available>100Mi": a threshold on memory.available must be written with <
}
