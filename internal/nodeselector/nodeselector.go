// Package nodeselector matches a node with selectors of pods and of PersistentVolumes.
package nodeselector

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// Matches reports whether a node with that name and these labels meets all requirements of
// one of the terms.
func Matches(s *corev1.NodeSelector, name string, nodeLabels map[string]string) bool {
	return slices.ContainsFunc(s.NodeSelectorTerms, func(term corev1.NodeSelectorTerm) bool {
		return matchesTerm(term, name, nodeLabels)
	})
}

// matchesTerm reports whether the node meets all requirements of a term. A term without
// requirements matches no node.
func matchesTerm(term corev1.NodeSelectorTerm, name string, nodeLabels labels.Set) bool {
	if len(term.MatchExpressions)+len(term.MatchFields) == 0 {
		return false
	}
	for _, r := range term.MatchFields {
		if !matchesField(r, name) {
			return false
		}
	}
	for _, r := range term.MatchExpressions {
		if !matchesLabels(r, nodeLabels) {
			return false
		}
	}
	return true
}

// matchesField reports whether the node meets a requirement of a field: the name, with one value. Unlike
// the value of a label, a name may have more than 63 characters.
func matchesField(r corev1.NodeSelectorRequirement, name string) bool {
	if r.Key != "metadata.name" || len(r.Values) != 1 {
		return false
	}
	switch r.Operator {
	case corev1.NodeSelectorOpIn:
		return r.Values[0] == name
	case corev1.NodeSelectorOpNotIn:
		return r.Values[0] != name
	default:
		return false
	}
}

// matchesLabels reports whether the labels meet a requirement. An invalid requirement is
// never met.
func matchesLabels(r corev1.NodeSelectorRequirement, set labels.Set) bool {
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
