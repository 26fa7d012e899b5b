package podspec

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	needsServer = "needs an API server"
	needsClaims = "needs an agent with claims, from an API server or from files"
	needsDriver = "needs an agent with resource drivers"
)

// Unsupported returns the fields of a valid pod that a Linux node without an API server,
// volume drivers and resource claims does not support. Admission rejects such a pod. Fields
// that only a scheduler reads are not among them. FIELDS.md documents each field.
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
		{"schedulingGates", needsServer + ", which removes them", len(spec.SchedulingGates) > 0},
		{"resourceClaims", needsDriver, len(spec.ResourceClaims) > 0},
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
			v.forbidden(path.Child(source), needsClaims)
		default:
			v.forbidden(path.Child(source), "needs a volume driver")
		}
	}
	if e := vol.EmptyDir; e != nil {
		if IsHugePageMedium(e.Medium) && v.isMounted(vol.Name) {
			if _, err := HugePageSize(v.pod, e.Medium); err != nil {
				v.forbidden(path.Child("emptyDir", "medium"), err.Error())
			}
		}
		if e.Mode != nil && *e.Mode != emptyDirMode {
			v.forbidden(path.Child("emptyDir", "mode"), "directories are made with 0777")
		}
	}
	if s := vol.Secret; s != nil {
		v.fileOwners(path.Child("secret"), s.DefaultUser, s.Items)
	}
	if c := vol.ConfigMap; c != nil {
		v.fileOwners(path.Child("configMap"), c.DefaultUser, c.Items)
	}
	if d := vol.DownwardAPI; d != nil {
		v.fileOwners(path.Child("downwardAPI"), d.DefaultUser, nil)
		v.downwardOwners(path.Child("downwardAPI", "items"), d.Items)
	}
	if vol.Projected != nil {
		v.fileOwners(path.Child("projected"), vol.Projected.DefaultUser, nil)
		for i := range vol.Projected.Sources {
			v.unsupportedProjection(path.Child("projected", "sources").Index(i), &vol.Projected.Sources[i])
		}
	}
}

// isMounted reports whether a container of the pod mounts a volume.
func (v *validator) isMounted(volume string) bool {
	for c := range Containers(v.pod) {
		if slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == volume }) {
			return true
		}
	}
	return false
}

// emptyDirMode is the mode of the directories of emptyDir volumes.
const emptyDirMode = 0o777

func (v *validator) unsupportedProjection(path *field.Path, p *corev1.VolumeProjection) {
	for _, source := range setFields(*p) {
		switch source {
		case "configMap":
			v.fileOwners(path.Child(source), nil, p.ConfigMap.Items)
		case "secret":
			v.fileOwners(path.Child(source), nil, p.Secret.Items)
		case "downwardAPI":
			v.downwardOwners(path.Child(source, "items"), p.DownwardAPI.Items)
		default:
			v.forbidden(path.Child(source), needsServer)
		}
	}
}

const filesAreRoots = "files of a volume belong to root and to the pod's fsGroup here"

func (v *validator) fileOwners(path *field.Path, user *int64, items []corev1.KeyToPath) {
	if user != nil {
		v.forbidden(path.Child("defaultUser"), filesAreRoots)
	}
	for i := range items {
		if items[i].User != nil {
			v.forbidden(path.Child("items").Index(i).Child("user"), filesAreRoots)
		}
	}
}

func (v *validator) downwardOwners(path *field.Path, items []corev1.DownwardAPIVolumeFile) {
	for i := range items {
		if items[i].User != nil {
			v.forbidden(path.Index(i).Child("user"), filesAreRoots)
		}
	}
}

func (v *validator) unsupportedContainer(path *field.Path, c *corev1.Container) {
	if len(c.VolumeDevices) > 0 {
		v.forbidden(path.Child("volumeDevices"), needsClaims)
	}
	if len(c.Resources.Claims) > 0 {
		v.forbidden(path.Child("resources", "claims"), needsDriver)
	}
	if c.SecurityContext != nil && c.SecurityContext.WindowsOptions != nil {
		v.forbidden(path.Child("securityContext", "windowsOptions"), "this node runs linux")
	}
	for i := range c.VolumeMounts {
		if len(c.VolumeMounts[i].BindMountOptions) > 0 {
			v.forbidden(path.Child("volumeMounts").Index(i).Child("bindMountOptions"), "CRI has no field for them")
		}
	}
	v.unsupportedHandlers(path, c)
}

// unsupportedHandlers checks the protocols of probes and hooks.
func (v *validator) unsupportedHandlers(path *field.Path, c *corev1.Container) {
	for _, p := range []struct {
		name  string
		probe *corev1.Probe
	}{{"livenessProbe", c.LivenessProbe}, {"readinessProbe", c.ReadinessProbe}, {"startupProbe", c.StartupProbe}} {
		if p.probe == nil {
			continue
		}
		v.unsupportedHTTP(path.Child(p.name), p.probe.HTTPGet)
		if g := p.probe.GRPC; g != nil && g.Mode != nil && *g.Mode != corev1.GRPCProbeModePlaintext {
			v.forbidden(path.Child(p.name, "grpc", "mode"), "gRPC probes are made without TLS")
		}
	}
	if l := c.Lifecycle; l != nil {
		if l.PostStart != nil {
			v.unsupportedHTTP(path.Child("lifecycle", "postStart"), l.PostStart.HTTPGet)
		}
		if l.PreStop != nil {
			v.unsupportedHTTP(path.Child("lifecycle", "preStop"), l.PreStop.HTTPGet)
		}
	}
}

func (v *validator) unsupportedHTTP(path *field.Path, get *corev1.HTTPGetAction) {
	if get != nil && get.Protocol != nil && *get.Protocol != corev1.HTTPProtocolHTTP1 {
		v.forbidden(path.Child("httpGet", "protocol"), "requests are made with HTTP/1.1")
	}
}
