package eviction_test

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/runtime"
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
