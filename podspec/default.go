package podspec

import (
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Default sets, in place, the fields of a pod that an API server sets when the pod is
// created, so that a manifest means the same here. It is idempotent. Volume sources that
// need a driver are not changed.
func Default(pod *corev1.Pod) {
	spec := &pod.Spec
	if spec.RestartPolicy == "" {
		spec.RestartPolicy = corev1.RestartPolicyAlways
	}
	if spec.DNSPolicy == "" {
		spec.DNSPolicy = corev1.DNSClusterFirst
	}
	if spec.SchedulerName == "" {
		spec.SchedulerName = corev1.DefaultSchedulerName
	}
	if spec.ServiceAccountName == "" {
		spec.ServiceAccountName = spec.DeprecatedServiceAccount
	}
	if spec.SecurityContext == nil {
		spec.SecurityContext = &corev1.PodSecurityContext{}
	}
	setIfNil(&spec.TerminationGracePeriodSeconds, int64(corev1.DefaultTerminationGracePeriodSeconds))
	if *spec.TerminationGracePeriodSeconds < 0 {
		*spec.TerminationGracePeriodSeconds = 1 // as an API server's pod strategy does
	}
	setIfNil(&spec.EnableServiceLinks, corev1.DefaultEnableServiceLinks)
	for i := range spec.Volumes {
		defaultVolume(&spec.Volumes[i])
	}
	for c := range Containers(pod) {
		defaultContainer(c)
	}
	roundUp(spec.Overhead)
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			requestLimits(&containers[i].Resources)
			if spec.HostNetwork {
				defaultHostPorts(containers[i].Ports)
			}
		}
	}
	defaultPodResources(pod)
}

func setIfNil[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}

func defaultContainer(c *corev1.Container) {
	if c.ImagePullPolicy == "" {
		c.ImagePullPolicy = pullPolicy(c.Image)
	}
	if c.TerminationMessagePath == "" {
		c.TerminationMessagePath = corev1.TerminationMessagePathDefault
	}
	if c.TerminationMessagePolicy == "" {
		c.TerminationMessagePolicy = corev1.TerminationMessageReadFile
	}
	for i := range c.Ports {
		if c.Ports[i].Protocol == "" {
			c.Ports[i].Protocol = corev1.ProtocolTCP
		}
	}
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil {
			defaultFieldRef(from.FieldRef)
			if from.FileKeyRef != nil {
				setIfNil(&from.FileKeyRef.Optional, false)
			}
		}
	}
	roundUp(c.Resources.Requests)
	roundUp(c.Resources.Limits)
	for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		defaultProbe(p)
	}
	if c.Lifecycle != nil {
		defaultHook(c.Lifecycle.PostStart)
		defaultHook(c.Lifecycle.PreStop)
	}
}

// pullPolicy returns Always for an image without a tag or with the tag latest.
func pullPolicy(image string) corev1.PullPolicy {
	name, _, digested := strings.Cut(image, "@")
	tag := tagOf(name)
	if tag == "latest" || tag == "" && !digested && image != "" {
		return corev1.PullAlways
	}
	return corev1.PullIfNotPresent
}

// tagOf returns the part after the last colon that does not begin the port of a registry.
func tagOf(image string) string {
	last := image[strings.LastIndexByte(image, '/')+1:]
	_, tag, _ := strings.Cut(last, ":")
	return tag
}

func defaultProbe(p *corev1.Probe) {
	if p == nil {
		return
	}
	for _, f := range []struct {
		field *int32
		value int32
	}{
		{&p.TimeoutSeconds, 1},
		{&p.PeriodSeconds, 10},
		{&p.SuccessThreshold, 1},
		{&p.FailureThreshold, 3},
	} {
		if *f.field == 0 {
			*f.field = f.value
		}
	}
	defaultHTTP(p.HTTPGet)
	if p.GRPC != nil {
		setIfNil(&p.GRPC.Service, "")
	}
}

func defaultHook(h *corev1.LifecycleHandler) {
	if h != nil {
		defaultHTTP(h.HTTPGet)
	}
}

func defaultHTTP(get *corev1.HTTPGetAction) {
	if get == nil {
		return
	}
	if get.Path == "" {
		get.Path = "/"
	}
	if get.Scheme == "" {
		get.Scheme = corev1.URISchemeHTTP
	}
}

func defaultFieldRef(f *corev1.ObjectFieldSelector) {
	if f != nil && f.APIVersion == "" {
		f.APIVersion = "v1"
	}
}

