package eviction_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

const (
	unit             = 64 * mib        // so that nodes are of the size of real ones
	transitionPeriod = 5 * time.Minute // of conditions
	softGrace        = 90 * time.Second
	effectTimeout    = 30 * time.Second // for an evicted pod
)

// oracle watches a random node, and knows the rules in the plainest form.
type oracle struct {
	t       *testing.T
	s       *nodeSimulator
	reclaim uint64 // minimum reclaim of memory

	signal  eviction.Signal // of the eviction that comes next
	acted   time.Time       // start of the last eviction or reclaim
	evicted time.Time       // start of the last eviction
	going   map[types.UID]bool
	hard    bool                                   // memory was observed below the hard threshold, and not as resolved since
	soft    time.Time                              // the same, for the soft one, since
	short   map[corev1.NodeConditionType]time.Time // when it was last observed
	since   map[corev1.NodeConditionType]time.Time // when the condition became true
	counts  map[string]int                         // what happened, by name
}

// left returns the available amount that was observed for a signal.
func left(s eviction.Signal, u *runtime.NodeUsage) uint64 {
	switch s {
	case eviction.MemoryAvailable:
		return u.Memory.Available()
	case eviction.PIDAvailable:
		return u.Pids.Max - u.Pids.Used
	default:
		return u.NodeFS.AvailableBytes
	}
}

// The hard thresholds; memory has a soft one at twice that.
func hardOf(s eviction.Signal) uint64 {
	if s == eviction.PIDAvailable {
		return 10000
	}
	return 100 * unit
}

// measured processes a measurement that the manager received.
func (r *oracle) measured() {
	u, now := &r.s.observed, time.Now()
	free, more := left(eviction.MemoryAvailable, u), uint64(0)
	if free < 100*unit {
		r.hard = true
	} else if free >= 100*unit+r.reclaim {
		r.hard = false
	}
	if !r.soft.IsZero() && now.Sub(r.soft) >= softGrace {
		more = r.reclaim // it counted, and is not resolved before there is that much more
	}
	if free >= 200*unit+more {
		r.soft = time.Time{}
	} else if r.soft.IsZero() {
		r.soft = now
	}
	if left(eviction.MemoryAvailable, u) < 200*unit {
		r.short[corev1.NodeMemoryPressure] = now
	}
	for signal, kind := range map[eviction.Signal]corev1.NodeConditionType{
		eviction.MemoryAvailable: corev1.NodeMemoryPressure, eviction.NodeFSAvailable: corev1.NodeDiskPressure, eviction.PIDAvailable: corev1.NodePIDPressure,
	} {
		if left(signal, u) < hardOf(signal) {
			r.short[kind] = now
		}
	}
}

// conditions compares each change with the observations: pressure is reported when it is
// observed, and withdrawn after the transition period at the earliest.
func (r *oracle) conditions(all []corev1.NodeCondition) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	for _, c := range all {
		at, active := r.since[c.Type]
		switch {
		case c.Status == corev1.ConditionTrue && !active:
			assert.Equal(r.t, time.Now(), r.short[c.Type], "%s without cause", c.Type)
			r.since[c.Type] = time.Now()
			r.counts[string(c.Type)]++
		case c.Status == corev1.ConditionFalse && active:
			assert.GreaterOrEqual(r.t, time.Since(at), transitionPeriod, "%s flaps", c.Type)
			if r.reclaim == 0 {
				assert.GreaterOrEqual(r.t, time.Since(r.short[c.Type]), transitionPeriod, "%s was taken back too soon", c.Type)
			}
			delete(r.since, c.Type)
		}
	}
}

