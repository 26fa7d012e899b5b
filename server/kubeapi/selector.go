package kubeapi

import (
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// selector chooses objects.
type selector struct {
	namespace, name string // "": all
	labels          labels.Selector
	fields          fields.Selector
	fieldsOf        func(object) fields.Set
}

// selector returns that of a request. A field that the resource does not have is an error.
func (r *request) selector(opts *internalversion.ListOptions) (selector, error) {
	s := selector{namespace: r.path.namespace, name: r.path.name, labels: opts.LabelSelector, fields: opts.FieldSelector, fieldsOf: r.resource.fields}
	if s.labels == nil {
		s.labels = labels.Everything()
	}
	if s.fields == nil {
		s.fields = fields.Everything()
	}
	known := r.resource.fields(nil)
	for _, requirement := range s.fields.Requirements() {
		if _, ok := known[requirement.Field]; !ok {
			return s, apierrors.NewBadRequest("field label not supported: " + requirement.Field)
		}
	}
	return s, nil
}

// selectedName returns the name of the only object that a field selector chooses, or "". A right to
// that object is enough to list and watch it.
func (r *request) selectedName() string {
	s, err := fields.ParseSelector(r.query.Get("fieldSelector"))
	if err != nil {
		return "" // selector returns the error
	}
	name, _ := s.RequiresExactMatch("metadata.name")
	return name
}

func (s selector) matches(o object) bool {
	return (s.namespace == "" || o.GetNamespace() == s.namespace) && (s.name == "" || o.GetName() == s.name) &&
		s.labels.Matches(labels.Set(o.GetLabels())) && (s.fields.Empty() || s.fields.Matches(s.fieldsOf(o)))
}

// The functions below return the fields that selectors can name. They accept nil, for the
// names alone.

func clusterFields(o object) fields.Set {
	if o == nil {
		return fields.Set{"metadata.name": ""}
	}
	return fields.Set{"metadata.name": o.GetName()}
}

func nodeFields(o object) fields.Set {
	set := clusterFields(o)
	n, ok := o.(*corev1.Node)
	set["spec.unschedulable"] = strconv.FormatBool(ok && n.Spec.Unschedulable)
	return set
}

func namespacedFields(o object) fields.Set {
	set := clusterFields(o)
	set["metadata.namespace"] = ""
	if o != nil {
		set["metadata.namespace"] = o.GetNamespace()
	}
	return set
}

func namespaceFields(o object) fields.Set {
	set := clusterFields(o)
	set["status.phase"] = string(corev1.NamespaceActive)
	return set
}

func podFields(o object) fields.Set {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		pod, o = &corev1.Pod{}, nil
	}
	set, ip := namespacedFields(o), ""
	if len(pod.Status.PodIPs) > 0 {
		ip = pod.Status.PodIPs[0].IP
	}
	maps.Copy(set, map[string]string{
		"spec.nodeName": pod.Spec.NodeName, "spec.restartPolicy": string(pod.Spec.RestartPolicy), "spec.schedulerName": pod.Spec.SchedulerName,
		"spec.serviceAccountName": pod.Spec.ServiceAccountName, "spec.hostNetwork": strconv.FormatBool(pod.Spec.HostNetwork),
		"status.phase": string(pod.Status.Phase), "status.podIP": ip, "status.podIPs": "", // known, and of no pod: as in an API server
		"status.nominatedNodeName": pod.Status.NominatedNodeName,
	})
	return set
}

func eventFields(o object) fields.Set {
	e, ok := o.(*corev1.Event)
	if !ok {
		e, o = &corev1.Event{}, nil
	}
	set := namespacedFields(o)
	source := e.Source.Component
	if source == "" {
		source = e.ReportingController
	}
	ref := e.InvolvedObject
	maps.Copy(set, map[string]string{
		"involvedObject.kind": ref.Kind, "involvedObject.namespace": ref.Namespace, "involvedObject.name": ref.Name, "involvedObject.uid": string(ref.UID),
		"involvedObject.apiVersion": ref.APIVersion, "involvedObject.resourceVersion": ref.ResourceVersion, "involvedObject.fieldPath": ref.FieldPath,
		"reason": e.Reason, "reportingComponent": e.ReportingController, "source": source, "type": e.Type,
	})
	return set
}
