package podspec

import (
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func (v *validator) volumeList(path *field.Path) {
	names := make(map[string]bool)
	for i := range v.pod.Spec.Volumes {
		vol, at := &v.pod.Spec.Volumes[i], path.Index(i)
		v.need(at.Child("name"), vol.Name, validation.IsDNS1123Label)
		v.unique(at.Child("name"), vol.Name, names)
		v.volumes[vol.Name] = vol
		switch sources := setFields(vol.VolumeSource); {
		case len(sources) == 0:
			v.required(at, "a volume source")
		case len(sources) > 1:
			v.forbidden(at, "more than one volume source: "+strings.Join(sources, ", "))
		}
		v.volume(at, vol)
	}
}

// setFields returns the JSON names of the pointer fields of a struct that are not nil.
func setFields(s any) []string {
	var set []string
	value := reflect.ValueOf(s)
	for i := range value.NumField() {
		if f := value.Field(i); f.Kind() == reflect.Pointer && !f.IsNil() {
			name, _, _ := strings.Cut(value.Type().Field(i).Tag.Get("json"), ",")
			set = append(set, name)
		}
	}
	return set
}

func (v *validator) volume(path *field.Path, vol *corev1.Volume) {
	if vol.EmptyDir != nil {
		v.emptyDir(path.Child("emptyDir"), vol.EmptyDir)
	}
	if vol.HostPath != nil {
		v.hostPath(path.Child("hostPath"), vol.HostPath)
	}
	if s := vol.Secret; s != nil {
		at := path.Child("secret")
		v.need(at.Child("secretName"), s.SecretName, nil)
		v.mode(at.Child("defaultMode"), s.DefaultMode)
		v.items(at.Child("items"), s.Items, nil)
	}
	if c := vol.ConfigMap; c != nil {
		at := path.Child("configMap")
		v.need(at.Child("name"), c.Name, nil)
		v.mode(at.Child("defaultMode"), c.DefaultMode)
		v.items(at.Child("items"), c.Items, nil)
	}
	if d := vol.DownwardAPI; d != nil {
		v.mode(path.Child("downwardAPI", "defaultMode"), d.DefaultMode)
		v.downward(path.Child("downwardAPI", "items"), d.Items, nil)
	}
	if p := vol.Projected; p != nil {
		names := make(map[string]bool) // sources of their own must not write over each other's files
		v.mode(path.Child("projected", "defaultMode"), p.DefaultMode)
		for i := range p.Sources {
			v.projection(path.Child("projected", "sources").Index(i), &p.Sources[i], names)
		}
	}
	if i := vol.Image; i != nil {
		v.need(path.Child("image", "reference"), i.Reference, isTrimmed)
		oneOf(v, path.Child("image", "pullPolicy"), i.PullPolicy, corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever)
	}
}

func (v *validator) emptyDir(path *field.Path, e *corev1.EmptyDirVolumeSource) {
	if e.SizeLimit != nil && e.SizeLimit.Sign() < 0 {
		v.invalid(path.Child("sizeLimit"), e.SizeLimit.String(), "must be at least 0")
	}
}

func (v *validator) hostPath(at *field.Path, h *corev1.HostPathVolumeSource) {
	v.need(at.Child("path"), h.Path, noTraversal)
	if h.Type != nil && *h.Type != corev1.HostPathUnset {
		oneOf(v, at.Child("type"), *h.Type, corev1.HostPathDirectoryOrCreate, corev1.HostPathDirectory,
			corev1.HostPathFileOrCreate, corev1.HostPathFile, corev1.HostPathSocket,
			corev1.HostPathCharDev, corev1.HostPathBlockDev)
	}
}

func (v *validator) projection(path *field.Path, p *corev1.VolumeProjection, names map[string]bool) {
	if len(setFields(*p)) > 1 { // none is an empty source, which an API server accepts
		v.exactlyOne(path, true, true)
	}
	if p.Secret != nil {
		v.need(path.Child("secret", "name"), p.Secret.Name, nil)
		v.items(path.Child("secret", "items"), p.Secret.Items, names)
	}
	if p.ConfigMap != nil {
		v.need(path.Child("configMap", "name"), p.ConfigMap.Name, nil)
		v.items(path.Child("configMap", "items"), p.ConfigMap.Items, names)
	}
	if p.DownwardAPI != nil {
		v.downward(path.Child("downwardAPI", "items"), p.DownwardAPI.Items, names)
	}
	if p.ServiceAccountToken != nil { // the last one wins, as with an API server
		v.filePath(path.Child("serviceAccountToken", "path"), p.ServiceAccountToken.Path, nil)
	}
	if p.ClusterTrustBundle != nil {
		v.filePath(path.Child("clusterTrustBundle", "path"), p.ClusterTrustBundle.Path, names)
	}
	if c := p.PodCertificate; c != nil {
		for _, file := range [][2]string{{"credentialBundlePath", c.CredentialBundlePath}, {"keyPath", c.KeyPath}, {"certificateChainPath", c.CertificateChainPath}} {
			if file[1] != "" {
				v.filePath(path.Child("podCertificate", file[0]), file[1], names)
			}
		}
	}
}

func (v *validator) items(path *field.Path, items []corev1.KeyToPath, names map[string]bool) {
	for i, item := range items {
		v.need(path.Index(i).Child("key"), item.Key, nil)
		v.filePath(path.Index(i).Child("path"), item.Path, names)
		v.mode(path.Index(i).Child("mode"), item.Mode)
	}
}

func (v *validator) downward(path *field.Path, items []corev1.DownwardAPIVolumeFile, names map[string]bool) {
	for i, item := range items {
		at := path.Index(i)
		v.filePath(at.Child("path"), item.Path, names)
		v.mode(at.Child("mode"), item.Mode)
		v.exactlyOne(at, item.FieldRef != nil, item.ResourceFieldRef != nil)
		if item.FieldRef != nil {
			v.fieldRef(at.Child("fieldRef"), item.FieldRef, false)
		}
		if r := item.ResourceFieldRef; r != nil {
			v.resourceRef(at.Child("resourceFieldRef"), r)
			if r.ContainerName == "" {
				v.required(at.Child("resourceFieldRef", "containerName"), "a volume is of no one container")
			}
		}
	}
}

// filePath checks the path of a file in a volume. Names that begin with two dots are
// reserved for the volume. If names is nil, a path may occur twice: the last one wins.
func (v *validator) filePath(path *field.Path, p string, names map[string]bool) {
	v.need(path, p, isInside)
	if strings.HasPrefix(p, "..") && isInside(p) == nil {
		v.invalid(path, p, "must not start with '..'")
	}
	if names != nil {
		v.unique(path, p, names)
	}
}

func (v *validator) mode(path *field.Path, mode *int32) {
	if mode != nil && (*mode < 0 || *mode > 0o777) {
		v.invalid(path, *mode, "must be between 0 and 0777")
	}
}
