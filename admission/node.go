package admission

import (
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/sublet-dev/agent/podspec"
)

// affinity checks spec.nodeSelector and required node affinity. Preferred node
// affinity is ignored.
func (a *Admitter) affinity(pod *corev1.Pod, _ []*corev1.Pod) podspec.AdmitResult {
	for key, want := range pod.Spec.NodeSelector {
		if have, ok := a.labels()[key]; !ok || have != want {
			return failed(ReasonNodeAffinity, "node(s) didn't match Pod's node affinity/selector: "+key+"="+want)
		}
	}
	if n := pod.Spec.Affinity; n != nil && n.NodeAffinity != nil {
		required := n.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
		if required != nil && !slices.ContainsFunc(required.NodeSelectorTerms, a.matches) {
			return failed(ReasonNodeAffinity, "node(s) didn't match Pod's node affinity/selector")
		}
	}
	return podspec.Admitted()
}

// labels returns the labels of the node now.
func (a *Admitter) labels() labels.Set {
	if a.cfg.LabelsFunc == nil {
		return a.cfg.Labels
	}
	return a.cfg.LabelsFunc()
}

// matches reports whether the node meets all requirements of a term. A term without
// requirements matches no node.
func (a *Admitter) matches(term corev1.NodeSelectorTerm) bool {
	if len(term.MatchExpressions)+len(term.MatchFields) == 0 {
		return false
	}
	for _, r := range term.MatchFields {
		if !a.matchesField(r) {
			return false
		}
	}
	for _, r := range term.MatchExpressions {
		if !matches(a.labels(), r) {
			return false
		}
	}
	return true
}

// matchesField reports whether the node meets a requirement of a field: the name, with one value. Unlike
// the value of a label, a name may have more than 63 characters.
func (a *Admitter) matchesField(r corev1.NodeSelectorRequirement) bool {
	if r.Key != "metadata.name" || len(r.Values) != 1 {
		return false
	}
	switch r.Operator {
	case corev1.NodeSelectorOpIn:
		return r.Values[0] == a.cfg.NodeName
	case corev1.NodeSelectorOpNotIn:
		return r.Values[0] != a.cfg.NodeName
	default:
		return false
	}
}

// matches reports whether the set meets a requirement. An invalid requirement is
// never met.
func matches(set labels.Set, r corev1.NodeSelectorRequirement) bool {
	var op selection.Operator
	switch r.Operator {
	case corev1.NodeSelectorOpIn:
		op = selection.In
	case corev1.NodeSelectorOpNotIn:
		op = selection.NotIn
	case corev1.NodeSelectorOpExists:
		op = selection.Exists
	case corev1.NodeSelectorOpDoesNotExist:
		op = selection.DoesNotExist
	case corev1.NodeSelectorOpGt:
		op = selection.GreaterThan
	case corev1.NodeSelectorOpLt:
		op = selection.LessThan
	default:
		return false
	}
	requirement, err := labels.NewRequirement(r.Key, op, r.Values)
	return err == nil && requirement.Matches(set)
}

// taints checks taints with effect NoExecute. They do not apply to static pods, which
// cannot run elsewhere.
func (a *Admitter) taints(pod *corev1.Pod, _ []*corev1.Pod) podspec.AdmitResult {
	if podspec.IsStatic(pod) {
		return podspec.Admitted()
	}
	for i := range a.cfg.Taints {
		taint := &a.cfg.Taints[i]
		if taint.Effect != corev1.TaintEffectNoExecute {
			continue
		}
		if !slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool { return tolerates(&t, taint) }) {
			return failed(ReasonTaint, "node(s) had untolerated taint {"+taint.Key+": "+taint.Value+"}")
		}
	}
	return podspec.Admitted()
}

// tolerates reports whether a toleration tolerates the taint. An empty key or effect
// matches every key or effect.
func tolerates(t *corev1.Toleration, taint *corev1.Taint) bool {
	if t.Effect != "" && t.Effect != taint.Effect || t.Key != "" && t.Key != taint.Key {
		return false
	}
	switch t.Operator {
	case corev1.TolerationOpExists:
		return true
	case corev1.TolerationOpEqual, "":
		return t.Key != "" && t.Value == taint.Value
	case corev1.TolerationOpLt, corev1.TolerationOpGt:
		bound, errBound := strconv.ParseInt(t.Value, 10, 64)
		have, errHave := strconv.ParseInt(taint.Value, 10, 64)
		if errBound != nil || errHave != nil {
			return false
		}
		return t.Operator == corev1.TolerationOpLt && have < bound || t.Operator == corev1.TolerationOpGt && have > bound
	default:
		return false
	}
}
