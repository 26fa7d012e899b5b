package cgroup

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/kubelettest"
)

// kubeletResource is a line of the table of resources.
type kubeletResource struct {
	Spec corev1.PodSpec
	Pod  string
}

// CR-1: the cgroups of pods have the values that they have with the kubelet.
func TestPodLimits_AsKubelet(t *testing.T) {
	kubelettest.RunCases(t, "../podspec/testdata/kubelet-resources.jsonl", func(t *testing.T, c kubeletResource) {
		cfg := Config{CPUQuotaPeriod: 100 * time.Millisecond}
		l := cfg.podLimits(&corev1.Pod{Spec: c.Spec}, nil)
		require.Equal(t, c.Pod, fmt.Sprintf("shares %d quota %d memory %d", l.shares, l.quota, l.memory))
	})
}
