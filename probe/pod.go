package probe

import (
	"context"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// pod is what a Manager keeps of one pod.
type pod struct {
	uid         types.UID
	spec        *corev1.Pod // nil until it is added
	probes      map[key]*probe
	terminating bool // only readiness is probed
	previous    map[string]runtime.ProbeResults
}

// key names a probe within its pod.
type key struct {
	name string // of the container
	kind ProbeType
}

// probe is one probe of one container of a pod.
type probe struct {
	key
	pod       *pod
	container *corev1.Container
	spec      *corev1.Probe
	share     float64 // where in a period it fires

	id      string // of the container it is about; "" before the first
	result  runtime.ProbeResult
	tally   thresholdCounter
	done    bool      // nothing more is to be found out about this container
	due     time.Time // when to run next
	timer   *time.Timer
	cancel  context.CancelFunc // of the run under way
	stopped bool               // for good
}

// stop lets the probe not run again. What it found out stays.
func (b *probe) stop() {
	b.stopped = true
	if b.timer != nil {
		b.timer.Stop()
	}
	if b.cancel != nil {
		b.cancel()
	}
}

// AddPod probes the containers of a pod from now on. It is to be called again when
// the pod was changed and whenever it has been looked at: containers that began
// meanwhile are probed at once instead of up to a period later.
func (m *Manager) AddPod(spec *corev1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.pod(spec.UID)
	p.spec = spec
	wanted := probesOf(spec)
	for k, b := range p.probes {
		if _, ok := wanted[k]; !ok {
			b.stop()
			delete(p.probes, k)
		}
	}
	if len(wanted) == 0 {
		return
	}
	view, now := m.updatePod(p), time.Now()
	for k, c := range wanted {
		m.reconcilePod(p.want(k, c), &view, now)
	}
}

// probesOf returns the containers to be probed. Init containers but sidecars run
// to their end, and ephemeral ones are nobody's business.
func probesOf(spec *corev1.Pod) map[key]*corev1.Container {
	wanted := map[key]*corev1.Container{}
	add := func(c *corev1.Container) {
		for k := range numKinds {
			if specOf(c, k) != nil {
				wanted[key{c.Name, k}] = c
			}
		}
	}
	for i := range spec.Spec.InitContainers {
		if c := &spec.Spec.InitContainers[i]; podspec.IsSidecar(c) {
			add(c)
		}
	}
	for i := range spec.Spec.Containers {
		add(&spec.Spec.Containers[i])
	}
	return wanted
}

func specOf(c *corev1.Container, k ProbeType) *corev1.Probe {
	switch k {
	case Startup:
		return c.StartupProbe
	case Readiness:
		return c.ReadinessProbe
	default:
		return c.LivenessProbe
	}
}

// want returns the probe k, made to be as c says. Its beat and results stay.
func (p *pod) want(k key, c *corev1.Container) *probe {
	b := p.probes[k]
	if b == nil {
		b = &probe{key: k, pod: p, share: phaseOffset(p.uid, k.name, k.kind), result: initial(k.kind)}
		b.stopped = p.terminating && k.kind != Readiness
		p.probes[k] = b
	}
	spec := specOf(c, k.kind)
	if b.spec != nil && b.spec != spec && !reflect.DeepEqual(b.spec, spec) {
		b.tally = thresholdCounter{} // it was counted by other thresholds
	}
	b.container, b.spec = c, spec
	return b
}

func (m *Manager) pod(uid types.UID) *pod {
	p := m.pods[uid]
	if p == nil {
		p = &pod{uid: uid, probes: map[key]*probe{}}
		m.pods[uid] = p
	}
	return p
}

func (m *Manager) updatePod(p *pod) runtime.Pod {
	var view runtime.Pod
	safe.Do(m.cfg.Logger, "look up pod", func() { view, _ = m.cfg.PodCache.Get(p.uid) })
	return view
}

// StopLivenessAndStartup ends the liveness and startup probes of a pod that is ending,
// for good; their last results stay. Its readiness goes on being probed.
func (m *Manager) StopLivenessAndStartup(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.pod(uid)
	p.terminating = true
	for _, b := range p.probes {
		if b.kind != Readiness {
			b.stop()
		}
	}
}

// RemovePod ends all probes of a pod and forgets their results.
func (m *Manager) RemovePod(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.remove(uid)
}

func (m *Manager) remove(uid types.UID) {
	p := m.pods[uid]
	if p == nil {
		return
	}
	for _, b := range p.probes {
		b.stop()
	}
	delete(m.pods, uid)
	m.backlog.forget(uid)
}

// CleanupPods removes all pods but these.
func (m *Manager) CleanupPods(uids []types.UID) {
	keep := make(map[types.UID]bool, len(uids))
	for _, uid := range uids {
		keep[uid] = true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid := range m.pods {
		if !keep[uid] {
			m.remove(uid)
		}
	}
}