// eviction transitionPeriod an eviction against the rules.
func (r *oracle) eviction(e evictionRecord) {
	u := &r.s.observed
	assert.False(r.t, r.s.lost, "nothing was told")
	assert.NotEmpty(r.t, e.termination.Message)
	assert.False(r.t, r.going[e.pod.UID], "%s is on its way", e.pod.UID)
	if r.signal.IsLocalStorageLimit() {
		r.counts["limits"]++
		limit := e.pod.Spec.Volumes[0].EmptyDir.SizeLimit
		assert.Greater(r.t, r.usageOf(e.pod.UID).Volumes["v"].Bytes, uint64(limit.Value()))
		assert.False(r.t, r.usageOf(e.pod.UID).Volumes["v"].At.Before(r.evicted), "an old figure")
	} else {
		r.cause(e, u)
		r.choice(e)
	}
	r.evicted, r.acted, r.going[e.pod.UID] = e.at, e.at, true
}

// cause: there is a threshold that was crossed, by figures that are new.
func (r *oracle) cause(e evictionRecord, u *runtime.NodeUsage) {
	assert.False(r.t, u.Memory.At.Before(r.acted), "the node's figures are from before the last action")
	hard := left(r.signal, u) < hardOf(r.signal)
	soft := r.signal == eviction.MemoryAvailable && !r.soft.IsZero() && e.at.Sub(r.soft) >= softGrace
	more := r.signal == eviction.MemoryAvailable && r.hard
	assert.True(r.t, hard || soft || more, "%s: %d left, soft since %v", r.signal, left(r.signal, u), r.soft)
	switch {
	case hard:
		r.counts["hard "+string(r.signal)]++
	default:
		r.counts["soft"]++
	}
}

func (r *oracle) usageOf(uid types.UID) *runtime.PodUsage {
	for i := range r.s.observed.Pods {
		if r.s.observed.Pods[i].UID == uid {
			return &r.s.observed.Pods[i]
		}
	}
	return nil
}

// choice: no other pod should have been evicted first.
func (r *oracle) choice(e evictionRecord) {
	mine, ok := r.rankKey(e.pod)
	assert.True(r.t, ok, "%s went on old or missing figures", e.pod.UID)
	for _, uid := range slices.Sorted(maps.Keys(r.s.pods)) {
		other := r.s.pods[uid].pod
		if uid == e.pod.UID || r.going[uid] || r.s.failing[uid] != nil {
			continue
		}
		theirs, ok := r.rankKey(other)
		if !ok || theirs.used*100 < r.missing() {
			continue // its eviction would have no effect
		}
		switch {
		case mine.critical != theirs.critical:
			assert.False(r.t, mine.critical, "critical %s went before %s", e.pod.UID, uid)
		case (mine.used > mine.asked) != (theirs.used > theirs.asked):
			assert.Greater(r.t, mine.used, mine.asked, "%s within its request went before %s", e.pod.UID, uid)
		case mine.priority != theirs.priority:
			assert.Less(r.t, mine.priority, theirs.priority, "%s went before %s", e.pod.UID, uid)
		default:
			assert.GreaterOrEqual(r.t, mine.used-mine.asked, theirs.used-theirs.asked, "%s went before %s", e.pod.UID, uid)
		}
	}
	if mine.critical {
		r.counts["critical"]++
	}
}

// missing is the most that can be missing of what is short.
func (r *oracle) missing() int64 {
	want := hardOf(r.signal)
	if r.signal == eviction.MemoryAvailable {
		want = 200*unit + r.reclaim
	}
	return int64(want) - int64(left(r.signal, &r.s.observed))
}

type rankKey struct {
	used, asked int64
	priority    int32
	critical    bool
}

// rankKey is how a pod stands in what is short; not ok if nothing new is known.
func (r *oracle) rankKey(pod *corev1.Pod) (key rankKey, ok bool) {
	u := r.usageOf(pod.UID)
	if u == nil || u.Pids.At.Before(r.evicted) {
		return key, false
	}
	key.priority, key.critical = *pod.Spec.Priority, podspec.IsCritical(pod)
	asked := pod.Spec.Containers[0].Resources.Requests
	switch r.signal {
	case eviction.MemoryAvailable:
		key.used, key.asked = int64(u.Memory.WorkingSet), asked.Memory().Value()
	case eviction.PIDAvailable:
		key.used = int64(u.Pids.Used)
	default:
		c := u.Containers[0]
		if !c.Rootfs.At.IsZero() && c.Rootfs.At.Before(r.evicted) {
			c.Rootfs.Bytes = 0 // it was waited for long enough
			assert.GreaterOrEqual(r.t, time.Since(r.evicted), effectTimeout, "%s: the size of a layer is old", pod.UID)
		}
		key.used, key.asked = int64(c.Logs.Bytes+c.Rootfs.Bytes+u.Volumes["v"].Bytes), asked.StorageEphemeral().Value()
	}
	return key, true
}

