package podspec

import corev1 "k8s.io/api/core/v1"

// ObjectRef is a reference from a pod to a ConfigMap or Secret.
type ObjectRef struct {
	Ref
	// Optional means that the pod can start without the object.
	Optional bool
}

// ObjectRefs returns the ConfigMaps and Secrets in the environment, the volumes (inline CSI
// volumes included) and the imagePullSecrets of a pod, each once and in the order of the spec.
// A reference is optional if it is optional wherever it occurs; pull secrets always are.
func ObjectRefs(pod *corev1.Pod) []ObjectRef {
	c := refCollector{namespace: pod.Namespace, at: make(map[Ref]int)}
	for _, s := range pod.Spec.ImagePullSecrets {
		yes := true
		c.add(Secret, s.Name, &yes)
	}
	for i := range pod.Spec.Volumes {
		c.volume(&pod.Spec.Volumes[i])
	}
	for container := range Containers(pod) {
		c.env(container)
	}
	return c.refs
}

type refCollector struct {
	namespace string
	refs      []ObjectRef
	at        map[Ref]int // index in refs
}

func (c *refCollector) add(kind, name string, optional *bool) {
	if name == "" {
		return
	}
	ref := Ref{Kind: kind, Namespace: c.namespace, Name: name}
	may := optional != nil && *optional
	if i, ok := c.at[ref]; ok {
		c.refs[i].Optional = c.refs[i].Optional && may
		return
	}
	c.at[ref] = len(c.refs)
	c.refs = append(c.refs, ObjectRef{Ref: ref, Optional: may})
}

func (c *refCollector) volume(v *corev1.Volume) {
	if v.ConfigMap != nil {
		c.add(ConfigMap, v.ConfigMap.Name, v.ConfigMap.Optional)
	}
	if v.Secret != nil {
		c.add(Secret, v.Secret.SecretName, v.Secret.Optional)
	}
	if v.CSI != nil && v.CSI.NodePublishSecretRef != nil {
		c.add(Secret, v.CSI.NodePublishSecretRef.Name, nil)
	}
	if v.Projected == nil {
		return
	}
	for _, s := range v.Projected.Sources {
		if s.ConfigMap != nil {
			c.add(ConfigMap, s.ConfigMap.Name, s.ConfigMap.Optional)
		}
		if s.Secret != nil {
			c.add(Secret, s.Secret.Name, s.Secret.Optional)
		}
	}
}

func (c *refCollector) env(container *corev1.Container) {
	for _, e := range container.EnvFrom {
		if e.ConfigMapRef != nil {
			c.add(ConfigMap, e.ConfigMapRef.Name, e.ConfigMapRef.Optional)
		}
		if e.SecretRef != nil {
			c.add(Secret, e.SecretRef.Name, e.SecretRef.Optional)
		}
	}
	for _, e := range container.Env {
		if e.ValueFrom == nil {
			continue
		}
		if r := e.ValueFrom.ConfigMapKeyRef; r != nil {
			c.add(ConfigMap, r.Name, r.Optional)
		}
		if r := e.ValueFrom.SecretKeyRef; r != nil {
			c.add(Secret, r.Name, r.Optional)
		}
	}
}
