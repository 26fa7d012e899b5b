package cri

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// sharedStrings has the strings that labels and annotations of most sandboxes and containers consist of, by themselves. Each message of
// the runtime has its own copies, which would be kept as long as the pod: half a kilobyte.
type sharedStrings map[string]string

func newSharedStrings() sharedStrings {
	s := sharedStrings{}
	for _, text := range []string{
		runtime.LabelPodName, runtime.LabelPodNamespace, runtime.LabelPodUID, runtime.LabelContainerName, runtime.LabelOwner,
		runtime.AnnotationHash, runtime.AnnotationRestartCount, runtime.AnnotationContainerType,
		runtime.AnnotationTerminationMessagePath, runtime.AnnotationTerminationMessagePolicy,
		runtime.AnnotationGracePeriod, runtime.AnnotationDeletionGracePeriod, runtime.AnnotationPreStop, runtime.AnnotationPorts,
		runtime.AnnotationBackOffStep, runtime.AnnotationBackOffBoot, runtime.AnnotationRestartGeneration,
		podspec.AnnotationSource, podspec.AnnotationHash, podspec.AnnotationFirstSeen, podspec.AnnotationStatic,
		corev1.TerminationMessagePathDefault, string(corev1.TerminationMessageReadFile), corev1.NamespaceDefault,
		runtime.Regular.String(), "0", "30",
	} {
		s[text] = text
	}
	return s
}

// isInFields reports whether the content of a label or annotation is in the fields of an inspected Sandbox or Container, or counts
// only before its inspection ends.
func isInFields(key string) bool {
	switch key {
	case runtime.LabelPodName, runtime.LabelPodNamespace, runtime.LabelPodUID, runtime.LabelContainerName,
		podspec.AnnotationSource, runtime.AnnotationGracePeriod, runtime.AnnotationDeletionGracePeriod,
		runtime.AnnotationHash, runtime.AnnotationRestartCount, runtime.AnnotationContainerType, runtime.AnnotationPreStop,
		runtime.AnnotationBackOffStep, runtime.AnnotationBackOffBoot, runtime.AnnotationRestartGeneration,
		runtime.AnnotationTerminationMessagePath, runtime.AnnotationTerminationMessagePolicy:
		return true
	}
	return false
}

// rest returns what an inspection keeps of m, labels or annotations of something of the pod: what no field has. Nothing else may use m.
func (s sharedStrings) rest(m map[string]string, pod *runtime.Pod, owner string) map[string]string {
	var rest map[string]string
	for key, value := range m {
		if isInFields(key) || key == runtime.LabelOwner && value == owner {
			continue
		}
		if rest == nil {
			rest = make(map[string]string)
		}
		rest[key] = value
	}
	s.replaceIn(rest, pod, owner)
	return rest
}

// replaceIn replaces strings of m, labels or annotations of something of the pod, with equal ones. Nothing else may use m.
func (s sharedStrings) replaceIn(m map[string]string, pod *runtime.Pod, owner string) {
	for key, value := range m {
		if shared, ok := s[key]; ok {
			key = shared
		}
		switch value {
		case string(pod.UID):
			value = string(pod.UID)
		case pod.Name:
			value = pod.Name
		case pod.Namespace:
			value = pod.Namespace
		case owner:
			value = owner
		default:
			if shared, ok := s[value]; ok {
				value = shared
			}
		}
		m[key] = value // replaces the key too, which is equal
	}
}
