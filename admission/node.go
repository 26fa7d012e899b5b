package admission

import (
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/nodeselector"
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
		if required != nil && !nodeselector.Matches(required, a.cfg.NodeName, a.labels()) {
			return failed(ReasonNodeAffinity, "node(s) didn't match Pod's node affinity/selector")
		}
	}
	return podspec.Admitted()
}

// labels returns the labels of the node now.
func (a *Admitter) labels() map[string]string {
	if a.cfg.LabelsFunc == nil {
		return a.cfg.Labels
	}
	return a.cfg.LabelsFunc()
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
