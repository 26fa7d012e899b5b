package eviction_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/runtime"
)

// nodeSimulator is a node in fake time with pods that use memory, disk and pids. The test
// holds the lock but for its pauses.
type nodeSimulator struct {
	mu       sync.Mutex
	capacity uint64 // memory
	disk     uint64
	pids     uint64
	images   uint64 // disk that a reclaim frees
	hidden   uint64 // memory that belongs to no pod
	layers   time.Duration

	pods         map[types.UID]*simPod
	takes        time.Duration // how long an evicted pod takes to be gone
	stale        bool          // figures of the node and its pods are old
	lag          bool          // those of the node alone are
	lost         bool          // they cannot be had
	measurements int
	reclaim      int
	evicted      []evictionRecord
	failing      map[types.UID]error
	late         map[types.UID]error // fail after what they take
	observed     runtime.NodeUsage   // what was measured last
	// Called with the lock held, if not nil: after each measurement and reclaim,
	// and before each eviction that does not fail.
	onMeasured, onReclaim func()
	onEvict               func(evictionRecord)
}

type simPod struct {
	pod      *corev1.Pod
	memory   uint64
	logs     uint64
	volume   uint64
	layer    uint64 // its writable layer, which is measured each sim.layers
	pids     uint64
	unknown  bool
	measured time.Time // zero: now
}

// evictionRecord is an eviction as it was asked for.
type evictionRecord struct {
	pod         *corev1.Pod
	at          time.Time
	termination runtime.Termination
}

func newSim() *nodeSimulator {
	return &nodeSimulator{capacity: 1000 << 20, disk: 1000 << 20, pids: 1000, pods: map[types.UID]*simPod{}, failing: map[types.UID]error{}}
}

func (s *nodeSimulator) add(uid types.UID, request string, priority int32, memory uint64) *simPod {
	p := &simPod{memory: memory, pod: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: uid, Name: string(uid), Namespace: "ns"},
		Spec:       corev1.PodSpec{Priority: &priority, Containers: []corev1.Container{{Name: "main"}}},
	}}
	if request != "" {
		p.pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(request)}
	}
	s.pods[uid] = p
	return p
}

func (s *nodeSimulator) used() (memory, disk, pids uint64) {
	memory, disk = s.hidden, s.images
	for _, p := range s.pods {
		memory += p.memory
		disk += p.logs + p.volume + p.layer
		pids += p.pids
	}
	return memory, disk, pids
}

func (s *nodeSimulator) Usage(context.Context, time.Time) (runtime.NodeUsage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.measurements++
	if s.lost {
		return runtime.NodeUsage{}, fmt.Errorf("no figures")
	}
	at, ofPods := time.Now(), time.Now()
	if s.stale {
		ofPods = at.Add(-time.Hour)
	}
	if s.stale || s.lag {
		at = at.Add(-time.Hour)
	}
	memory, disk, pids := s.used()
	fs := runtime.FSUsage{At: at, Mountpoint: "/", CapacityBytes: s.disk, UsedBytes: disk, AvailableBytes: s.disk - min(disk, s.disk), Inodes: 1000, InodesUsed: 10}
	u := runtime.NodeUsage{
		Memory: runtime.MemoryUsage{At: at, Capacity: s.capacity, Usage: memory, WorkingSet: memory},
		Pids:   runtime.PidUsage{At: at, Max: s.pids, Used: min(pids, s.pids)},
		NodeFS: fs, ImageFS: fs, ContainerFS: fs,
	}
	for _, uid := range slices.Sorted(maps.Keys(s.pods)) {
		p := s.pods[uid]
		if p.unknown {
			continue
		}
		at := ofPods
		if !p.measured.IsZero() {
			at = p.measured
		}
		var layer runtime.DiskUsage
		if p.layer > 0 {
			layer = runtime.DiskUsage{At: at.Truncate(max(s.layers, 1)), Bytes: p.layer}
		}
		u.Pods = append(u.Pods, runtime.PodUsage{
			UID: uid, Namespace: "ns", Name: string(uid),
			Memory: runtime.MemoryUsage{At: at, WorkingSet: p.memory}, Pids: runtime.PidUsage{At: at, Used: p.pids},
			Containers: []runtime.ContainerUsage{{
				Name: "main", Running: true, Memory: runtime.MemoryUsage{At: at, WorkingSet: p.memory},
				Logs: runtime.DiskUsage{At: at, Bytes: p.logs, Inodes: 1}, Rootfs: layer,
			}},
			Volumes: map[string]runtime.VolumeUsage{"v": {DiskUsage: runtime.DiskUsage{At: at, Bytes: p.volume}}},
		})
	}
	s.observed = u
	if s.onMeasured != nil {
		s.onMeasured()
	}
	return u, nil
}

func (s *nodeSimulator) ActivePods() []*corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*corev1.Pod
	for _, uid := range slices.Sorted(maps.Keys(s.pods)) {
		out = append(out, s.pods[uid].pod)
	}
	return out
}

func (s *nodeSimulator) Evict(ctx context.Context, pod *corev1.Pod, e runtime.Termination) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.failing[pod.UID]; err != nil {
		return err
	}
	s.evicted = append(s.evicted, evictionRecord{pod, time.Now(), e})
	if s.onEvict != nil {
		s.onEvict(s.evicted[len(s.evicted)-1])
	}
	wait := time.After(s.takes)
	s.mu.Unlock()
	select {
	case <-ctx.Done():
	case <-wait:
	}
	s.mu.Lock()
	if err := s.late[pod.UID]; err != nil {
		return err
	}
	if ctx.Err() == nil {
		delete(s.pods, pod.UID)
	}
	return ctx.Err()
}

// leave has those go that were evicted long enough ago, whether or not that was waited for.
func (s *nodeSimulator) leave() {
	for _, e := range s.evicted {
		if time.Since(e.at) >= s.takes {
			delete(s.pods, e.pod.UID)
		}
	}
}

func (s *nodeSimulator) Reclaim(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reclaim++
	s.images = 0
	if s.onReclaim != nil {
		s.onReclaim()
	}
	return nil
}

func (s *nodeSimulator) victims() []string {
	var out []string
	for _, e := range s.evicted {
		out = append(out, string(e.pod.UID))
	}
	return out
}

// thresholds parses the flags of a kubelet.
func thresholds(hard, soft, softGrace, minReclaim string) []eviction.Threshold {
	list, err := eviction.ParseThresholds(hard, soft, softGrace, minReclaim)
	if err != nil {
		panic(err)
	}
	return list
}

func hardThresholds(list string) []eviction.Threshold { return thresholds(list, "", "", "") }

// bubble runs a manager over the sim and then the test, in fake time.
func bubble(t *testing.T, s *nodeSimulator, cfg eviction.Config, test func(t *testing.T, m *eviction.Manager)) {
	t.Helper()
	bubbleOver(t, s, s, cfg, test)
}

func bubbleOver(t *testing.T, s *nodeSimulator, node eviction.UsageProvider, cfg eviction.Config, test func(t *testing.T, m *eviction.Manager)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cfg.Usage, cfg.Pods = node, s
		m, err := eviction.New(cfg)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		s.mu.Lock() // the first measurement comes after what the test adds first
		go func() { done <- m.Run(ctx) }()
		test(t, m)
		s.mu.Unlock()
		cancel()
		require.NoError(t, <-done)
	})
}

// pause lets time pass and everybody come to rest.
func (s *nodeSimulator) pause(d time.Duration) {
	s.mu.Unlock()
	time.Sleep(d)
	synctest.Wait()
	s.mu.Lock()
}
