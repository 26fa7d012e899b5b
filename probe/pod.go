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

// pod is the state of one pod.
type pod struct {
	uid         types.UID
	spec        *corev1.Pod                     // nil until AddPod
	observed    runtime.Pod                     // the newest that was read from the cache
	probes      map[key]*probe                  // nil until there is one: most pods have none
	terminating bool                            // only readiness probes run
	previous    map[string]runtime.ProbeResults // by container id; see Adopt
}

// key identifies a probe within its pod.
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
	offset    float64 // phase in the period, from 0 to 1

	id      string // of the container that the result is of; "" before the first
	result  runtime.ProbeResult
	counter thresholdCounter
	done    bool      // the result for this container is final
	due     time.Time // the next run
	timer   *time.Timer
	cancel  context.CancelFunc // of the run that is in progress
	stopped bool               // permanently
}

// stop stops the probe permanently. Its result stays.
func (b *probe) stop() {
	b.stopped = true
	if b.timer != nil {
		b.timer.Stop()
	}
	if b.cancel != nil {
		b.cancel()
	}
}

// AddPod starts the probes of a pod, or updates them. It must be called again when the
// pod has changed, and should be after each inspection: new containers are then probed
// at once instead of up to one period later.
func (m *Manager) AddPod(spec *corev1.Pod) {
	if m.isWithoutProbes(spec) {
		return
	}
	observed := m.cachedPod(spec.UID)
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.pod(spec.UID)
	p.spec = spec
	desired := probesOf(spec)
	for k, b := range p.probes {
		if _, ok := desired[k]; !ok {
			b.stop()
			delete(p.probes, k)
		}
	}
	if len(desired) == 0 {
		return
	}
	p.observe(observed)
	now := time.Now()
	for k, c := range desired {
		m.reconcile(p.ensureProbe(k, c), now)
	}
}

// isWithoutProbes reports whether the pod was added before, and has no probes.
func (m *Manager) isWithoutProbes(spec *corev1.Pod) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.pods[spec.UID]
	return p != nil && p.spec == spec && len(p.probes) == 0
}

// startProbes starts the probes of a pod that was added before Run.
func (m *Manager) startProbes(uid types.UID) {
	observed := m.cachedPod(uid)
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.pods[uid]
	if p == nil {
		return
	}
	p.observe(observed)
	now := time.Now()
	for _, b := range p.probes {
		m.reconcile(b, now)
	}
}

// probesOf returns the containers with probes. Only sidecars among the init containers
// are probed, and no ephemeral containers.
func probesOf(spec *corev1.Pod) map[key]*corev1.Container {
	desired := map[key]*corev1.Container{}
	add := func(c *corev1.Container) {
		for k := range numKinds {
			if specOf(c, k) != nil {
				desired[key{c.Name, k}] = c
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
	return desired
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

// ensureProbe returns the probe k with the spec of c. An existing one keeps its schedule
// and result.
func (p *pod) ensureProbe(k key, c *corev1.Container) *probe {
	b := p.probes[k]
	if b == nil {
		b = &probe{key: k, pod: p, offset: phaseOffset(p.uid, k.name, k.kind), result: initial(k.kind)}
		b.stopped = p.terminating && k.kind != Readiness
		if p.probes == nil {
			p.probes = make(map[key]*probe)
		}
		p.probes[k] = b
	}
	spec := specOf(c, k.kind)
	if !reflect.DeepEqual(b.spec, spec) {
		b.counter = thresholdCounter{} // it was counted with other thresholds
	}
	b.container, b.spec = c, spec
	return b
}

func (m *Manager) pod(uid types.UID) *pod {
	p := m.pods[uid]
	if p == nil {
		p = &pod{uid: uid}
		m.pods[uid] = p
	}
	return p
}

// cachedPod reads a pod from the cache. The caller does not hold mu.
func (m *Manager) cachedPod(uid types.UID) runtime.Pod {
	var observed runtime.Pod
	safe.Do(m.cfg.Logger, "get pod from cache", func() { observed, _ = m.cfg.PodCache.Get(uid) })
	return observed
}

// observe stores a state that was read from the cache. Another goroutine may have read
// and stored a newer one since: then a container that has been replaced would be taken
// for a new one.
func (p *pod) observe(observed runtime.Pod) {
	if !observed.ObservedAt.Before(p.observed.ObservedAt) {
		p.observed = observed
	}
}

// StopLivenessAndStartup stops the liveness and startup probes of a terminating pod
// permanently. Their last results stay, and readiness probes continue.
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

// RemovePod stops all probes of a pod and drops their results.
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

// CleanupPods removes all other pods than these.
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
