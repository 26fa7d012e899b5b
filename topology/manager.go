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

// Rejection is an error of Provider.Reserve that says itself how the pod is rejected. Any other error is one of
// ReasonAllocation.
type Rejection interface {
	error
	AdmitResult() podspec.AdmitResult
}

// Provider hands out a kind of resources that are close to some NUMA nodes. Its methods are
// called from the sync loop and must be fast.
type Provider interface {
	// Hints returns the hints for what the container requests, a list for each resource;
	// see Merge. A container that has the resource already gets the hint for what it has.
	Hints(pod *corev1.Pod, container *corev1.Container) [][]Hint
	// Reserve sets resources aside for the container, from these nodes if possible. It
	// does nothing for a container that has them, or that requests none. The error may be a Rejection.
	Reserve(pod *corev1.Pod, container *corev1.Container, nodes Set) error
	// KeepReserved frees what was set aside, and not allocated since, for pods for which
	// keep returns false. keep does not call the Provider.
	KeepReserved(keep func(uid types.UID) bool)
}

// Config describes a Manager.
type Config struct {
	Policy    Policy     // default: None
	Scope     Scope      // default: ContainerScope
	Nodes     Set        // the NUMA nodes; at most Options.MaxAllowableNUMANodes unless the policy is None. Required
	Providers []Provider // required; with PodScope each is a PodProvider
	Options   Options    // of the policy; without effect for None
	// Distances are those of Topology. Required with Options.PreferClosestNUMANodes, if there are several nodes.
	Distances map[int]map[int]int
	Hooks     Hooks
	Logger    *slog.Logger // default: discard
}

// Hooks observe a Manager. They are called from the sync loop and must not block. A panic in one is logged.
type Hooks struct {
	// PodAdmitted is called after each decision about a pod, also if the pod is rejected.
	PodAdmitted func(pod *corev1.Pod, result podspec.AdmitResult, duration time.Duration)
}

// Options are what the kubelet calls options of the policy.
type Options struct {
	// PreferClosestNUMANodes chooses, among sets of as many nodes, the one whose nodes are closest to each other, and
	// not the one with the lowest numbers. It makes no difference for SingleNUMANode.
	PreferClosestNUMANodes bool
	// MaxAllowableNUMANodes is how many nodes the machine may have, at least 8. More than 16 are never combined: each
	// node doubles the time that a pod takes to be admitted. Default: 8.
	MaxAllowableNUMANodes int
}

// Check returns an error for values that a Manager does not accept.
func (o Options) Check() error {
	if o.MaxAllowableNUMANodes != 0 && o.MaxAllowableNUMANodes < defaultMaxNodes {
		return fmt.Errorf("MaxAllowableNUMANodes: %d must be at least %d", o.MaxAllowableNUMANodes, defaultMaxNodes)
	}
	return nil
}

// Manager admits pods whose resources can be given from suitable NUMA nodes. It is a
// syncloop.Admitter.
type Manager struct {
	cfg    Config
	merger merger
}

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
	if err := cfg.Options.Check(); err != nil {
		errs = append(errs, fmt.Errorf("topology: Config.Options.%w", err))
	}
	errs = append(errs, cfg.checkNodes()...)
	if len(cfg.Providers) == 0 {
		errs = append(errs, errors.New("topology: Config.Providers: required"))
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Hooks = Hooks{PodAdmitted: safe.Hook3(cfg.Logger, "PodAdmitted", cfg.Hooks.PodAdmitted)}
	m := &Manager{cfg: cfg, merger: merger{policy: cfg.Policy, nodes: cfg.Nodes}}
	if cfg.Options.PreferClosestNUMANodes {
		m.merger.distances = cfg.Distances
	}
	return m, errors.Join(errs...)
}

// checkNodes returns why the policy cannot be that of this machine.
func (cfg *Config) checkNodes() (errs []error) {
	if cfg.Policy == None {
		return nil
	}
	n, most := cfg.Nodes.Len(), cmp.Or(cfg.Options.MaxAllowableNUMANodes, defaultMaxNodes)
	switch {
	case n > maxNodes:
		errs = append(errs, fmt.Errorf("topology: Config.Policy: %s: this machine has %d NUMA nodes, at most %d can be combined; use none", cfg.Policy, n, maxNodes))
	case n > most:
		errs = append(errs, fmt.Errorf("topology: Config.Policy: %s: this machine has %d NUMA nodes, at most %d are allowed; raise Options.MaxAllowableNUMANodes (max-allowable-numa-nodes), or use none", cfg.Policy, n, most))
	}
	if n == 1 {
		return errs // far from no other
	}
	for _, from := range cfg.Nodes.ids {
		for _, to := range cfg.Nodes.ids {
			if _, ok := cfg.Distances[from][to]; !ok && cfg.Options.PreferClosestNUMANodes {
				return append(errs, fmt.Errorf("topology: Config.Distances: that from node %d to node %d is missing, which PreferClosestNUMANodes (prefer-closest-numa-nodes) needs", from, to))
			}
		}
	}
	return errs
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
	if m.cfg.Policy == None { // no hint matters
		return Hint{Nodes: m.cfg.Nodes, Preferred: true}, podspec.Admitted()
	}
	var resources [][]Hint
	for _, p := range m.cfg.Providers {
		safe.Do(m.cfg.Logger, "topology hints", func() { resources = append(resources, hints(p)...) })
	}
	affinity, ok := m.merger.merge(resources)
	if !ok {
		return Hint{}, podspec.Rejected(ReasonAffinity, fmt.Sprintf("Resources cannot be allocated with Topology locality: policy %s, %s", m.cfg.Policy, what))
	}
	m.cfg.Logger.Debug("topology affinity found", logattr.Pod(pod), slog.String("for", what), slog.String("numaNodes", affinity.Nodes.String()))
	return affinity, podspec.Admitted()
}

func (m *Manager) reserve(pod *corev1.Pod, c *corev1.Container, nodes Set) podspec.AdmitResult {
	for _, p := range m.cfg.Providers {
		err := safe.Call(m.cfg.Logger, "reserve resources", func() error { return p.Reserve(pod, c, nodes) })
		if rejection, ok := errors.AsType[Rejection](err); ok {
			return rejection.AdmitResult()
		}
		if err != nil {
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
