package eviction_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/runtime"
)

// fakeUsageProvider is a sim that can be looked at without its pods.
type fakeUsageProvider struct {
	*nodeSimulator
	glances atomic.Int32
}

func (g *fakeUsageProvider) NodeUsage(ctx context.Context) (runtime.NodeUsage, error) {
	g.glances.Add(1)
	u, err := g.Usage(ctx, time.Time{})
	g.mu.Lock()
	defer g.mu.Unlock()
	g.measurements--
	u.Pods = nil
	return u, err
}

// EV-10: while nothing is short the pods are not measured at all, and what is far
// away is looked at at the poll's pace.
func TestManager_MeasuresNodeOnlyWhileNothingIsNear(t *testing.T) {
	g := &fakeUsageProvider{nodeSimulator: newSim()}
	g.capacity = 1 << 40
	g.add("a", "10Mi", 0, 900*mib)
	bubbleOver(t, g.nodeSimulator, g, eviction.Config{Thresholds: hardThresholds("memory.available<100Mi")}, func(t *testing.T, _ *eviction.Manager) {
		g.pause(time.Hour)
		assert.Zero(t, g.measurements, "pods are not measured")
		assert.InDelta(t, 360, int(g.glances.Load()), 2)
	})
}

// EV-10: what can be crossed soon is looked at soon: a threshold is acted on
// within a tenth of a second of its crossing, however fast the way there was.
func TestManager_PollsMoreOftenNearThreshold(t *testing.T) {
	for _, each := range []uint64{1, 7, 40} { // MiB in 10 ms
		g := &fakeUsageProvider{nodeSimulator: newSim()}
		g.capacity = 200 << 30
		p := g.add("a", "10Mi", 0, 0)
		bubbleOver(t, g.nodeSimulator, g, eviction.Config{Thresholds: hardThresholds("memory.available<198Gi")}, func(t *testing.T, _ *eviction.Manager) {
			g.pause(time.Minute)
			var crossed time.Time
			for len(g.evicted) == 0 {
				p.memory += each * mib / 10
				if crossed.IsZero() && p.memory > 2<<30 {
					crossed = time.Now()
				}
				g.pause(time.Millisecond)
			}
			assert.LessOrEqual(t, g.evicted[0].at.Sub(crossed), 101*time.Millisecond, "%d MiB in 10 ms", each)
			assert.LessOrEqual(t, g.measurements, 3, "pods are measured once a threshold is crossed")
		})
	}
}

// A pod that returns under the UID of an evicted one, as a static pod does, is evicted as
// any other, although its pods were not measured in between.
func TestManager_EvictsReturnedPod(t *testing.T) {
	g := &fakeUsageProvider{nodeSimulator: newSim()}
	g.add("a", "10Mi", 0, 950*mib)
	bubbleOver(t, g.nodeSimulator, g, eviction.Config{Thresholds: hardThresholds("memory.available<100Mi")}, func(t *testing.T, _ *eviction.Manager) {
		g.takes = time.Minute // longer than the manager waits
		g.pause(time.Minute)
		delete(g.pods, "a")
		g.pause(10 * time.Minute)
		measurements := g.measurements
		p := g.add("a", "10Mi", 0, 10*mib)
		g.pause(10 * time.Minute)
		assert.Equal(t, measurements, g.measurements, "pods are not measured")
		p.memory = 950 * mib
		g.pause(time.Minute)
		assert.Equal(t, []string{"a", "a"}, g.victims())
	})
}

// slowRuntime is a node whose runtime takes five seconds for its part of a measurement, or all
// of it if the pods have no cgroups.
type slowRuntime struct {
	*fakeUsageProvider
	noCgroups bool
}

func (s slowRuntime) Usage(ctx context.Context, since time.Time) (runtime.NodeUsage, error) {
	select {
	case <-time.After(5 * time.Second):
	case <-ctx.Done():
	}
	u, err := s.fakeUsageProvider.Usage(context.WithoutCancel(ctx), since)
	if s.noCgroups && ctx.Err() != nil {
		u.Pods = nil
	}
	return u, err
}

