package translate

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// Mounts translates a container's volume mounts, in their order. imageIDs are
// those of image volumes, by the volume's name.
func (tr *Translator) Mounts(ctx context.Context, spec *corev1.Container, env []EnvVar, imageIDs map[string]string) ([]*v1.Mount, error) {
	var out []*v1.Mount
	for i, vm := range spec.VolumeMounts {
		m, err := tr.mount(ctx, spec, i, vm, env, imageIDs)
		if err != nil {
			return nil, fmt.Errorf("mount %q at %s: %w", vm.Name, vm.MountPath, err)
		}
		out = append(out, m)
	}
	return out, nil
}

func (tr *Translator) mount(ctx context.Context, spec *corev1.Container, index int, vm corev1.VolumeMount, env []EnvVar, imageIDs map[string]string,
) (*v1.Mount, error) {
	volume, ok := tr.Options.Volumes[vm.Name]
	if !ok {
		return nil, fmt.Errorf("the volume is not mounted on the node: %w", runtime.ErrNotReady)
	}
	subPath, err := expandSubPath(&vm, env)
	if err != nil {
		return nil, err
	}
	propagation, err := propagationOf(vm.MountPropagation, podspec.IsPrivileged(spec.SecurityContext))
	if err != nil {
		return nil, err
	}
	m := &v1.Mount{
		ContainerPath: AbsolutePath(vm.MountPath), HostPath: volume.HostPath, Readonly: vm.ReadOnly || volume.ReadOnly,
		SelinuxRelabel: tr.Node.SELinux && volume.SELinuxRelabel,
		Propagation:    propagation, MountOptions: slices.Clone(vm.BindMountOptions),
		UidMappings: tr.MountIDs(tr.Options.UIDMappings), GidMappings: tr.MountIDs(tr.Options.GIDMappings),
	}
	if m.RecursiveReadOnly, err = tr.recursiveReadOnly(vm); err != nil {
		return nil, err
	}
	if volume.Image != "" {
		if err := tr.CheckImageVolumes(vm.Name); err != nil {
			return nil, err
		}
		m.HostPath, m.Readonly, m.SelinuxRelabel, m.ImageSubPath = "", true, false, subPath
		if tr.Features == nil || !tr.Features.MapsImageVolumes { // its files belong to the user 65534 then, and most can be read
			m.UidMappings, m.GidMappings = nil, nil
		}
		m.Image = &v1.ImageSpec{
			Image: cmp.Or(imageIDs[vm.Name], volume.Image), UserSpecifiedImage: volume.Image,
			RuntimeHandler: RuntimeHandler(tr.Pod), Annotations: tr.Pod.Annotations,
		}
		return m, nil
	}
	if subPath == "" {
		return m, nil
	}
	if tr.Options.SubPath == nil {
		return nil, fmt.Errorf("subPath: %w", runtime.ErrUnsupported)
	}
	vm.SubPath, vm.SubPathExpr = subPath, ""
	m.HostPath, err = tr.Options.SubPath(ctx, spec.Name, index, vm)
	return m, err
}

// CheckImageVolumes refuses a volume of a kind that the runtime is known not to have.
func (tr *Translator) CheckImageVolumes(name string) error {
	if tr.Features == nil || !tr.Features.NoImageVolumes {
		return nil
	}
	index := slices.IndexFunc(tr.Pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == name })
	return fmt.Errorf("spec.volumes[%d].image: %s has no image volumes: %w", index, tr.Features.name(), runtime.ErrUnsupported)
}

// MountIDs are the id mappings of a mount into a container of the pod: none without a
// user namespace.
func (tr *Translator) MountIDs(ids []runtime.IDMapping) []*v1.IDMapping {
	if podspec.UsesHostUsers(tr.Pod) {
		return nil
	}
	return idMappings(ids)
}

// expandSubPath returns where in its volume a mount begins. An expression that
// names an unknown or empty variable is an error: another directory would be
// mounted, or all of the volume.
func expandSubPath(vm *corev1.VolumeMount, env []EnvVar) (string, error) {
	sub := vm.SubPath
	if vm.SubPathExpr != "" {
		var missing []string
		lookup := lookupIn(env)
		sub = podspec.Expand(vm.SubPathExpr, func(name string) (string, bool) {
			value, ok := lookup(name)
			if !ok || value == "" {
				missing = append(missing, name)
			}
			return value, ok
		})
		if len(missing) > 0 {
			return "", fmt.Errorf("subPathExpr %q names variables that are not set or empty: %s: %w",
				vm.SubPathExpr, strings.Join(missing, ", "), runtime.ErrInvalid)
		}
	}
	if path.IsAbs(sub) || slices.Contains(strings.Split(sub, "/"), "..") {
		return "", fmt.Errorf("subPath must be relative and stay in the volume: %w", runtime.ErrInvalid)
	}
	return sub, nil
}

// AbsolutePath returns a path in a container as the runtime gets it.
func AbsolutePath(p string) string {
	if strings.HasPrefix(p, "/") {
		return p
	}
	return "/" + p
}

func propagationOf(mode *corev1.MountPropagationMode, privileged bool) (v1.MountPropagation, error) {
	if mode == nil {
		return v1.MountPropagation_PROPAGATION_PRIVATE, nil
	}
	switch *mode {
	case corev1.MountPropagationNone:
		return v1.MountPropagation_PROPAGATION_PRIVATE, nil
	case corev1.MountPropagationHostToContainer:
		return v1.MountPropagation_PROPAGATION_HOST_TO_CONTAINER, nil
	case corev1.MountPropagationBidirectional:
		if !privileged {
			return 0, fmt.Errorf("mountPropagation Bidirectional is for privileged containers only: %w", runtime.ErrInvalid)
		}
		return v1.MountPropagation_PROPAGATION_BIDIRECTIONAL, nil
	}
	return 0, fmt.Errorf("mountPropagation %q is unknown: %w", *mode, runtime.ErrInvalid)
}

// recursiveReadOnly says whether what is mounted below a mount is to be
// read-only as well.
func (tr *Translator) recursiveReadOnly(vm corev1.VolumeMount) (bool, error) {
	if vm.RecursiveReadOnly == nil || *vm.RecursiveReadOnly == corev1.RecursiveReadOnlyDisabled {
		return false, nil
	}
	able := tr.Features != nil && tr.Features.RecursiveReadOnly[RuntimeHandler(tr.Pod)]
	sound := vm.ReadOnly && (vm.MountPropagation == nil || *vm.MountPropagation == corev1.MountPropagationNone)
	switch {
	case *vm.RecursiveReadOnly == corev1.RecursiveReadOnlyIfPossible:
		return able && sound, nil
	case *vm.RecursiveReadOnly != corev1.RecursiveReadOnlyEnabled:
		return false, fmt.Errorf("recursiveReadOnly %q is unknown: %w", *vm.RecursiveReadOnly, runtime.ErrInvalid)
	case !sound:
		return false, fmt.Errorf("recursiveReadOnly needs readOnly and no mount propagation: %w", runtime.ErrInvalid)
	case !able:
		return false, fmt.Errorf("recursiveReadOnly: %w", runtime.ErrUnsupported)
	}
	return true, nil
}
