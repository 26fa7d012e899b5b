package eviction_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/podspec"
)

const mib = 1 << 20

// EV-3: a soft threshold acts when it was crossed for its grace period without
// a break, and at that very time.
func TestSoftThreshold(t *testing.T) {
	s := newSim()
	cfg := eviction.Config{Thresholds: thresholds("", "memory.available<200Mi", "memory.available=95s", ""), MaxPodGracePeriod: 20 * time.Second}
	bubble(t, s, cfg, func(t *testing.T, _ *eviction.Manager) {
		p := s.add("a", "10Mi", 0, 900*mib)
		s.pause(60 * time.Second)
		p.memory = 10 * mib
		s.pause(30 * time.Second)
		p.memory = 900 * mib
		crossed := time.Now()
		s.pause(94 * time.Second)
		assert.Empty(t, s.evicted, "the break starts the grace period anew")
		s.pause(20 * time.Second)
		if assert.Equal(t, []string{"a"}, s.victims()) {
			took := s.evicted[0].at.Sub(crossed)
			assert.GreaterOrEqual(t, took, 95*time.Second)
			assert.Less(t, took, 106*time.Second, "the grace begins with the look that sees the crossing")
			assert.Equal(t, 20*time.Second, s.evicted[0].termination.GracePeriod)
		}
	})
}

// EV-6: hard ones leave a second at most, soft ones by the maximum.
func TestGrace(t *testing.T) {
	for _, tc := range []struct {
		soft bool
		most time.Duration
		own  int64
		want time.Duration
	}{
		{false, time.Minute, 30, time.Second},
		{false, 0, 0, 0},
		{true, 0, 30, time.Second},
		{true, time.Minute, 30, 30 * time.Second},
		{true, 10 * time.Second, 30, 10 * time.Second},
		{true, -1, 300, 300 * time.Second},
	} {
		s := newSim()
		cfg := eviction.Config{Thresholds: hardThresholds("memory.available<200Mi"), MaxPodGracePeriod: tc.most}
		if tc.soft {
			cfg.Thresholds = thresholds("", "memory.available<200Mi", "memory.available=1s", "")
		}
		s.add("a", "", 0, 900*mib).pod.Spec.TerminationGracePeriodSeconds = &tc.own
		bubble(t, s, cfg, func(t *testing.T, _ *eviction.Manager) {
			s.pause(time.Minute)
			if assert.Len(t, s.evicted, 1) {
				assert.Equal(t, tc.want, s.evicted[0].termination.GracePeriod)
			}
		})
	}
}

// EV-4: unused resources are reclaimed before a pod is evicted. If that is enough, no
// pod is evicted.
func TestManager_ReclaimsBeforeEviction(t *testing.T) {
	s := newSim()
	s.images = 950 * mib
	s.add("a", "", 0, 0).logs = 20 * mib
	bubble(t, s, eviction.Config{Thresholds: hardThresholds("nodefs.available<10%"), Reclaimers: []eviction.Reclaimer{s}}, func(t *testing.T, m *eviction.Manager) {
		s.pause(time.Minute)
		assert.Equal(t, 1, s.reclaim)
		assert.Empty(t, s.evicted)
		s.pods["a"].logs = 950 * mib
		s.pause(time.Minute)
		assert.Equal(t, 2, s.reclaim)
		assert.Equal(t, []string{"a"}, s.victims())
		assert.Equal(t, "The node was low on resource: ephemeral-storage. Threshold quantity: 100Mi, available: 50Mi. "+
			"Container main was using 950Mi, request is 0, has larger consumption of ephemeral-storage. ", s.evicted[0].termination.Message)
	})
}