// EV-10: a runtime that is slow does not delay an eviction for memory, unless it alone knows the usage of the pods.
func TestManager_SlowRuntime(t *testing.T) {
	for noCgroups, bound := range map[bool]time.Duration{false: 100 * time.Millisecond, true: 5100 * time.Millisecond} {
		s := slowRuntime{&fakeUsageProvider{nodeSimulator: newSim()}, noCgroups}
		s.capacity = 200 << 30
		p := s.add("a", "10Mi", 0, 0)
		bubbleOver(t, s.nodeSimulator, s, eviction.Config{Thresholds: hardThresholds("memory.available<198Gi")}, func(t *testing.T, _ *eviction.Manager) {
			s.pause(time.Minute)
			for p.memory < 2<<30 {
				p.memory += mib
				s.pause(time.Millisecond)
			}
			crossed := time.Now()
			p.memory += mib
			s.pause(10 * time.Second)
			if assert.Len(t, s.evicted, 1) {
				took := s.evicted[0].at.Sub(crossed)
				assert.LessOrEqual(t, took, bound+101*time.Millisecond)
				assert.GreaterOrEqual(t, took, bound, "it was waited for")
			}
		})
	}
}

// fakeNotifier is a notice by which the kernel tells of memory, for the whole time.
type fakeNotifier struct{ eviction.Signal }

func (fakeNotifier) Watch(ctx context.Context, _ func()) error { <-ctx.Done(); return nil }

func (n fakeNotifier) UpdateThresholds(*runtime.NodeUsage, []eviction.Threshold) eviction.Signal {
	return n.Signal
}

// EV-10: what the kernel tells of is not looked out for, however near it is.
func TestManager_DoesNotPollWhatTheKernelReports(t *testing.T) {
	for signal, most := range map[eviction.Signal]int32{eviction.MemoryAvailable: 362, eviction.AllocatableMemoryAvailable: 40000} {
		g := &fakeUsageProvider{nodeSimulator: newSim()}
		g.add("a", "10Mi", 0, 899*mib)
		cfg := eviction.Config{Thresholds: hardThresholds("memory.available<100Mi"), Notifiers: []eviction.ThresholdNotifier{fakeNotifier{signal}}}
		bubbleOver(t, g.nodeSimulator, g, cfg, func(t *testing.T, _ *eviction.Manager) {
			g.pause(time.Hour)
			assert.LessOrEqual(t, g.glances.Load(), most)
			assert.GreaterOrEqual(t, g.glances.Load(), most*8/10)
			assert.Zero(t, g.measurements)
		})
	}
}

// EV-7: pods with limits of their own are measured at the poll's pace, and only
// while there are such.
func TestManager_ChecksLocalStorageLimits(t *testing.T) {
	limit := resource.MustParse("100Mi")
	g := &fakeUsageProvider{nodeSimulator: newSim()}
	p := g.add("a", "10Mi", 0, 0)
	p.pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &limit}}}}
	bubbleOver(t, g.nodeSimulator, g, eviction.Config{Thresholds: hardThresholds("none")}, func(t *testing.T, _ *eviction.Manager) {
		g.pause(time.Minute)
		assert.InDelta(t, 7, g.measurements, 1)
		p.volume = 200 * mib
		g.pause(11 * time.Second)
		assert.Equal(t, []string{"a"}, g.victims())
		before := g.measurements
		g.pause(time.Minute)
		assert.Equal(t, before, g.measurements, "no pod has a limit")
	})
}

// EV-11: a reclaim does not change running pods, so measurements of pods from before it
// count: the pod that filled its writable layer is evicted, not one of which only the
// logs were measured again. After an eviction, no pod is evicted before all layers were
// measured again, unless the runtime never does.
func TestManager_WaitsForWritableLayers(t *testing.T) {
	for name, every := range map[string]time.Duration{"late": 7 * time.Second, "never again": 1000 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			s := newSim()
			s.layers, s.images = every, 10*mib
			cfg := eviction.Config{Thresholds: hardThresholds("nodefs.available<600Mi"), Reclaimers: []eviction.Reclaimer{s}}
			bubble(t, s, cfg, func(t *testing.T, _ *eviction.Manager) {
				s.pause(15 * time.Second)
				s.add("chatty", "", 0, 0).logs = 100 * mib
				s.add("hog", "", 0, 0).layer = 500 * mib
				s.add("second", "", 0, 0).layer = 350 * mib
				s.pause(5500 * time.Millisecond) // the poll is at 20 s, the layers' at 21
				assert.Equal(t, 2, s.reclaim, "before it, and after it")
				assert.Equal(t, []string{"hog"}, s.victims())
				s.pause(10 * time.Second)
				assert.Equal(t, 2, s.reclaim, "waiting reclaims nothing")
				if name == "late" {
					assert.Equal(t, []string{"hog", "second"}, s.victims())
					return
				}
				assert.Equal(t, []string{"hog"}, s.victims(), "it is waited for")
				s.pause(20 * time.Second)
				assert.Equal(t, []string{"hog", "chatty"}, s.victims(), "but not for ever")
			})
		})
	}
}
