package podspec

import (
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// NewNodeEvent returns an event about a node. It has no UID, as that of a kubelet that does not
// know its Node yet. A recorder that does sets it, as kube.Events.
func NewNodeEvent(node, eventType, reason, message string, now time.Time) *corev1.Event {
	pod := &corev1.Pod{}
	pod.Name, pod.Spec.NodeName = node, node
	e := NewEvent(pod, eventType, reason, message, now)
	e.InvolvedObject = corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node}
	return e
}

// NewContainerEvent is NewEvent for an event about a container of the pod: the fieldPath of
// the involved object says which, as in the kubelet. A container that the pod does not have
// has none.
func NewContainerEvent(pod *corev1.Pod, container, eventType, reason, message string, now time.Time) *corev1.Event {
	e := NewEvent(pod, eventType, reason, message, now)
	e.InvolvedObject.FieldPath = containerPath(pod, container)
	return e
}

func containerPath(pod *corev1.Pod, name string) string {
	is := func(c corev1.Container) bool { return c.Name == name }
	switch {
	case slices.ContainsFunc(pod.Spec.Containers, is):
		return "spec.containers{" + name + "}"
	case slices.ContainsFunc(pod.Spec.InitContainers, is):
		return "spec.initContainers{" + name + "}"
	case slices.ContainsFunc(pod.Spec.EphemeralContainers, func(c corev1.EphemeralContainer) bool { return c.Name == name }):
		return "spec.ephemeralContainers{" + name + "}"
	}
	return ""
}

// EventComponent is the source of the events of this module.
const EventComponent = "sublet"

// NewEvent returns an event about the pod that occurred once at now. eventType is
// corev1.EventTypeNormal or EventTypeWarning.
func NewEvent(pod *corev1.Pod, eventType, reason, message string, now time.Time) *corev1.Event {
	namespace := pod.Namespace
	if namespace == "" {
		namespace = corev1.NamespaceDefault
	}
	at := metav1.NewTime(now)
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Name:      eventName(pod.Name, now),
			Namespace: namespace,
		},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "v1", Kind: "Pod",
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
			ResourceVersion: pod.ResourceVersion,
		},
		Type: eventType, Reason: reason, Message: message,
		Source:         corev1.EventSource{Component: EventComponent, Host: pod.Spec.NodeName},
		FirstTimestamp: at, LastTimestamp: at, Count: 1,
		ReportingController: EventComponent, ReportingInstance: pod.Spec.NodeName,
	}
}

// eventName returns the name of an event: that of its object and a time. The API server rejects
// names of more than 253 bytes, so that of the object is cut off where it has to be.
func eventName(object string, now time.Time) string {
	suffix := "." + strconv.FormatInt(now.UnixNano(), 16)
	if most := validation.DNS1123SubdomainMaxLength - len(suffix); len(object) > most {
		object = strings.TrimRight(object[:most], "-.")
	}
	return object + suffix
}