// EV-4: a later shortage is reclaimed as well, although only the node was measured in
// between.
func TestManager_ReclaimsInEachShortage(t *testing.T) {
	g := &fakeUsageProvider{nodeSimulator: newSim()}
	g.add("a", "", 0, 0).logs = 20 * mib
	bubbleOver(t, g.nodeSimulator, g, eviction.Config{Thresholds: hardThresholds("nodefs.available<10%"), Reclaimers: []eviction.Reclaimer{g}}, func(t *testing.T, _ *eviction.Manager) {
		for shortage := 1; shortage <= 3; shortage++ {
			g.images = 950 * mib
			g.pause(5 * time.Second) // before all pods are measured again
			assert.Equal(t, shortage, g.reclaim)
			assert.Empty(t, g.evicted)
		}
	})
}

// EV-5: who goes first, for each resource.
func TestRanking(t *testing.T) {
	static := func(p *simPod) { p.pod.Annotations = map[string]string{podspec.AnnotationSource: "file"} }
	for _, tc := range []struct {
		name, hard string
		pods       func(s *nodeSimulator)
		want       []string
	}{
		{"above request before priority", "memory.available<200Mi", func(s *nodeSimulator) {
			s.add("under", "400Mi", 0, 390*mib)
			s.add("over", "10Mi", 1000, 500*mib)
		}, []string{"over"}},
		{"priority before by how much", "memory.available<200Mi", func(s *nodeSimulator) {
			s.add("low", "10Mi", 0, 300*mib)
			s.add("high", "10Mi", 10, 600*mib)
		}, []string{"low"}},
		{"by how much", "memory.available<200Mi", func(s *nodeSimulator) {
			s.add("some", "290Mi", 0, 300*mib)
			s.add("much", "10Mi", 0, 290*mib)
			s.add("rest", "400Mi", 0, 290*mib)
		}, []string{"much"}},
		{"critical last", "memory.available<200Mi", func(s *nodeSimulator) {
			static(s.add("static", "1Mi", 0, 720*mib))
			s.add("system", "1Mi", podspec.SystemCriticalPriority, 100*mib)
			s.add("plain", "50Mi", 100, 40*mib)
		}, []string{"plain", "static"}},
		{"without figures never", "memory.available<200Mi", func(s *nodeSimulator) {
			s.add("dark", "1Mi", 0, 700*mib).unknown = true
			s.add("seen", "1Mi", 0, 200*mib)
		}, []string{"seen"}},
		{"pids by count", "pid.available<300", func(s *nodeSimulator) {
			s.add("few", "", 0, 0).pids = 300
			s.add("many", "", 0, 0).pids = 500
		}, []string{"many"}},
		{"pids by priority first", "pid.available<300", func(s *nodeSimulator) {
			s.add("few", "", 0, 0).pids = 300
			s.add("many", "", 10, 0).pids = 500
		}, []string{"few"}},
		{"as many as it takes, one after the other", "memory.available<800Mi", func(s *nodeSimulator) {
			s.add("a", "", 0, 300*mib)
			s.add("b", "", 0, 290*mib)
			s.add("c", "", 0, 150*mib)
		}, []string{"a", "b"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSim()
			tc.pods(s)
			bubble(t, s, eviction.Config{Thresholds: hardThresholds(tc.hard), EvictCritical: true}, func(t *testing.T, _ *eviction.Manager) {
				s.pause(5 * time.Second)
				assert.Equal(t, tc.want, s.victims())
			})
		})
	}
}

