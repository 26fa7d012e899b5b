package translate

import (
	"cmp"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/internal/kubelettest"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// kubeletResource is a line of the table of resources.
type kubeletResource struct {
	MemoryQoS  bool
	Spec       corev1.PodSpec
	Class      corev1.PodQOSClass
	Containers map[string]string
}

// SP-3, RT-11: pods have the class, and containers the resources that they have with the kubelet.
func TestResources_AsKubelet(t *testing.T) {
	kubelettest.RunCases(t, "../../../../podspec/testdata/kubelet-resources.jsonl", func(t *testing.T, c kubeletResource) {
		pod := &corev1.Pod{Spec: c.Spec}
		require.Equal(t, c.Class, podspec.QOS(pod))
		tr := Translator{
			Node:    Node{MemoryCapacity: 16 << 30, CgroupV2: true, CPUQuotaPeriod: 100 * time.Millisecond},
			Pod:     pod,
			Options: runtime.RunOptions{Allocatable: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("15Gi")}},
		}
		if c.MemoryQoS {
			tr.Node.MemoryQoS = podspec.MemoryQoS{ThrottlingFactor: 0.9, ReserveRequests: true}
		}
		got := map[string]string{}
		for spec := range podspec.Containers(pod) {
			r := tr.Resources(spec)
			got[spec.Name] = fmt.Sprintf("shares %d quota %d memory %d oom %d min %s low %s high %s", r.CpuShares, r.CpuQuota, r.MemoryLimitInBytes, r.OomScoreAdj,
				cmp.Or(r.Unified["memory.min"], "0"), cmp.Or(r.Unified["memory.low"], "0"), cmp.Or(r.Unified["memory.high"], "max"))
		}
		require.Equal(t, c.Containers, got)
	})
}
