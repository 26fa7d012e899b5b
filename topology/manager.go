package topology

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/podspec"
)

// The reasons of rejected pods, as in the kubelet.
const (
	ReasonAffinity   = "TopologyAffinityError"
	ReasonAllocation = "UnexpectedAdmissionError"
)

// Provider hands out a kind of resources that are close to some NUMA nodes. Its methods are
// called from the sync loop and must be fast.
type Provider interface {
	// Hints returns the hints for what the container requests, a list for each resource;
	// see Merge. A container that has the resource already gets the hint for what it has.
	Hints(pod *corev1.Pod, container *corev1.Container) [][]Hint
	// Reserve sets resources aside for the container, from these nodes if possible. It
	// does nothing for a container that has them, or that requests none.
	Reserve(pod *corev1.Pod, container *corev1.Container, nodes Set) error
	// KeepReserved frees what was set aside, and not allocated since, for pods for which
	// keep returns false. keep does not call the Provider.
	KeepReserved(keep func(uid types.UID) bool)
}

// Config describes a Manager.
type Config struct {
	Policy    Policy     // default: None
	Scope     Scope      // default: ContainerScope
	Nodes     Set        // the NUMA nodes; at most 8 unless the policy is None. Required
	Providers []Provider // required; with PodScope each is a PodProvider
	Hooks     Hooks
	Logger    *slog.Logger // default: discard
}

// Hooks observe a Manager. They are called from the sync loop and must not block. A panic in one is logged.
type Hooks struct {
	// PodAdmitted is called after each decision about a pod, also if the pod is rejected.
	PodAdmitted func(pod *corev1.Pod, result podspec.AdmitResult, duration time.Duration)
}

// Manager admits pods whose resources can be given from suitable NUMA nodes. It is a
// syncloop.Admitter.
type Manager struct{ cfg Config }

// New returns a Manager. It checks cfg.
func New(cfg Config) (*Manager, error) {
	cfg.Policy, cfg.Scope = cmp.Or(cfg.Policy, None), cmp.Or(cfg.Scope, ContainerScope)
	errs := []error{}
	if _, err := ParsePolicy(string(cfg.Policy)); err != nil {
		errs = append(errs, fmt.Errorf("topology: Config.Policy: %w", err))
	}
	if _, err := ParseScope(string(cfg.Scope)); err != nil {
		errs = append(errs, fmt.Errorf("topology: Config.Scope: %w", err))
	}
	for _, p := range cfg.Providers {
		if _, ok := p.(PodProvider); !ok && cfg.Scope == PodScope {
			errs = append(errs, fmt.Errorf("topology: Config.Providers: %T gives no hints for pods, which the scope %s needs", p, PodScope))
		}
	}
	if cfg.Nodes.Len() == 0 {
		errs = append(errs, errors.New("topology: Config.Nodes: required"))
	}
	if cfg.Policy != None && cfg.Nodes.Len() > maxNodes {
		errs = append(errs, fmt.Errorf("topology: Config.Policy: %s: this machine has %d NUMA nodes, at most %d can be combined; use none", cfg.Policy, cfg.Nodes.Len(), maxNodes))
	}
	if len(cfg.Providers) == 0 {
		errs = append(errs, errors.New("topology: Config.Providers: required"))
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Hooks = Hooks{PodAdmitted: safe.Hook3(cfg.Logger, "PodAdmitted", cfg.Hooks.PodAdmitted)}
	return &Manager{cfg}, errors.Join(errs...)
}

// Admit implements syncloop.Admitter: it finds an affinity for each container of the pod, or with
// PodScope one for all of them, and sets the resources aside. What was set aside for pods that are not among others, and that
// were not started, is free again.
func (m *Manager) Admit(pod *corev1.Pod, others []*corev1.Pod) podspec.AdmitResult {
	return m.AdmitBeside(pod, others, nil)
}

// AdmitBeside implements syncloop.Reserver: it does what Admit does, and what was set aside for the pods of
// kept stays so too. As in a kubelet, no pod is admitted for what a pod has that is to be preempted.
func (m *Manager) AdmitBeside(pod *corev1.Pod, others, kept []*corev1.Pod) podspec.AdmitResult {
	startTime := time.Now()
	active := map[types.UID]bool{pod.UID: true}
	for _, pods := range [][]*corev1.Pod{others, kept} {
		for _, other := range pods {
			active[other.UID] = true
		}
	}
	m.keep(func(uid types.UID) bool { return active[uid] })
	result := m.admit(pod)
	if !result.Admitted {
		m.keep(func(uid types.UID) bool { return uid != pod.UID && active[uid] })
	}
	if m.cfg.Hooks.PodAdmitted != nil {
		m.cfg.Hooks.PodAdmitted(pod, result, time.Since(startTime))
	}
	return result
}

// admit finds an affinity for the pod, or for each of its containers, and sets the resources aside.
func (m *Manager) admit(pod *corev1.Pod) podspec.AdmitResult {
	var affinity Hint
	result := podspec.Admitted()
	if m.cfg.Scope == PodScope {
		affinity, result = m.affinity(pod, "pod "+pod.Name, func(p Provider) [][]Hint {
			if p, ok := p.(PodProvider); ok { // as New has checked
				return p.PodHints(pod)
			}
			return nil
		})
	}
	for c := range podspec.Containers(pod) {
		if result.Admitted && m.cfg.Scope == ContainerScope {
			affinity, result = m.affinity(pod, "container "+c.Name, func(p Provider) [][]Hint { return p.Hints(pod, c) })
		}
		if !result.Admitted {
			break
		}
		result = m.reserve(pod, c, affinity.Nodes)
	}
	return result
}

// affinity returns the best affinity for the hints of all providers. what they are for is named in a rejection.
func (m *Manager) affinity(pod *corev1.Pod, what string, hints func(Provider) [][]Hint) (Hint, podspec.AdmitResult) {
	var resources [][]Hint
	for _, p := range m.cfg.Providers {
		safe.Do(m.cfg.Logger, "topology hints", func() { resources = append(resources, hints(p)...) })
	}
	affinity, ok := Merge(m.cfg.Policy, m.cfg.Nodes, resources)
	if !ok {
		return Hint{}, podspec.Rejected(ReasonAffinity, fmt.Sprintf("Resources cannot be allocated with Topology locality: policy %s, %s", m.cfg.Policy, what))
	}
	m.cfg.Logger.Debug("topology affinity found", logattr.Pod(pod), slog.String("for", what), slog.String("numaNodes", affinity.Nodes.String()))
	return affinity, podspec.Admitted()
}

func (m *Manager) reserve(pod *corev1.Pod, c *corev1.Container, nodes Set) podspec.AdmitResult {
	for _, p := range m.cfg.Providers {
		if err := safe.Call(m.cfg.Logger, "reserve resources", func() error { return p.Reserve(pod, c, nodes) }); err != nil {
			return podspec.Rejected(ReasonAllocation, fmt.Sprintf("Allocate failed due to %s, which is unexpected", err))
		}
	}
	return podspec.Admitted()
}

func (m *Manager) keep(keep func(types.UID) bool) {
	for _, p := range m.cfg.Providers {
		safe.Do(m.cfg.Logger, "free reserved resources", func() { p.KeepReserved(keep) })
	}
}
