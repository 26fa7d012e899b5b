package translate

import (
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

func podSecurity(pod *corev1.Pod) *corev1.PodSecurityContext {
	if pod.Spec.SecurityContext == nil {
		return &corev1.PodSecurityContext{}
	}
	return pod.Spec.SecurityContext
}

// effectiveSecurity is what a container says of itself, and where it says
// nothing what its pod says.
func effectiveSecurity(pod *corev1.Pod, spec *corev1.Container) *corev1.SecurityContext {
	var sc corev1.SecurityContext
	if spec.SecurityContext != nil {
		sc = *spec.SecurityContext
	}
	p := podSecurity(pod)
	sc.SELinuxOptions = either(sc.SELinuxOptions, p.SELinuxOptions)
	sc.RunAsUser = either(sc.RunAsUser, p.RunAsUser)
	sc.RunAsGroup = either(sc.RunAsGroup, p.RunAsGroup)
	sc.RunAsNonRoot = either(sc.RunAsNonRoot, p.RunAsNonRoot)
	sc.SeccompProfile = either(sc.SeccompProfile, p.SeccompProfile)
	sc.AppArmorProfile = either(sc.AppArmorProfile, appArmorAnnotation(pod, spec.Name), p.AppArmorProfile)
	return &sc
}

func either[T any](all ...*T) *T {
	for _, p := range all {
		if p != nil {
			return p
		}
	}
	return nil
}

// appArmorAnnotation reads the profile that manifests named before there was a
// field for it.
func appArmorAnnotation(pod *corev1.Pod, container string) *corev1.AppArmorProfile {
	const key = "container.apparmor.security.beta.kubernetes.io/"
	text, ok := pod.Annotations[key+container]
	if !ok {
		return nil
	}
	if ref, ok := strings.CutPrefix(text, "localhost/"); ok {
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost, LocalhostProfile: &ref}
	}
	switch text {
	case "runtime/default":
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}
	case "unconfined":
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
	}
	return nil
}

// sandboxSecurity translates the security context that the sandbox itself has.
func (tr *Translator) sandboxSecurity() (*v1.LinuxSandboxSecurityContext, error) {
	sc := podSecurity(tr.Pod)
	namespaces, err := tr.namespaces()
	if err != nil {
		return nil, err
	}
	policy, err := tr.groupsPolicy()
	if err != nil {
		return nil, err
	}
	return &v1.LinuxSandboxSecurityContext{
		NamespaceOptions: namespaces, SelinuxOptions: selinux(sc.SELinuxOptions),
		RunAsUser: int64Value(sc.RunAsUser), RunAsGroup: int64Value(sc.RunAsGroup),
		SupplementalGroups: tr.groups(), SupplementalGroupsPolicy: policy,
		Privileged: anyPrivileged(tr.Pod),
		// The sandbox's own process needs nothing that the runtime's profile
		// would refuse, whatever its containers need.
		Seccomp: &v1.SecurityProfile{ProfileType: v1.SecurityProfile_RuntimeDefault},
	}, nil
}

func int64Value(p *int64) *v1.Int64Value {
	if p == nil {
		return nil
	}
	return &v1.Int64Value{Value: *p}
}

func anyPrivileged(pod *corev1.Pod) bool {
	for ct := range podspec.Containers(pod) {
		if podspec.IsPrivileged(ct.SecurityContext) {
			return true
		}
	}
	return false
}

