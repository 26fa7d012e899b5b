package eviction_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
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
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// sim is a node in fake time with pods that use memory, disk and pids. The test
// holds the lock but for its pauses.
type sim struct {
	mu       sync.Mutex
	capacity uint64 // memory
	disk     uint64
	pids     uint64
	images   uint64 // disk that a reclaim frees
	layers   time.Duration

	pods    map[types.UID]*simPod
	takes   time.Duration // how long an evicted pod takes to be gone
	stale   bool          // figures of the node and its pods are old
	lost    bool          // they cannot be had
	looks   int
	reclaim int
	evicted []eviction2
	failing map[types.UID]error
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

// eviction2 is an eviction as it was asked for.
type eviction2 struct {
	pod    *corev1.Pod
	at     time.Time
	ending runtime.Ending
	usage  map[types.UID]uint64 // memory of all, then
}

func newSim() *sim {
	return &sim{capacity: 1000 << 20, disk: 1000 << 20, pids: 1000, pods: map[types.UID]*simPod{}, failing: map[types.UID]error{}}
}

func (s *sim) add(uid types.UID, request string, priority int32, memory uint64) *simPod {
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

func (s *sim) used() (memory, disk, pids uint64) {
	disk = s.images
	for _, p := range s.pods {
		memory += p.memory
		disk += p.logs + p.volume + p.layer
		pids += p.pids
	}
	return memory, disk, pids
}

func (s *sim) Usage(context.Context, time.Time) (runtime.NodeUsage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looks++
	if s.lost {
		return runtime.NodeUsage{}, fmt.Errorf("no figures")
	}
	at := time.Now()
	if s.stale {
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
		at := at
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
				Logs: runtime.DiskUsage{At: at, Bytes: p.logs, Inodes: 1}, Writable: layer,
			}},
			Volumes: map[string]runtime.VolumeUsage{"v": {DiskUsage: runtime.DiskUsage{At: at, Bytes: p.volume}}},
		})
	}
	return u, nil
}

func (s *sim) Active() []*corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*corev1.Pod
	for _, uid := range slices.Sorted(maps.Keys(s.pods)) {
		out = append(out, s.pods[uid].pod)
	}
	return out
}

func (s *sim) Evict(ctx context.Context, pod *corev1.Pod, e runtime.Ending) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	usage := map[types.UID]uint64{}
	for uid, p := range s.pods {
		usage[uid] = p.memory
	}
	if err := s.failing[pod.UID]; err != nil {
		return err
	}
	s.evicted = append(s.evicted, eviction2{pod, time.Now(), e, usage})
	wait := time.After(s.takes)
	s.mu.Unlock()
	select {
	case <-ctx.Done():
	case <-wait:
	}
	s.mu.Lock()
	if ctx.Err() == nil {
		delete(s.pods, pod.UID)
	}
	return ctx.Err()
}

func (s *sim) Reclaim(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reclaim++
	s.images = 0
	return nil
}

func (s *sim) victims() []string {
	var out []string
	for _, e := range s.evicted {
		out = append(out, string(e.pod.UID))
	}
	return out
}

// bubble runs a manager over the sim and then the test, in fake time.
func bubble(t *testing.T, s *sim, cfg eviction.Config, test func(t *testing.T, m *eviction.Manager)) {
	t.Helper()
	bubbleOver(t, s, s, cfg, test)
}

func bubbleOver(t *testing.T, s *sim, node eviction.Node, cfg eviction.Config, test func(t *testing.T, m *eviction.Manager)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cfg.Node, cfg.Pods = node, s
		m, err := eviction.New(cfg)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx) }()
		s.mu.Lock()
		test(t, m)
		s.mu.Unlock()
		cancel()
		require.NoError(t, <-done)
	})
}

// pause lets time pass and everybody come to rest.
func (s *sim) pause(d time.Duration) {
	s.mu.Unlock()
	time.Sleep(d)
	synctest.Wait()
	s.mu.Lock()
}