// EV-6, EV-7: local limits count without any threshold.
func TestLocalLimits(t *testing.T) {
	limit := resource.MustParse("100Mi")
	volume := func(p *simPod) {
		p.pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &limit}}}}
	}
	container := func(p *simPod) {
		p.pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceEphemeralStorage: limit}
	}
	for _, tc := range []struct {
		name         string
		set          func(*simPod)
		logs, volume uint64
		want         string
	}{
		{"volume within", volume, 0, 100 * mib, ""},
		{"volume above", volume, 0, 100*mib + 1, `Usage of EmptyDir volume "v" exceeds the limit "100Mi". `},
		{"container within", container, 100 * mib, 0, ""},
		{"container above", container, 100*mib + 1, 0, `Container main exceeded its local ephemeral storage limit "100Mi". `},
		{"pod above", container, 60 * mib, 60 * mib, "Pod ephemeral local storage usage exceeds the total limit of containers 100Mi. "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSim()
			p := s.add("a", "", 0, 0)
			tc.set(p)
			p.logs, p.volume = tc.logs, tc.volume
			bubble(t, s, eviction.Config{Thresholds: hardThresholds("none")}, func(t *testing.T, _ *eviction.Manager) {
				s.pause(time.Minute)
				if tc.want == "" {
					assert.Empty(t, s.evicted)
					return
				}
				if assert.Len(t, s.evicted, 1) {
					assert.Equal(t, tc.want, s.evicted[0].termination.Message)
					assert.Equal(t, eviction.Reason, s.evicted[0].termination.Reason)
					assert.True(t, s.evicted[0].termination.Evicted)
					assert.True(t, s.evicted[0].termination.OverLimit, "that is no disruption")
				}
			})
		})
	}
}

// EV-8, EV-9: a condition holds for the transition period after the last
// breach, and decides who may start.
func TestConditionsAndAdmission(t *testing.T) {
	s := newSim()
	var changes [][]corev1.NodeConditionType
	cfg := eviction.Config{Thresholds: hardThresholds("memory.available<200Mi,nodefs.available<10%"), Hooks: eviction.Hooks{ConditionsChanged: func(list []corev1.NodeCondition) {
		var active []corev1.NodeConditionType
		for _, c := range list {
			if c.Status == corev1.ConditionTrue {
				active = append(active, c.Type)
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(changes) == 0 || !slices.Equal(changes[len(changes)-1], active) { // else the message changed
			changes = append(changes, active)
		}
	}}}
	bubble(t, s, cfg, func(t *testing.T, m *eviction.Manager) {
		plain, burstable, critical := s.add("plain", "", 0, 0).pod, s.add("burstable", "1Mi", 0, 0).pod, s.add("critical", "", podspec.SystemCriticalPriority, 0).pod
		tolerant := plain.DeepCopy()
		tolerant.Spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists}}
		admitted := func() (out []bool) {
			for _, p := range []*corev1.Pod{plain, burstable, critical, tolerant} {
				out = append(out, m.Admit(p, nil).Admitted)
			}
			return out
		}
		s.pause(15 * time.Second)
		assert.Equal(t, []bool{true, true, true, true}, admitted())
		s.add("hog", "1Mi", 0, 900*mib)
		s.pause(10 * time.Second)
		assert.Equal(t, []string{"hog"}, s.victims())
		assert.Equal(t, []bool{false, true, true, true}, admitted())
		assert.Equal(t, podspec.AdmitResult{Reason: "Evicted", Message: "The node had condition: [MemoryPressure]. "}, m.Admit(plain, nil))
		s.pause(4*time.Minute + 40*time.Second)
		assert.Equal(t, []bool{false, true, true, true}, admitted())
		s.pause(25 * time.Second)
		assert.Equal(t, []bool{true, true, true, true}, admitted())
		s.disk = 0
		s.disk = 100 * mib
		s.images = 95 * mib
		s.pause(10 * time.Second)
		assert.Equal(t, []bool{false, false, true, false}, admitted())
		assert.Equal(t, [][]corev1.NodeConditionType{{corev1.NodeMemoryPressure}, nil, {corev1.NodeDiskPressure}}, changes)
	})
}