func defaultHostPorts(ports []corev1.ContainerPort) {
	for i := range ports {
		if ports[i].HostPort == 0 {
			ports[i].HostPort = ports[i].ContainerPort
		}
	}
}

func defaultVolume(v *corev1.Volume) {
	if reflect.ValueOf(v.VolumeSource).IsZero() { // also when the API gains a source
		v.EmptyDir = &corev1.EmptyDirVolumeSource{}
	}
	switch {
	case v.HostPath != nil:
		setIfNil(&v.HostPath.Type, corev1.HostPathUnset)
	case v.Secret != nil:
		setIfNil(&v.Secret.DefaultMode, corev1.SecretVolumeSourceDefaultMode)
	case v.ConfigMap != nil:
		setIfNil(&v.ConfigMap.DefaultMode, corev1.ConfigMapVolumeSourceDefaultMode)
	case v.DownwardAPI != nil:
		setIfNil(&v.DownwardAPI.DefaultMode, corev1.DownwardAPIVolumeSourceDefaultMode)
		defaultDownward(v.DownwardAPI.Items)
	case v.Projected != nil:
		defaultProjected(v.Projected)
	case v.Image != nil && v.Image.PullPolicy == "":
		v.Image.PullPolicy = pullPolicy(v.Image.Reference)
	}
}

func defaultProjected(p *corev1.ProjectedVolumeSource) {
	setIfNil(&p.DefaultMode, corev1.ProjectedVolumeSourceDefaultMode)
	for i := range p.Sources {
		if d := p.Sources[i].DownwardAPI; d != nil {
			defaultDownward(d.Items)
		}
		if t := p.Sources[i].ServiceAccountToken; t != nil {
			setIfNil(&t.ExpirationSeconds, int64(3600))
		}
	}
}

func defaultDownward(items []corev1.DownwardAPIVolumeFile) {
	for i := range items {
		defaultFieldRef(items[i].FieldRef)
	}
}

// roundUp rounds quantities up to thousandths, as the API does.
func roundUp(list corev1.ResourceList) {
	for name, q := range list {
		q.RoundUp(resource.Milli)
		list[name] = q
	}
}

// requestLimits sets missing requests to the limits.
func requestLimits(r *corev1.ResourceRequirements) {
	if r.Limits != nil && r.Requests == nil {
		r.Requests = make(corev1.ResourceList, len(r.Limits))
	}
	fillIn(r.Requests, r.Limits, func(corev1.ResourceName) bool { return true })
}

// fillIn copies the resources that are missing in list and selected by which.
func fillIn(list, from corev1.ResourceList, which func(corev1.ResourceName) bool) {
	for name, q := range from {
		if _, ok := list[name]; !ok && which(name) {
			list[name] = q.DeepCopy()
		}
	}
}

// defaultPodResources completes pod-level resources (KEP-2837), if the pod has any, as an
// API server does since 1.37: huge page limits are those of the containers; requests those
// of the containers, else the limits; and limits those of the containers if each has one,
// but not lower than the request.
func defaultPodResources(pod *corev1.Pod) {
	r := pod.Spec.Resources
	if r == nil || len(r.Limits)+len(r.Requests) == 0 {
		return
	}
	roundUp(r.Limits)
	roundUp(r.Requests)
	limits, requests := copyOf(r.Limits), copyOf(r.Requests)
	containerLimits := containersTogether(pod, limitsOf)
	fillIn(limits, containerLimits, func(name corev1.ResourceName) bool {
		_, requested := requests[name]
		return IsHugePages(name) && !requested
	})
	fillIn(requests, containersTogether(pod, requestsOf), isComputed)
	fillIn(requests, limits, isPodLevel)
	raiseTo(containerLimits, requests)
	fillIn(limits, containerLimits, func(name corev1.ResourceName) bool {
		_, requested := requests[name]
		return requested && isPodLevel(name) && eachHasLimit(pod, name)
	})
	if len(limits) > 0 {
		r.Limits = limits
	}
	if len(requests) > 0 {
		r.Requests = requests
	}
}

// eachHasLimit reports whether all init and regular containers set a limit of that resource,
// which can be 0.
func eachHasLimit(pod *corev1.Pod, name corev1.ResourceName) bool {
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			if _, ok := containers[i].Resources.Limits[name]; !ok {
				return false
			}
		}
	}
	return true
}

// isComputed reports whether the pod-level request of a resource is computed: of those that
// pod-level resources can have, all except huge pages.
func isComputed(name corev1.ResourceName) bool { return isPodLevel(name) && !IsHugePages(name) }
