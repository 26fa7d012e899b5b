package podspec

import (
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func (v *validator) env(path *field.Path, c *corev1.Container) {
	for i := range c.Env {
		e, at := &c.Env[i], path.Child("env").Index(i)
		v.need(at.Child("name"), e.Name, validation.IsRelaxedEnvVarName)
		if e.ValueFrom == nil {
			continue
		}
		if e.Value != "" {
			v.forbidden(at.Child("valueFrom"), "not together with value")
		}
		v.envSource(at.Child("valueFrom"), e.ValueFrom)
	}
	for i := range c.EnvFrom {
		e, at := &c.EnvFrom[i], path.Child("envFrom").Index(i)
		if e.Prefix != "" {
			v.check(at.Child("prefix"), e.Prefix, validation.IsRelaxedEnvVarName)
		}
		v.exactlyOne(at, e.ConfigMapRef != nil, e.SecretRef != nil)
		if e.ConfigMapRef != nil {
			v.need(at.Child("configMapRef", "name"), e.ConfigMapRef.Name, isNameOrPrefix)
		}
		if e.SecretRef != nil {
			v.need(at.Child("secretRef", "name"), e.SecretRef.Name, isNameOrPrefix)
		}
	}
}

// isNameOrPrefix checks the name of an object whose variables a container gets. As in an API server, it may
// end in a hyphen: no object has such a name, but the source can be optional.
func isNameOrPrefix(name string) []string { return apivalidation.NameIsDNSSubdomain(name, true) }

func (v *validator) exactlyOne(path *field.Path, set ...bool) {
	n := 0
	for _, s := range set {
		if s {
			n++
		}
	}
	switch {
	case n == 0:
		v.required(path, "exactly one of its sources")
	case n > 1:
		v.forbidden(path, "only one of its sources")
	}
}

func (v *validator) envSource(path *field.Path, s *corev1.EnvVarSource) {
	v.exactlyOne(path, s.FieldRef != nil, s.ResourceFieldRef != nil, s.ConfigMapKeyRef != nil,
		s.SecretKeyRef != nil, s.FileKeyRef != nil)
	if s.FieldRef != nil {
		v.fieldRef(path.Child("fieldRef"), s.FieldRef, true)
	}
	if s.ResourceFieldRef != nil {
		v.resourceRef(path.Child("resourceFieldRef"), s.ResourceFieldRef)
	}
	if r := s.ConfigMapKeyRef; r != nil {
		v.keyRef(path.Child("configMapKeyRef"), r.Name, r.Key)
	}
	if r := s.SecretKeyRef; r != nil {
		v.keyRef(path.Child("secretKeyRef"), r.Name, r.Key)
	}
	if r := s.FileKeyRef; r != nil {
		v.fileKeyRef(path.Child("fileKeyRef"), r)
	}
}

// fileKeyRef checks a variable in a file of an emptyDir volume.
func (v *validator) fileKeyRef(path *field.Path, r *corev1.FileKeySelector) {
	v.need(path.Child("key"), r.Key, validation.IsRelaxedEnvVarName)
	v.need(path.Child("path"), r.Path, noTraversal)
	at := path.Child("volumeName")
	v.need(at, r.VolumeName, nil)
	volume := v.volumes[r.VolumeName]
	switch {
	case r.VolumeName == "":
	case volume == nil:
		v.errs = append(v.errs, field.NotFound(at, r.VolumeName))
	case volume.EmptyDir == nil:
		v.invalid(at, r.VolumeName, "must be an emptyDir volume")
	}
}

func (v *validator) keyRef(path *field.Path, name, key string) {
	v.need(path.Child("name"), name, validation.IsDNS1123Subdomain)
	v.need(path.Child("key"), key, validation.IsConfigMapKey)
}

func (v *validator) fieldRef(path *field.Path, f *corev1.ObjectFieldSelector, env bool) {
	if f.APIVersion != "" && f.APIVersion != "v1" {
		v.errs = append(v.errs, field.NotSupported(path.Child("apiVersion"), f.APIVersion, []string{"v1"}))
	}
	if f.FieldPath == "" {
		v.required(path.Child("fieldPath"), "")
	} else if !isFieldPath(f.FieldPath, env) {
		v.invalid(path.Child("fieldPath"), f.FieldPath, "cannot be used in a fieldRef here")
	}
}

func (v *validator) resourceRef(path *field.Path, r *corev1.ResourceFieldSelector) {
	switch _, name, ok := strings.Cut(r.Resource, "."); {
	case r.Resource == "":
		v.required(path.Child("resource"), "")
	case !ok || !isResourcePath(r.Resource, name):
		v.invalid(path.Child("resource"), r.Resource, "must be limits or requests of cpu, memory, ephemeral-storage or hugepages")
	case !divisible(corev1.ResourceName(name), r.Divisor):
		v.invalid(path.Child("divisor"), r.Divisor.String(), "invalid unit for this resource")
	}
}

func (v *validator) mounts(path *field.Path, c *corev1.Container) {
	paths := make(map[string]bool)
	for i := range c.VolumeMounts {
		m, at := &c.VolumeMounts[i], path.Child("volumeMounts").Index(i)
		v.need(at.Child("name"), m.Name, nil)
		if _, known := v.volumes[m.Name]; !known && m.Name != "" {
			v.errs = append(v.errs, field.NotFound(at.Child("name"), m.Name))
		}
		v.need(at.Child("mountPath"), m.MountPath, nil)
		v.unique(at.Child("mountPath"), m.MountPath, paths)
		v.subPath(at, m)
		v.propagation(at, m, c)
		options := make(map[string]bool)
		for j, o := range m.BindMountOptions {
			oneOf(v, at.Child("bindMountOptions").Index(j), o, "noexec", "nodev", "nosuid")
			v.unique(at.Child("bindMountOptions").Index(j), o, options)
		}
	}
	for i := range c.VolumeDevices {
		d, at := &c.VolumeDevices[i], path.Child("volumeDevices").Index(i)
		v.need(at.Child("name"), d.Name, nil)
		v.need(at.Child("devicePath"), d.DevicePath, nil)
		v.unique(at.Child("devicePath"), d.DevicePath, paths)
	}
}

func (v *validator) subPath(path *field.Path, m *corev1.VolumeMount) {
	if m.SubPath != "" {
		v.check(path.Child("subPath"), m.SubPath, isInside)
	}
	if m.SubPathExpr != "" {
		v.check(path.Child("subPathExpr"), m.SubPathExpr, isInside)
		if m.SubPath != "" {
			v.forbidden(path.Child("subPathExpr"), "not together with subPath")
		}
	}
}

// isInside reports whether a path is relative and does not leave its start directory.
func isInside(p string) []string {
	if path.IsAbs(p) {
		return []string{"must be a relative path"}
	}
	return noTraversal(p)
}

func noTraversal(p string) []string {
	for part := range strings.SplitSeq(p, "/") {
		if part == ".." {
			return []string{"must not contain '..'"}
		}
	}
	return nil
}

func (v *validator) propagation(path *field.Path, m *corev1.VolumeMount, c *corev1.Container) {
	mode := corev1.MountPropagationNone
	if m.MountPropagation != nil {
		mode = *m.MountPropagation
	}
	at := path.Child("mountPropagation")
	oneOf(v, at, mode, corev1.MountPropagationNone, corev1.MountPropagationHostToContainer, corev1.MountPropagationBidirectional)
	if mode == corev1.MountPropagationBidirectional && !IsPrivileged(c.SecurityContext) {
		v.forbidden(at, "Bidirectional is for privileged containers")
	}
	if m.RecursiveReadOnly == nil {
		return
	}
	at = path.Child("recursiveReadOnly")
	oneOf(v, at, *m.RecursiveReadOnly, corev1.RecursiveReadOnlyDisabled, corev1.RecursiveReadOnlyEnabled, corev1.RecursiveReadOnlyIfPossible)
	if *m.RecursiveReadOnly == corev1.RecursiveReadOnlyDisabled {
		return
	}
	if !m.ReadOnly {
		v.forbidden(at, "only for a mount with readOnly")
	}
	if mode != corev1.MountPropagationNone {
		v.forbidden(at, "only for a mount without propagation")
	}
}