// EV-11: outdated and missing measurements evict no pod.
func TestManager_EvictsNoPodWithoutMeasurements(t *testing.T) {
	s := newSim()
	bubble(t, s, eviction.Config{Thresholds: hardThresholds("memory.available<200Mi")}, func(t *testing.T, _ *eviction.Manager) {
		s.add("first", "1Mi", 0, 500*mib)
		s.add("second", "1Mi", 0, 400*mib).measured = time.Now()
		s.lost = true
		s.pause(time.Minute)
		assert.Empty(t, s.evicted, "no figures at all")
		s.lost = false
		s.pause(time.Minute)
		assert.Equal(t, []string{"first"}, s.victims())
		s.pods["second"].memory = 950 * mib
		s.pause(time.Minute)
		assert.Equal(t, []string{"first"}, s.victims(), "the other's figure is from before the last eviction")
		s.stale = true
		s.pods["second"].measured = time.Time{}
		s.pause(time.Minute)
		assert.Equal(t, []string{"first"}, s.victims(), "the node's figure is, too")
		s.stale = false
		s.pause(time.Minute)
		assert.Equal(t, []string{"first", "second"}, s.victims())
	})
}

// EV-12: the next one goes as soon as the last is reclaimed, and one that
// takes too long is not waited for and not chosen again.
func TestManager_EvictsNextPodAfterCleanup(t *testing.T) {
	s := newSim()
	s.takes = 3 * time.Second
	bubble(t, s, eviction.Config{Thresholds: hardThresholds("memory.available<800Mi")}, func(t *testing.T, _ *eviction.Manager) {
		s.add("a", "", 0, 400*mib)
		s.add("b", "", 0, 300*mib)
		s.pause(20 * time.Second)
		if assert.Equal(t, []string{"a", "b"}, s.victims()) {
			assert.Equal(t, 3*time.Second, s.evicted[1].at.Sub(s.evicted[0].at))
		}
		s.takes = time.Hour
		s.add("c", "", 0, 400*mib)
		s.add("d", "", 0, 300*mib)
		s.pause(2 * time.Minute)
		if assert.Equal(t, []string{"a", "b", "c", "d"}, s.victims()) {
			assert.Equal(t, 30*time.Second, s.evicted[3].at.Sub(s.evicted[2].at))
		}
	})
}

// A pod that cannot be evicted is passed over.
func TestEvictionFails(t *testing.T) {
	s := newSim()
	s.failing["stuck"] = errors.New("no")
	events := &fakeRecorder{}
	bubble(t, s, eviction.Config{Thresholds: hardThresholds("memory.available<200Mi"), Recorder: events}, func(t *testing.T, _ *eviction.Manager) {
		s.add("stuck", "", 0, 500*mib)
		s.add("other", "", 0, 400*mib)
		s.pause(time.Second)
		assert.Equal(t, []string{"other"}, s.victims())
		assert.Equal(t, []string{"stuck", "other"}, events.of)
		assert.Equal(t, "memory", events.annotations["starved_resource"])
	})
}

// bounded are volumes of which one is an emptyDir that may not get larger.
func bounded(limit string) []corev1.Volume {
	q := resource.MustParse(limit)
	return []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &q}}}}
}

type fakeRecorder struct {
	of          []string
	annotations map[string]string // of the last event
}

func (r *fakeRecorder) Record(e *corev1.Event) {
	r.of, r.annotations = append(r.of, e.InvolvedObject.Name), e.Annotations
}

// A minimum reclaim keeps a threshold acting until there is that much more.
func TestMinimumReclaim(t *testing.T) {
	s := newSim()
	bubble(t, s, eviction.Config{Thresholds: thresholds("memory.available<200Mi", "", "", "memory.available=300Mi")}, func(t *testing.T, _ *eviction.Manager) {
		s.add("a", "", 0, 400*mib)
		s.add("b", "", 0, 300*mib)
		s.add("c", "", 0, 200*mib)
		s.pause(time.Minute)
		assert.Equal(t, []string{"a"}, s.victims(), "500 MiB are left then")
		s.add("d", "", 0, 310*mib)
		s.pause(time.Minute)
		assert.Equal(t, []string{"a", "d"}, s.victims(), "190 MiB were, and then 500")
	})
}
