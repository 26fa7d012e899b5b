package volume

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// kindOf returns the kind of a volume whose source is in its pod and needs no driver; zero for others.
func kindOf(v *corev1.Volume) Kind {
	switch {
	case v.HostPath != nil:
		return Kind{Plugin: pluginOf("hostPath")}
	case v.Image != nil:
		return Kind{Plugin: pluginOf("image")}
	case v.EmptyDir != nil:
		return Kind{Plugin: pluginName(pluginEmptyDir)}
	}
	if plugin := contentPlugin(v); plugin != "" {
		return Kind{Plugin: pluginName(plugin)}
	}
	return Kind{}
}

// kind returns the kind of a volume that was resolved.
func (v *DriverVolume) kind() Kind {
	kind := Kind{Plugin: pluginOf(v.Source)}
	switch {
	case v.PersistentVolume != nil && v.PersistentVolume.Spec.CSI != nil:
		kind.Driver = v.PersistentVolume.Spec.CSI.Driver
	case v.PersistentVolume == nil && v.Volume.CSI != nil:
		kind.Driver = v.Volume.CSI.Driver
	}
	return kind
}

// pluginOf returns the kubelet's name for what mounts the volumes of a source.
func pluginOf(source string) string {
	switch source {
	case "hostPath":
		source = "host-path"
	case sourceLocal:
		source = "local-volume"
	}
	return "kubernetes.io/" + source
}

// pluginName returns the name of a plugin from the element of a path.
func pluginName(element string) string { return strings.Replace(element, "~", "/", 1) }