// grow has each pod burst, fall back or leak, in whatever it uses.
func grow(s *nodeSimulator, rng *rand.Rand) {
	for _, uid := range slices.Sorted(maps.Keys(s.pods)) {
		p := s.pods[uid]
		for _, what := range []*uint64{&p.memory, &p.logs, &p.volume, &p.layer} {
			switch rng.IntN(25) {
			case 0:
				*what += uint64(rng.IntN(300)) * unit
			case 1:
				*what = uint64(rng.IntN(30)) * unit
			default:
				*what += uint64(rng.IntN(6)) * unit
			}
		}
		switch rng.IntN(10) {
		case 0:
			p.pids += uint64(rng.IntN(30000))
		case 1:
			p.pids = uint64(rng.IntN(2000))
		}
	}
	s.images += uint64(rng.IntN(10)) * unit
}

// newcomer is a random pod.
func newcomer(s *nodeSimulator, rng *rand.Rand, uid types.UID) {
	request := []string{"", "3200Mi", "6400Mi", "12800Mi"}[rng.IntN(4)]
	p := s.add(uid, request, int32(rng.IntN(3)*100), uint64(rng.IntN(60))*unit)
	p.pids = uint64(rng.IntN(5000))
	if request != "" && rng.IntN(2) == 0 {
		p.pod.Spec.Containers[0].Resources.Requests[corev1.ResourceEphemeralStorage] = resource.MustParse(request)
	}
	if rng.IntN(6) == 0 {
		p.pod.Annotations = map[string]string{podspec.AnnotationSource: "file"}
	}
	if rng.IntN(3) == 0 {
		limit := resource.MustParse("6400Mi")
		p.pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &limit}}}}
	}
	p.unknown = rng.IntN(10) == 0
	if rng.IntN(15) == 0 {
		s.failing[uid] = errors.New("it does not go")
	}
}

// EV-3, EV-5, EV-7, EV-8, EV-11, EV-12: random nodes over hours or days, whose pods
// grow, leak and burst, and whose figures are missing or old at times. Everything
// that is decided is active against a referee who knows the rules in the plainest
// form. EVICTION_DAYS=3 has 200 nodes run for so many days.
func TestRandomNodes(t *testing.T) {
	nodes, span := 30, time.Hour
	if testing.Short() {
		nodes = 10
	}
	if s := os.Getenv("EVICTION_DAYS"); s != "" {
		days, err := strconv.Atoi(s)
		require.NoError(t, err)
		nodes, span = 200, time.Duration(days)*24*time.Hour
	}
	counts := map[string]int{}
	for seed := range uint64(nodes) {
		randomNode(t, seed, span, counts)
		if t.Failed() {
			t.Fatalf("node %d", seed)
		}
	}
	t.Logf("in %v on each of %d nodes: %v", span, nodes, counts)
	for _, what := range []string{
		"hard memory.available", "hard nodefs.available", "hard pid.available", "soft", "limits", "critical",
		"MemoryPressure", "DiskPressure", "PIDPressure", "reclaims",
	} {
		if !testing.Short() {
			require.NotZero(t, counts[what], "%s never happened", what)
		}
	}
}

