package podspec

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// sortedNames returns names in a fixed order for errors.
func sortedNames(list corev1.ResourceList) []corev1.ResourceName {
	return slices.Sorted(maps.Keys(list))
}

func (v *validator) resources(path *field.Path, r *corev1.ResourceRequirements) {
	v.quantities(path.Child("limits"), r.Limits)
	v.quantities(path.Child("requests"), r.Requests)
	for _, name := range sortedNames(r.Requests) {
		request, limit := r.Requests[name], r.Limits[name]
		_, bounded := r.Limits[name]
		at := path.Child("requests").Key(string(name))
		switch {
		case bounded && request.Cmp(limit) > 0:
			v.invalid(at, request.String(), "must not be more than the limit of "+limit.String())
		case !isOvercommitted(name) && (!bounded || request.Cmp(limit) != 0):
			v.invalid(at, request.String(), "must be the limit: this resource cannot be overcommitted")
		}
	}
	v.hugePages(path, r)
}

// isOvercommitted reports whether requests of a resource may be lower than its limits: those
// of native resources except huge pages.
func isOvercommitted(name corev1.ResourceName) bool {
	return !IsHugePages(name) && isNative(name)
}

// isNative reports whether a resource belongs to Kubernetes and is not an extended resource:
// to an API server all domains that end in kubernetes.io do.
func isNative(name corev1.ResourceName) bool {
	domain, _, qualified := strings.Cut(string(name), "/")
	return !qualified || strings.HasSuffix(domain, "kubernetes.io")
}

func (v *validator) quantities(path *field.Path, list corev1.ResourceList) {
	for _, name := range sortedNames(list) {
		q, at := list[name], path.Key(string(name))
		v.resourceName(at, name)
		if q.Sign() < 0 {
			v.invalid(at, q.String(), "must be at least 0")
		}
		if !isNative(name) && q.MilliValue()%1000 != 0 {
			v.invalid(at, q.String(), "must be a whole number")
		}
		if IsHugePages(name) {
			v.hugePageAmount(at, name, q)
		}
	}
}

func (v *validator) resourceName(path *field.Path, name corev1.ResourceName) {
	v.check(path, string(name), validation.IsQualifiedName)
	switch {
	case strings.HasPrefix(string(name), corev1.DefaultResourceRequestsPrefix) && !isNative(name):
		v.invalid(path, name, "must not begin with \"requests.\", which is for quotas")
	case strings.Contains(string(name), "/"), IsHugePages(name):
	case name == corev1.ResourceCPU, name == corev1.ResourceMemory, name == corev1.ResourceEphemeralStorage:
	default:
		v.invalid(path, name, "invalid resource: must be cpu, memory, ephemeral-storage, hugepages-<size> or a name with a domain")
	}
}

// hugePageAmount checks that an amount is a multiple of the page size in the name of the
// resource.
func (v *validator) hugePageAmount(path *field.Path, name corev1.ResourceName, q resource.Quantity) {
	size, err := resource.ParseQuantity(strings.TrimPrefix(string(name), corev1.ResourceHugePagesPrefix))
	switch {
	case err != nil || size.Value() <= 0:
		v.invalid(path, name, "names no page size: want hugepages-<size>, such as hugepages-2Mi")
	case q.Value()%size.Value() != 0:
		v.invalid(path, q.String(), "must be a multiple of the page size of "+size.String())
	}
}

// hugePages checks that a pod with huge pages requests cpu or memory too, as the API
// requires.
func (v *validator) hugePages(path *field.Path, r *corev1.ResourceRequirements) {
	_, cpu := r.Requests[corev1.ResourceCPU]
	_, memory := r.Requests[corev1.ResourceMemory]
	if cpu || memory {
		return
	}
	for name := range r.Requests {
		if IsHugePages(name) {
			v.forbidden(path, "huge pages need a request for cpu or memory beside them")
			return
		}
	}
}

func (v *validator) resizePolicy(path *field.Path, policies []corev1.ContainerResizePolicy) {
	names := make(map[string]bool)
	for i, p := range policies {
		at := path.Index(i)
		oneOf(v, at.Child("resourceName"), p.ResourceName, corev1.ResourceCPU, corev1.ResourceMemory)
		oneOf(v, at.Child("restartPolicy"), p.RestartPolicy, corev1.NotRequired, corev1.RestartContainer)
		v.unique(at.Child("resourceName"), string(p.ResourceName), names)
		if p.RestartPolicy == corev1.RestartContainer && v.pod.Spec.RestartPolicy == corev1.RestartPolicyNever {
			v.invalid(at.Child("restartPolicy"), p.RestartPolicy, "must be NotRequired for a pod with restartPolicy Never")
		}
	}
}

func (v *validator) podResources(path *field.Path) {
	v.quantities(path.Child("overhead"), v.pod.Spec.Overhead)
	r, at := v.pod.Spec.Resources, path.Child("resources")
	if r == nil {
		return
	}
	v.resources(at, r)
	if len(r.Claims) > 0 {
		v.forbidden(at.Child("claims"), "claims are for containers")
	}
	for _, list := range []struct {
		name string
		list corev1.ResourceList
	}{{"limits", r.Limits}, {"requests", r.Requests}} {
		for _, name := range sortedNames(list.list) {
			if !isPodLevel(name) {
				v.forbidden(at.Child(list.name).Key(string(name)), "only cpu, memory and huge pages for the whole pod")
			}
		}
	}
	together := containersTogether(v.pod, requestsOf)
	for _, name := range sortedNames(r.Requests) {
		if sum, all := together[name], r.Requests[name]; sum.Cmp(all) > 0 {
			v.invalid(at.Child("requests").Key(string(name)), all.String(), "must not be less than the "+sum.String()+" that the containers request")
		}
	}
	v.containerLimits(at.Child("limits"), r.Limits)
}

// containerLimits checks that no regular container has a higher limit than the pod. As with an API
// server, an init container may: the limit of the pod holds for it as well.
func (v *validator) containerLimits(path *field.Path, limits corev1.ResourceList) {
	for i := range v.pod.Spec.Containers {
		c := &v.pod.Spec.Containers[i]
		for _, name := range sortedNames(limits) {
			if own, all := c.Resources.Limits[name], limits[name]; own.Cmp(all) > 0 {
				v.invalid(path.Key(string(name)), all.String(), "must not be less than the limit of container "+c.Name)
			}
		}
	}
}
