package podspec

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const needsServer = "needs an API server"

// Unsupported returns the fields of a valid pod that ask for what a Linux node
// without an API server, volume drivers and claims cannot give. Such a pod is
// refused before anything of it starts. Fields that a scheduler alone reads are
// no reason to refuse a pod that was brought to this node by hand.
func Unsupported(pod *corev1.Pod) field.ErrorList {
	u := validator{pod: pod}
	path, spec := field.NewPath("spec"), &pod.Spec
	for i := range spec.Volumes {
		u.unsupportedVolume(path.Child("volumes").Index(i), &spec.Volumes[i])
	}
	for _, f := range []struct {
		name, why string
		set       bool
	}{
		{"serviceAccountName", needsServer, spec.ServiceAccountName != "" && spec.ServiceAccountName != "default"},
		{"automountServiceAccountToken", needsServer, spec.AutomountServiceAccountToken != nil && *spec.AutomountServiceAccountToken},
		{"schedulingGates", needsServer + ": nobody else can lift them", len(spec.SchedulingGates) > 0},
		{"resourceClaims", needsServer + " and a resource driver", len(spec.ResourceClaims) > 0},
	} {
		if f.set {
			u.forbidden(path.Child(f.name), f.why)
		}
	}
	if spec.OS != nil && spec.OS.Name != corev1.Linux {
		u.forbidden(path.Child("os", "name"), "this node runs linux")
	}
	if sc := spec.SecurityContext; sc != nil && sc.WindowsOptions != nil {
		u.forbidden(path.Child("securityContext", "windowsOptions"), "this node runs linux")
	}
	for i := range spec.InitContainers {
		u.unsupportedContainer(path.Child("initContainers").Index(i), &spec.InitContainers[i])
	}
	for i := range spec.Containers {
		u.unsupportedContainer(path.Child("containers").Index(i), &spec.Containers[i])
	}
	for i := range spec.EphemeralContainers {
		c := (*corev1.Container)(&spec.EphemeralContainers[i].EphemeralContainerCommon)
		u.unsupportedContainer(path.Child("ephemeralContainers").Index(i), c)
	}
	return u.errs
}

func (v *validator) unsupportedVolume(path *field.Path, vol *corev1.Volume) {
	for _, source := range setFields(vol.VolumeSource) {
		switch source {
		case "emptyDir", "hostPath", "configMap", "secret", "downwardAPI", "projected", "image":
		case "persistentVolumeClaim", "ephemeral":
			v.forbidden(path.Child(source), needsServer+" and a volume driver")
		default:
			v.forbidden(path.Child(source), "needs a volume driver")
		}
	}
	if e := vol.EmptyDir; e != nil && e.Medium != corev1.StorageMediumDefault && e.Medium != corev1.StorageMediumMemory {
		v.forbidden(path.Child("emptyDir", "medium"), "huge pages cannot be mounted here")
	}
	if vol.Projected == nil {
		return
	}
	for i := range vol.Projected.Sources {
		for _, source := range setFields(vol.Projected.Sources[i]) {
			switch source {
			case "configMap", "secret", "downwardAPI":
			default:
				v.forbidden(path.Child("projected", "sources").Index(i).Child(source), needsServer)
			}
		}
	}
}

func (v *validator) unsupportedContainer(path *field.Path, c *corev1.Container) {
	if len(c.VolumeDevices) > 0 {
		v.forbidden(path.Child("volumeDevices"), needsServer+" and a volume driver")
	}
	if len(c.Resources.Claims) > 0 {
		v.forbidden(path.Child("resources", "claims"), needsServer+" and a resource driver")
	}
	if c.SecurityContext != nil && c.SecurityContext.WindowsOptions != nil {
		v.forbidden(path.Child("securityContext", "windowsOptions"), "this node runs linux")
	}
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil && from.FileKeyRef != nil {
			v.forbidden(path.Child("env").Index(i).Child("valueFrom", "fileKeyRef"), "variables from files are not read here")
		}
	}
}
