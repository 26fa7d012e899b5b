package cgroup_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/cgroup"
)

// On a node without cgroups the runtime chooses the cgroup, and Unenforced reports what is
// missing.
func Example() {
	groups, err := cgroup.New(cgroup.Config{Root: "/nowhere", Parent: "/lab"})
	if err != nil {
		fmt.Println(err)
		return
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "1f2e"}}
	parent, err := groups.Ensure(context.Background(), pod)
	fmt.Printf("%q %v\n", parent, err)
	fmt.Println(groups.PodCgroup(pod))
	fmt.Println(groups.Unenforced()[0])
	// Output:
	// "" <nil>
	// /lab/kubepods/besteffort/pod1f2e
	// no limits and no QoS weights for pods: no cgroups: stat /nowhere: no such file or directory
}
