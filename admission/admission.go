package admission

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sublet-dev/agent/podspec"
)

// Reasons of rejections; they are the kubelet's. The reason for an insufficient
// resource is ReasonOutOfPrefix and its name: OutOfcpu, OutOfmemory, OutOfpods.
const (
	ReasonOutOfPrefix  = "OutOf"
	ReasonNodeAffinity = "NodeAffinity"
	ReasonNodeName     = "NodeName"
	ReasonNodePorts    = "NodePorts"
	ReasonTaint        = "TaintToleration"
	ReasonOS           = "PodOSNotSupported"
	ReasonOSLabel      = "PodOSSelectorNodeLabelDoesNotMatch"
	ReasonGroupsPolicy = "SupplementalGroupsPolicyNotSupported"
	ReasonAppArmor     = "AppArmor"
	ReasonUnsupported  = "PodFeatureUnsupported"
	ReasonSysctl       = "SysctlForbidden"
)

// Config describes a node. All fields are optional.
type Config struct {
	NodeName string
	// Allocatable contains the resources available to pods. A native resource that
	// is not in it is not checked, except huge pages. Nil: no resource is checked.
	Allocatable corev1.ResourceList
	// Devices returns the extended resources that are available in addition to
	// Allocatable at present. They are checked as those of Allocatable are. It is called
	// for each pod that requests resources and must not block. Default: there are none.
	Devices func() corev1.ResourceList
	// MaxPods is the maximum number of running pods. 0: no limit.
	MaxPods int
	// Labels of the node. Default: kubernetes.io/os, kubernetes.io/arch and
	// kubernetes.io/hostname, which Labels can override.
	Labels map[string]string
	// LabelsFunc returns labels that may change, in place of Labels. The result is
	// read-only. Default: none.
	LabelsFunc func() map[string]string
	// Taints of the node. Only those with effect NoExecute are checked, and not for
	// static pods.
	Taints []corev1.Taint
	// AllowedUnsafeSysctls are sysctls that pods may set in addition to the safe
	// ones: names, or prefixes followed by *, such as net.core.*. They must belong to
	// a namespace of the pod.
	AllowedUnsafeSysctls []string
	// Kernel is the release of the node's kernel, such as 6.1.0-32-amd64. Some
	// sysctls are safe only from a certain release on. Default: all are safe.
	Kernel string
	// StrictGroups reports whether the runtime supports supplementalGroupsPolicy Strict, as far as is
	// known. It must not block. Default: it does.
	StrictGroups func() bool
	// NoAppArmor says that the kernel cannot confine containers with AppArmor: pods that are to be
	// confined are rejected. See HasAppArmor.
	NoAppArmor bool
	// Unsupported returns the fields of a pod that the node does not support.
	// Default: podspec.Unsupported.
	Unsupported func(*corev1.Pod) field.ErrorList
}

// Admitter checks pods against a node. Its methods may be called from any
// goroutine.
type Admitter struct {
	cfg    Config
	totals requestTotals

	checks         []check // those of the reasons that are reported first are first
	criticalChecks []check // of critical pods
}

// check decides whether a pod may run together with the others.
type check func(pod *corev1.Pod, others []*corev1.Pod) podspec.AdmitResult

// New returns an Admitter. All errors of the configuration are joined.
func New(cfg Config) (*Admitter, error) {
	var errs []error
	if cfg.MaxPods < 0 {
		errs = append(errs, fmt.Errorf("admission: Config.MaxPods: %d must be at least 0", cfg.MaxPods))
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Allocatable)) {
		if q := cfg.Allocatable[name]; q.Sign() < 0 {
			errs = append(errs, fmt.Errorf("admission: Config.Allocatable: %s of %s must be at least 0", name, q.String()))
		}
	}
	for _, t := range cfg.Taints {
		if t.Key == "" {
			errs = append(errs, errors.New("admission: Config.Taints: key required"))
		}
	}
	errs = append(errs, checkSysctlPatterns(cfg.AllowedUnsafeSysctls)...)
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	cfg.Labels = completeLabels(cfg.NodeName, cfg.Labels)
	cfg.Allocatable = cfg.Allocatable.DeepCopy()
	cfg.AllowedUnsafeSysctls = slices.Clone(cfg.AllowedUnsafeSysctls)
	if cfg.Unsupported == nil {
		cfg.Unsupported = podspec.Unsupported
	}
	a := &Admitter{cfg: cfg}
	// The reported reason is the first one, in the kubelet's order. A critical pod is not rejected for want of
	// resources if it has another reason: pods are preempted for resources only, not for ports.
	first := []check{a.system, a.groupsPolicy, a.appArmor, a.features, a.sysctls}
	a.checks = slices.Concat(first, []check{a.checkResources, a.affinity, a.nodeName, a.ports, a.taints})
	a.criticalChecks = slices.Concat(first, []check{a.affinity, a.nodeName, a.ports, a.taints, a.checkResources})
	return a, nil
}