// EV-5, EV-8, EV-11, EV-12: random nodes over days. Each eviction is held
// against a reference that is written the dumb way.
func TestRandomNodes(t *testing.T) {
	nodes, span := 200, 6*time.Hour
	if testing.Short() {
		nodes = 10
	}
	if os.Getenv("EVICTION_DAYS") != "" { // minutes of work
		span = 72 * time.Hour
	}
	for seed := range uint64(nodes) {
		rng := rand.New(rand.NewPCG(seed, 1))
		s := newSim()
		s.takes = time.Duration(rng.IntN(20)) * time.Second
		var changes []corev1.ConditionStatus
		cfg := eviction.Config{
			Hard: "memory.available<100Mi", Soft: "memory.available<200Mi", SoftGrace: "memory.available=90s",
			Poll: 10 * time.Second,
			Hooks: eviction.Hooks{Conditions: func(c []corev1.NodeCondition) {
				s.mu.Lock()
				defer s.mu.Unlock()
				changes = append(changes, c[0].Status)
			}},
		}
		bubble(t, s, cfg, func(t *testing.T, m *eviction.Manager) {
			began := time.Now()
			next := 0
			for time.Since(began) < span {
				for len(s.pods) < 3+rng.IntN(8) {
					next++
					request := []string{"", "50Mi", "100Mi", "200Mi"}[rng.IntN(4)]
					p := s.add(types.UID(fmt.Sprintf("%d-%d", seed, next)), request, int32(rng.IntN(3)*100), uint64(rng.IntN(80))<<20)
					if rng.IntN(6) == 0 {
						p.pod.Annotations = map[string]string{podspec.AnnotationSource: "file"}
					}
					p.unknown = rng.IntN(10) == 0
				}
				for _, uid := range slices.Sorted(maps.Keys(s.pods)) {
					p := s.pods[uid]
					switch rng.IntN(20) {
					case 0: // burst
						p.memory += uint64(rng.IntN(300)) << 20
					case 1: // and back
						p.memory = uint64(rng.IntN(60)) << 20
					default: // leak
						p.memory += uint64(rng.IntN(3)) << 20
					}
				}
				s.stale, s.lost = rng.IntN(30) == 0, rng.IntN(40) == 0
				before := len(s.evicted)
				s.pause(time.Duration(rng.IntN(600)) * time.Second)
				for _, e := range s.evicted[before:] {
					checkChoice(t, s, e)
				}
			}
			// No flapping: the condition changes at most once a transition period.
			require.LessOrEqual(t, len(changes), 2+int(span/(5*time.Minute)))
			for i := 1; i < len(changes); i++ {
				require.NotEqual(t, changes[i-1], changes[i], "told without a change")
			}
		})
	}
}

// checkChoice is the reference: nobody who could have gone before was there.
func checkChoice(t *testing.T, s *sim, e eviction2) {
	t.Helper()
	require.NotEmpty(t, e.ending.Message)
	req := func(p *corev1.Pod) uint64 {
		q := p.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory]
		return uint64(q.Value())
	}
	mine := e.usage[e.pod.UID]
	for uid, other := range s.pods {
		theirs, there := e.usage[uid]
		if !there || other.unknown || uid == e.pod.UID || gone(s, uid) {
			continue
		}
		o := other.pod
		switch {
		case podspec.IsCritical(e.pod) != podspec.IsCritical(o):
			require.True(t, podspec.IsCritical(o), "critical %s went before %s", e.pod.UID, uid)
		case (mine > req(e.pod)) != (theirs > req(o)):
			require.Greater(t, mine, req(e.pod), "%s below its request went before %s", e.pod.UID, uid)
		case *e.pod.Spec.Priority != *o.Spec.Priority:
			require.Less(t, *e.pod.Spec.Priority, *o.Spec.Priority)
		default:
			require.GreaterOrEqual(t, int64(mine)-int64(req(e.pod)), int64(theirs)-int64(req(o)))
		}
	}
}

func gone(s *sim, uid types.UID) bool {
	return slices.ContainsFunc(s.evicted, func(e eviction2) bool { return e.pod.UID == uid })
}
