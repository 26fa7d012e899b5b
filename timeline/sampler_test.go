package timeline

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/runtime"
)

// meter uses one and a half CPUs, and fails the third time.
type meter struct{ calls int }

func (m *meter) NodeUsage(context.Context) (runtime.NodeUsage, error) {
	m.calls++
	if m.calls == 3 {
		return runtime.NodeUsage{}, errors.New("no meminfo")
	}
	now := time.Now()
	return runtime.NodeUsage{
		CPU:    runtime.CPUUsage{At: now, UsageCoreNanoSeconds: uint64(now.UnixNano()/2*3) % (1 << 62)},
		Memory: runtime.MemoryUsage{At: now, WorkingSet: 5, Capacity: 9}, Pids: runtime.PidUsage{Used: 3, Max: 4},
		NodeFS: runtime.FSUsage{UsedBytes: 1, CapacityBytes: 2}, ImageFS: runtime.FSUsage{UsedBytes: 3, CapacityBytes: 4},
		MemoryPressure: runtime.PSIStats{Some: runtime.PSIData{Avg60: 1.5}}, IOPressure: runtime.PSIStats{Some: runtime.PSIData{Avg60: 2.5}},
		CPUPressure: runtime.PSIStats{Some: runtime.PSIData{Avg60: 3.5}},
	}, nil
}

func TestSampler_Run(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, m := New(Config{}), &meter{}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		s := Sampler{History: h, Usage: m, Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}}
		go func() { done <- s.Run(ctx) }()
		start := time.Now()
		time.Sleep(2*time.Hour + time.Second)
		samples := h.Node().Samples
		assert.Len(t, samples, 360, "of the last hour")
		assert.Equal(t, Sample{
			At: start.Add(2 * time.Hour), MilliCPU: 1500, MilliCPUs: 4000, Memory: 5, MemoryCapacity: 9, NodeFS: 1, NodeFSCapacity: 2,
			ImageFS: 3, ImageFSSize: 4, Pids: 3, PidsMax: 4, MemoryPressure: 1.5, IOPressure: 2.5, CPUPressure: 3.5,
		}, samples[359])
		cancel()
		require.NoError(t, <-done)
		assert.Equal(t, 721, m.calls)
	})
}

// Conditions are there before they change, and a change of some keeps the others.
func TestSampler_Conditions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := New(Config{})
		ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue}
		pressure := corev1.NodeCondition{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		s := Sampler{History: h, Usage: &meter{calls: 2}, Conditions: func() []corev1.NodeCondition { return []corev1.NodeCondition{ready, pressure} }}
		go func() { done <- s.Run(ctx) }()
		synctest.Wait()
		require.Len(t, h.Node().Conditions, 2)
		version := h.version
		s.History.conditionsChanged(s.Conditions())
		assert.Equal(t, version, h.version, "nothing has changed")
		pressure.Status = corev1.ConditionTrue
		h.Eviction().ConditionsChanged([]corev1.NodeCondition{pressure})
		conditions := h.Node().Conditions
		assert.Equal(t, []string{"Ready True", "MemoryPressure True"}, []string{conditions[0].Type + " " + conditions[0].Status, conditions[1].Type + " " + conditions[1].Status})
		cancel()
		require.NoError(t, <-done)
	})
}

// The rate of the first measurement, and of one after a counter was reset, is unknown.
func TestSampler_UnknownRate(t *testing.T) {
	now := time.Now()
	u := runtime.NodeUsage{CPU: runtime.CPUUsage{At: now, UsageCoreNanoSeconds: 10}}
	for _, previous := range []runtime.CPUUsage{{}, {At: now}, {At: now.Add(-time.Second), UsageCoreNanoSeconds: 11}} {
		assert.Zero(t, Sampler{Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}}.sample(&u, previous).MilliCPUs, previous)
	}
}