// NodeLabels returns a function that returns the labels of the node now: LabelsFunc, or one for
// Labels with their defaults. nodeName and labels are for a Config that has no Labels.
func (cfg Config) NodeLabels(nodeName string, labels map[string]string) func() map[string]string {
	if cfg.LabelsFunc != nil {
		return cfg.LabelsFunc
	}
	if cfg.Labels != nil {
		labels = cfg.Labels
	}
	complete := completeLabels(nodeName, labels)
	return func() map[string]string { return complete }
}

// completeLabels returns labels with the defaults of those that are not in it.
func completeLabels(nodeName string, labels map[string]string) map[string]string {
	complete := map[string]string{corev1.LabelOSStable: runtime.GOOS, corev1.LabelArchStable: runtime.GOARCH}
	if nodeName != "" {
		complete[corev1.LabelHostname] = nodeName
	}
	maps.Copy(complete, labels)
	return complete
}

// Admit decides whether the pod may run on the node together with the others. Pods
// in a terminal phase and the pod itself do not count among the others.
//
// Admit caches the requests of the others between calls, so a pod must not be
// changed after it was passed; a new version must be a new object. A call takes
// time proportional to the number of others that differ from the previous call,
// plus about a nanosecond for each other pod.
func (a *Admitter) Admit(pod *corev1.Pod, others []*corev1.Pod) podspec.AdmitResult {
	checks := a.checks
	if podspec.IsCritical(pod) {
		checks = a.criticalChecks
	}
	for _, c := range checks {
		if result := c(pod, others); !result.Admitted {
			return result
		}
	}
	return podspec.Admitted()
}

// counts reports whether another pod uses resources that the pod cannot use.
func counts(other, pod *corev1.Pod) bool {
	return other.UID != pod.UID && !podspec.IsTerminalPhase(other.Status.Phase)
}

// features rejects a pod with unsupported fields. The message names all of them.
func (a *Admitter) features(pod *corev1.Pod, _ []*corev1.Pod) podspec.AdmitResult {
	unsupported := a.cfg.Unsupported(pod)
	if len(unsupported) == 0 {
		return podspec.Admitted()
	}
	parts := make([]string, 0, len(unsupported))
	for _, f := range unsupported {
		parts = append(parts, f.Field+" "+f.Detail)
	}
	return podspec.Rejected(ReasonUnsupported, "Pod uses fields that this node does not support: "+strings.Join(parts, "; "))
}

// system rejects a pod for another operating system than the node's, by its label or its spec.
func (a *Admitter) system(pod *corev1.Pod, _ []*corev1.Pod) podspec.AdmitResult {
	have := a.cfg.Labels[corev1.LabelOSStable]
	if label, ok := pod.Labels[corev1.LabelOSStable]; ok && label != have {
		return podspec.Rejected(ReasonOSLabel, fmt.Sprintf("The label %s of the pod is %q, that of the node %q", corev1.LabelOSStable, label, have))
	}
	if want := pod.Spec.OS; want != nil && string(want.Name) != have {
		return podspec.Rejected(ReasonOS, fmt.Sprintf("Failed to admit pod as the OS field doesn't match node OS: pod wants %s, node is %s", want.Name, have))
	}
	return podspec.Admitted()
}

// groupsPolicy rejects a pod with a supplementalGroupsPolicy that the runtime would ignore: its
// containers would have groups of their image.
func (a *Admitter) groupsPolicy(pod *corev1.Pod, _ []*corev1.Pod) podspec.AdmitResult {
	sc := pod.Spec.SecurityContext
	if sc == nil || sc.SupplementalGroupsPolicy == nil || *sc.SupplementalGroupsPolicy != corev1.SupplementalGroupsPolicyStrict {
		return podspec.Admitted()
	}
	if a.cfg.StrictGroups == nil || a.cfg.StrictGroups() {
		return podspec.Admitted()
	}
	return podspec.Rejected(ReasonGroupsPolicy, "The runtime does not support supplementalGroupsPolicy Strict")
}

func (a *Admitter) nodeName(pod *corev1.Pod, _ []*corev1.Pod) podspec.AdmitResult {
	want := pod.Spec.NodeName
	if want == "" || a.cfg.NodeName == "" || want == a.cfg.NodeName {
		return podspec.Admitted()
	}
	return failed(ReasonNodeName, fmt.Sprintf("pod is for node %q, this is %q", want, a.cfg.NodeName))
}

// failed returns a rejection with the message that the kubelet has for a predicate.
func failed(predicate, detail string) podspec.AdmitResult {
	return podspec.Rejected(predicate, "Predicate "+predicate+" failed: "+detail)
}