func randomNode(t *testing.T, seed uint64, span time.Duration, counts map[string]int) {
	rng := rand.New(rand.NewPCG(seed, 1))
	s := newSim()
	s.capacity, s.disk, s.pids = 1000*unit, 1000*unit, 100_000
	s.takes, s.layers = time.Duration(rng.IntN(40))*time.Second, []time.Duration{0, 10 * time.Second}[rng.IntN(2)]
	r := &oracle{
		t: t, s: s, going: map[types.UID]bool{}, counts: counts,
		short: map[corev1.NodeConditionType]time.Time{}, since: map[corev1.NodeConditionType]time.Time{},
	}
	cfg := eviction.Config{
		Reclaimers: []eviction.Reclaimer{s}, EvictCritical: true,
		Hooks: eviction.Hooks{
			ConditionsChanged: r.conditions,
			Evicting: func(signal eviction.Signal, _ []eviction.Candidate, _ runtime.Termination) {
				s.mu.Lock()
				defer s.mu.Unlock()
				r.signal = signal
			},
		},
	}
	reclaim := ""
	if seed%4 == 3 {
		r.reclaim, reclaim = 50*unit, "memory.available=3200Mi"
	}
	cfg.Thresholds = thresholds("memory.available<6400Mi,nodefs.available<6400Mi,pid.available<10000", "memory.available<12800Mi", "memory.available=90s", reclaim)
	s.onMeasured, s.onEvict = r.measured, r.eviction
	s.onReclaim = func() { r.acted = time.Now(); counts["reclaims"]++ }
	var node eviction.UsageProvider = s
	if seed%2 == 0 {
		node = &fakeUsageProvider{nodeSimulator: s}
	}
	bubbleOver(t, s, node, cfg, func(t *testing.T, m *eviction.Manager) {
		r.t = t
		began, next := time.Now(), 0
		for time.Since(began) < span && !t.Failed() {
			s.leave()
			s.evicted = s.evicted[max(0, len(s.evicted)-20):]
			for _, uid := range slices.Sorted(maps.Keys(s.pods)) { // some are taken away, whatever is with them
				if rng.IntN(40) == 0 && !r.going[uid] {
					delete(s.pods, uid)
					delete(s.failing, uid)
				}
			}
			for len(s.pods) < 3+rng.IntN(8) {
				next++
				newcomer(s, rng, types.UID(fmt.Sprintf("%d-%d", seed, next)))
			}
			grow(s, rng)
			s.stale, s.lag, s.lost = rng.IntN(30) == 0, rng.IntN(30) == 0, rng.IntN(40) == 0
			for _, p := range s.pods {
				p.measured = time.Time{}
				if rng.IntN(20) == 0 {
					p.measured = time.Now().Add(-time.Duration(rng.IntN(600)) * time.Second)
				}
			}
			if rng.IntN(4) == 0 {
				m.RequestMeasurement()
			}
			s.pause(time.Duration(rng.IntN(600)) * time.Second)
			if rng.IntN(4) == 0 {
				r.settled(m)
			}
		}
	})
}

// settled: after a long time with complete measurements no threshold is met, or no pod
// is left that could be evicted.
func (r *oracle) settled(m *eviction.Manager) {
	if r.s.stale || r.s.lag || r.s.lost {
		return
	}
	for end := time.Now().Add(time.Duration(len(r.s.pods)) * (2*effectTimeout + 20*time.Second)); time.Now().Before(end); r.s.pause(10 * time.Second) {
		r.s.leave()
	}
	u := r.s.observed
	for _, signal := range []eviction.Signal{eviction.MemoryAvailable, eviction.NodeFSAvailable, eviction.PIDAvailable} {
		if left(signal, &u) >= hardOf(signal) {
			continue
		}
		r.signal = signal
		missing, sum, most, who := int64(hardOf(signal)-left(signal, &u)), int64(0), int64(0), types.UID("")
		for uid, p := range r.s.pods {
			if key, known := r.rankKey(p.pod); known && !r.going[uid] && r.s.failing[uid] == nil {
				sum += key.used
				if key.used >= most {
					most, who = key.used, uid
				}
			}
		}
		helps := sum >= missing && most*100 >= missing && most > 0
		assert.False(r.t, helps, "%s is short of %d, and %s of %d in all is let be", signal, missing, who, sum)
		if !helps {
			r.counts["in vain"]++
		}
	}
	for _, c := range m.Conditions() {
		assert.Equal(r.t, c.Status == corev1.ConditionTrue, !r.since[c.Type].IsZero(), c.Type)
	}
}
