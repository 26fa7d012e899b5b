package cri

import (
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// sharedStrings has the keys of labels and annotations that inspections keep of many sandboxes and containers, by themselves. Each message
// of the runtime has its own copies, which would be kept as long as the pod.
type sharedStrings map[string]string

func newSharedStrings() sharedStrings {
	s := sharedStrings{}
	for _, key := range []string{
		runtime.LabelOwner, runtime.AnnotationPorts, podspec.AnnotationHash, podspec.AnnotationFirstSeen, podspec.AnnotationStatic,
	} {
		s[key] = key
	}
	return s
}

// isInFields reports whether the content of a label or annotation is in the fields of an inspected Sandbox or Container, or counts
// only before its inspection ends.
func isInFields(key string) bool {
	switch key {
	case runtime.LabelPodName, runtime.LabelPodNamespace, runtime.LabelPodUID, runtime.LabelContainerName,
		podspec.AnnotationSource, runtime.AnnotationGracePeriod, runtime.AnnotationDeletionGracePeriod,
		runtime.AnnotationHash, runtime.AnnotationImage, runtime.AnnotationRestartCount, runtime.AnnotationContainerType, runtime.AnnotationPreStop,
		runtime.AnnotationBackOffStep, runtime.AnnotationBackOffBoot, runtime.AnnotationBackOffResources,
		runtime.AnnotationRestartGeneration, runtime.AnnotationMemoryRequest,
		runtime.AnnotationTerminationMessagePath, runtime.AnnotationTerminationMessagePolicy:
		return true
	}
	return false
}

// rest returns what an inspection keeps of m, labels or annotations of something of the pod: what no field has. It shares the strings
// that others have, too.
func (s sharedStrings) rest(m map[string]string, pod *runtime.Pod, owner string) map[string]string {
	var rest map[string]string
	for key, value := range m {
		if isInFields(key) || key == runtime.LabelOwner && value == owner {
			continue
		}
		if rest == nil {
			rest = make(map[string]string)
		}
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
		}
		rest[key] = value
	}
	return rest
}