func selinux(o *corev1.SELinuxOptions) *v1.SELinuxOption {
	if o == nil {
		return nil
	}
	return &v1.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

// groups are the supplementary groups of every process of the pod, with those of its volumes.
func (tr *Translator) groups() []int64 {
	sc := podSecurity(tr.Pod)
	var out []int64
	if sc.FSGroup != nil {
		out = append(out, *sc.FSGroup)
	}
	of := slices.Clone(sc.SupplementalGroups)
	for _, name := range slices.Sorted(maps.Keys(tr.Options.Volumes)) {
		if g := tr.Options.Volumes[name].Group; g != nil {
			of = append(of, *g)
		}
	}
	for _, g := range of {
		if !slices.Contains(out, g) {
			out = append(out, g)
		}
	}
	return out
}

func (tr *Translator) groupsPolicy() (v1.SupplementalGroupsPolicy, error) {
	p := podSecurity(tr.Pod).SupplementalGroupsPolicy
	if p == nil || *p == corev1.SupplementalGroupsPolicyMerge {
		return v1.SupplementalGroupsPolicy_Merge, nil
	}
	if *p != corev1.SupplementalGroupsPolicyStrict {
		return 0, fmt.Errorf("supplementalGroupsPolicy %q is unknown: %w", *p, runtime.ErrInvalid)
	}
	if tr.Features != nil && !tr.Features.GroupsPolicy {
		return 0, fmt.Errorf("supplementalGroupsPolicy Strict: %w", runtime.ErrUnsupported)
	}
	return v1.SupplementalGroupsPolicy_Strict, nil
}

// containerSecurity translates a container's security context. The image tells
// the user where the spec does not.
func (tr *Translator) containerSecurity(spec *corev1.Container, image *v1.Image, targetID string) (*v1.LinuxContainerSecurityContext, error) {
	sc := effectiveSecurity(tr.Pod, spec)
	if err := checkNonRoot(sc, image); err != nil {
		return nil, err
	}
	seccomp, err := tr.seccomp(sc.SeccompProfile)
	if err != nil {
		return nil, err
	}
	armor, legacy, err := appArmor(sc.AppArmorProfile)
	if err != nil {
		return nil, err
	}
	namespaces, err := tr.namespaces()
	if err != nil {
		return nil, err
	}
	if targetID != "" && namespaces.Pid == v1.NamespaceMode_CONTAINER { // else it sees the target's processes anyway
		namespaces.Pid, namespaces.TargetId = v1.NamespaceMode_TARGET, targetID
	}
	policy, err := tr.groupsPolicy()
	if err != nil {
		return nil, err
	}
	out := &v1.LinuxContainerSecurityContext{
		Privileged: podspec.IsPrivileged(sc), NamespaceOptions: namespaces, SelinuxOptions: selinux(sc.SELinuxOptions),
		RunAsUser: int64Value(sc.RunAsUser), RunAsGroup: int64Value(sc.RunAsGroup),
		ReadonlyRootfs:     sc.ReadOnlyRootFilesystem != nil && *sc.ReadOnlyRootFilesystem,
		NoNewPrivs:         sc.AllowPrivilegeEscalation != nil && !*sc.AllowPrivilegeEscalation,
		SupplementalGroups: tr.groups(), SupplementalGroupsPolicy: policy,
		Seccomp: seccomp, Apparmor: armor, ApparmorProfile: legacy, //nolint:staticcheck // older runtimes read the old field
	}
	out.MaskedPaths, out.ReadonlyPaths = tr.procPaths(sc)
	if caps := sc.Capabilities; caps != nil {
		out.Capabilities = &v1.Capability{AddCapabilities: stringsOf(caps.Add), DropCapabilities: stringsOf(caps.Drop)}
	}
	if out.RunAsUser == nil {
		out.RunAsUser, out.RunAsUsername = image.GetUid(), image.GetUsername()
	}
	if out.RunAsUser != nil {
		out.RunAsUsername = "" // to a runtime the name comes before the id, which is what was checked
	}
	if out.RunAsGroup != nil && out.RunAsUser == nil && out.RunAsUsername == "" {
		// No user means root; runtimes reject a group without a user.
		out.RunAsUser = &v1.Int64Value{}
	}
	return out, nil
}

func stringsOf[T ~string](all []T) []string {
	var out []string
	for _, s := range all {
		out = append(out, string(s))
	}
	return out
}

// checkNonRoot refuses a container that says it does not run as root unless it
// is certain that it does not.
func checkNonRoot(sc *corev1.SecurityContext, image *v1.Image) error {
	if sc.RunAsNonRoot == nil || !*sc.RunAsNonRoot {
		return nil
	}
	switch {
	case sc.RunAsUser != nil && *sc.RunAsUser == 0:
		return fmt.Errorf("runAsNonRoot is true and runAsUser is 0: %w", runtime.ErrInvalid)
	case sc.RunAsUser != nil:
		return nil
	case image.GetUid().GetValue() < 0, image.GetUid().GetValue() > math.MaxInt32:
		// A runtime that cuts such a number off, as containerd did, makes root of it.
		return fmt.Errorf("runAsNonRoot is true and the image's user %d is not from 1 to %d: %w",
			image.GetUid().GetValue(), math.MaxInt32, runtime.ErrInvalid)
	case image.GetUid().GetValue() != 0:
		return nil
	case image.GetUid() == nil && image.GetUsername() != "":
		return fmt.Errorf("runAsNonRoot is true and the image's user %q is not a number, so that nothing is certain: %w",
			image.GetUsername(), runtime.ErrInvalid)
	}
	return fmt.Errorf("runAsNonRoot is true and the image runs as root: %w", runtime.ErrInvalid)
}

func (tr *Translator) seccomp(p *corev1.SeccompProfile) (*v1.SecurityProfile, error) {
	switch {
	case p == nil && tr.Node.SeccompDefault:
		return &v1.SecurityProfile{ProfileType: v1.SecurityProfile_RuntimeDefault}, nil
	case p == nil, p.Type == corev1.SeccompProfileTypeUnconfined:
		return &v1.SecurityProfile{ProfileType: v1.SecurityProfile_Unconfined}, nil
	case p.Type == corev1.SeccompProfileTypeRuntimeDefault:
		return &v1.SecurityProfile{ProfileType: v1.SecurityProfile_RuntimeDefault}, nil
	case p.Type != corev1.SeccompProfileTypeLocalhost:
		return nil, fmt.Errorf("seccompProfile type %q is unknown: %w", p.Type, runtime.ErrInvalid)
	case p.LocalhostProfile == nil || !filepath.IsLocal(*p.LocalhostProfile):
		return nil, fmt.Errorf("seccompProfile: localhostProfile must be a path below the node's profile directory: %w", runtime.ErrInvalid)
	}
	return &v1.SecurityProfile{
		ProfileType:  v1.SecurityProfile_Localhost,
		LocalhostRef: filepath.Join(tr.Node.SeccompRoot, *p.LocalhostProfile),
	}, nil
}

// appArmor returns the profile in the CRI's present and in its former form.
func appArmor(p *corev1.AppArmorProfile) (*v1.SecurityProfile, string, error) {
	if p == nil {
		return nil, "", nil
	}
	switch p.Type {
	case corev1.AppArmorProfileTypeRuntimeDefault:
		return &v1.SecurityProfile{ProfileType: v1.SecurityProfile_RuntimeDefault}, "runtime/default", nil
	case corev1.AppArmorProfileTypeUnconfined:
		return &v1.SecurityProfile{ProfileType: v1.SecurityProfile_Unconfined}, "unconfined", nil
	case corev1.AppArmorProfileTypeLocalhost:
		if p.LocalhostProfile == nil || *p.LocalhostProfile == "" {
			return nil, "", fmt.Errorf("appArmorProfile: localhostProfile is missing: %w", runtime.ErrInvalid)
		}
		return &v1.SecurityProfile{ProfileType: v1.SecurityProfile_Localhost, LocalhostRef: *p.LocalhostProfile},
			"localhost/" + *p.LocalhostProfile, nil
	}
	return nil, "", fmt.Errorf("appArmorProfile type %q is unknown: %w", p.Type, runtime.ErrInvalid)
}

// procPaths returns what a container must not see and what it must not change
// of the kernel's files.
func (tr *Translator) procPaths(sc *corev1.SecurityContext) (masked, readonly []string) {
	if sc.ProcMount != nil && *sc.ProcMount == corev1.UnmaskedProcMount {
		return nil, nil
	}
	masked = []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
		"/sys/devices/virtual/powercap",
	}
	return append(masked, tr.Node.MaskedPaths...),
		[]string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
}
