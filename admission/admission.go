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

// Reasons of refusals, as the kubelet tells them. A lack of a resource is
// OutOf and its name: OutOfcpu, OutOfmemory, OutOfpods.
const (
	ReasonOutOfPrefix  = "OutOf"
	ReasonNodeAffinity = "NodeAffinity"
	ReasonNodeName     = "NodeName"
	ReasonNodePorts    = "NodePorts"
	ReasonTaint        = "TaintToleration"
	ReasonOS           = "PodOSNotSupported"
	ReasonUnsupported  = "PodFeatureUnsupported"
	ReasonSysctl       = "SysctlForbidden"
)

// Config describes a node. All fields are optional.
type Config struct {
	NodeName string
	// Allocatable is what there is for pods. A resource of Kubernetes' own that
	// it does not name is not checked, but for huge pages: nil checks nothing.
	Allocatable corev1.ResourceList
	// MaxPods is how many pods may run at once. 0: any number.
	MaxPods int
	// Labels of the node. kubernetes.io/os, kubernetes.io/arch and
	// kubernetes.io/hostname are there by default.
	Labels map[string]string
	// Taints of the node. Those with effect NoExecute count, for pods that are
	// not static.
	Taints []corev1.Taint
	// AllowedUnsafeSysctls are kernel parameters that pods may set besides those that
	// harm nobody: names, or beginnings of names with * after them, as net.core.*.
	// All of them belong to namespaces that pods have.
	AllowedUnsafeSysctls []string
	// Kernel is the release of the node's kernel, 6.1.0-32-amd64. Which parameters
	// harm nobody depends on it. Default: one that is new enough for all of them.
	Kernel string
	// Unsupported returns the fields of a pod that the node cannot fulfil.
	// Default: podspec.Unsupported.
	Unsupported func(*corev1.Pod) field.ErrorList
}

// Admitter checks pods against a node. Its methods may be called from any
// goroutine.
type Admitter struct {
	cfg    Config
	checks []check
	ledger requestTotals
}

// check returns whether a pod may run beside the others.
type check func(pod *corev1.Pod, others []*corev1.Pod) podspec.AdmitResult

// New checks the configuration.
func New(cfg Config) (*Admitter, error) {
	var errs []error
	if cfg.MaxPods < 0 {
		errs = append(errs, fmt.Errorf("admission: at most %d pods: must be at least 0", cfg.MaxPods))
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Allocatable)) {
		if q := cfg.Allocatable[name]; q.Sign() < 0 {
			errs = append(errs, fmt.Errorf("admission: allocatable %s of %s: must be at least 0", name, q.String()))
		}
	}
	for _, t := range cfg.Taints {
		if t.Key == "" {
			errs = append(errs, errors.New("admission: a taint without a key"))
		}
	}
	errs = append(errs, checkSysctlPatterns(cfg.AllowedUnsafeSysctls)...)
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	labels := map[string]string{corev1.LabelOSStable: runtime.GOOS, corev1.LabelArchStable: runtime.GOARCH}
	if cfg.NodeName != "" {
		labels[corev1.LabelHostname] = cfg.NodeName
	}
	maps.Copy(labels, cfg.Labels)
	cfg.Labels = labels
	cfg.Allocatable = cfg.Allocatable.DeepCopy()
	cfg.AllowedUnsafeSysctls = slices.Clone(cfg.AllowedUnsafeSysctls)
	if cfg.Unsupported == nil {
		cfg.Unsupported = podspec.Unsupported
	}
	a := &Admitter{cfg: cfg}
	// Cheap ones first, and those that no other pod's end can change.
	a.checks = []check{a.features, a.system, a.sysctls, a.nodeName, a.affinity, a.taints, a.checkResources, a.ports}
	return a, nil
}

// Admit returns whether the pod may run on the node beside the others. Of the
// others those that have ended, and the pod itself, do not count. What they
// request is remembered from call to call: a pod that was handed in must not be
// changed, a newer version of it is another object. The time a call takes grows
// with how many of the others are not those of the call before, and by a
// nanosecond or so with the number of all.
func (a *Admitter) Admit(pod *corev1.Pod, others []*corev1.Pod) podspec.AdmitResult {
	for _, c := range a.checks {
		if v := c(pod, others); !v.Admitted {
			return v
		}
	}
	return podspec.Admitted()
}

// counts reports whether another pod takes room from the pod.
func counts(other, pod *corev1.Pod) bool {
	return other.UID != pod.UID && !over(other)
}

// over reports whether a pod has ended, so that it takes nothing any more.
func over(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// features names all fields at once.
func (a *Admitter) features(pod *corev1.Pod, _ []*corev1.Pod) podspec.AdmitResult {
	faults := a.cfg.Unsupported(pod)
	if len(faults) == 0 {
		return podspec.Admitted()
	}
	parts := make([]string, 0, len(faults))
	for _, f := range faults {
		parts = append(parts, f.Field+" "+f.Detail)
	}
	return podspec.Rejected(ReasonUnsupported, "Pod asks for what this node cannot do: "+strings.Join(parts, "; "))
}

func (a *Admitter) system(pod *corev1.Pod, _ []*corev1.Pod) podspec.AdmitResult {
	want := pod.Spec.OS
	if want == nil || string(want.Name) == a.cfg.Labels[corev1.LabelOSStable] {
		return podspec.Admitted()
	}
	return podspec.Rejected(ReasonOS, fmt.Sprintf("Failed to admit pod as the OS field doesn't match node OS: pod wants %s, node is %s",
		want.Name, a.cfg.Labels[corev1.LabelOSStable]))
}

func (a *Admitter) nodeName(pod *corev1.Pod, _ []*corev1.Pod) podspec.AdmitResult {
	want := pod.Spec.NodeName
	if want == "" || a.cfg.NodeName == "" || want == a.cfg.NodeName {
		return podspec.Admitted()
	}
	return failed(ReasonNodeName, fmt.Sprintf("pod is for node %q, this is %q", want, a.cfg.NodeName))
}

// failed words a refusal the way the kubelet does.
func failed(predicate, detail string) podspec.AdmitResult {
	return podspec.Rejected(predicate, "Predicate "+predicate+" failed: "+detail)
}
