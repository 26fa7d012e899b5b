package podspec

import (
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func (v *validator) podSecurity(path *field.Path) {
	spec := &v.pod.Spec
	if spec.HostPID && spec.ShareProcessNamespace != nil && *spec.ShareProcessNamespace {
		v.forbidden(path.Child("shareProcessNamespace"), "not together with hostPID")
	}
	if !UsesHostUsers(v.pod) {
		for _, f := range []struct {
			name string
			set  bool
		}{{"hostNetwork", spec.HostNetwork}, {"hostPID", spec.HostPID}, {"hostIPC", spec.HostIPC}} {
			if f.set {
				v.forbidden(path.Child(f.name), "not for a pod with a user namespace of its own (hostUsers: false)")
			}
		}
	}
	sc, at := spec.SecurityContext, path.Child("securityContext")
	if sc == nil {
		return
	}
	v.id(at.Child("runAsUser"), sc.RunAsUser)
	v.id(at.Child("runAsGroup"), sc.RunAsGroup)
	v.id(at.Child("fsGroup"), sc.FSGroup)
	for i := range sc.SupplementalGroups {
		v.id(at.Child("supplementalGroups").Index(i), &sc.SupplementalGroups[i])
	}
	if p := sc.FSGroupChangePolicy; p != nil {
		oneOf(v, at.Child("fsGroupChangePolicy"), *p, corev1.FSGroupChangeOnRootMismatch, corev1.FSGroupChangeAlways)
	}
	if p := sc.SupplementalGroupsPolicy; p != nil {
		oneOf(v, at.Child("supplementalGroupsPolicy"), *p, corev1.SupplementalGroupsPolicyMerge, corev1.SupplementalGroupsPolicyStrict)
	}
	if p := sc.SELinuxChangePolicy; p != nil {
		oneOf(v, at.Child("seLinuxChangePolicy"), *p, corev1.SELinuxChangePolicyRecursive, corev1.SELinuxChangePolicyMountOption)
	}
	v.profiles(at, sc.SeccompProfile, sc.AppArmorProfile)
	v.sysctls(at.Child("sysctls"), sc.Sysctls)
}

// id checks a user or group id: the API allows 0 to 2147483647.
func (v *validator) id(path *field.Path, id *int64) {
	if id != nil && (*id < 0 || *id > math.MaxInt32) {
		v.invalid(path, *id, "must be between 0 and 2147483647")
	}
}

func (v *validator) profiles(path *field.Path, seccomp *corev1.SeccompProfile, apparmor *corev1.AppArmorProfile) {
	if seccomp != nil {
		at := path.Child("seccompProfile")
		oneOf(v, at.Child("type"), seccomp.Type, corev1.SeccompProfileTypeUnconfined,
			corev1.SeccompProfileTypeRuntimeDefault, corev1.SeccompProfileTypeLocalhost)
		v.localProfile(at, seccomp.Type == corev1.SeccompProfileTypeLocalhost, seccomp.LocalhostProfile, isInside)
	}
	if apparmor != nil {
		at := path.Child("appArmorProfile")
		oneOf(v, at.Child("type"), apparmor.Type, corev1.AppArmorProfileTypeUnconfined,
			corev1.AppArmorProfileTypeRuntimeDefault, corev1.AppArmorProfileTypeLocalhost)
		v.localProfile(at, apparmor.Type == corev1.AppArmorProfileTypeLocalhost, apparmor.LocalhostProfile, isAppArmorProfile)
	}
}

// maxAppArmorProfile is the maximum length of the name of a profile in the API.
const maxAppArmorProfile = 4095

// isAppArmorProfile reports whether s can be the name of a profile in the kernel, which may
// have the form of a path.
func isAppArmorProfile(name string) []string {
	switch {
	case strings.TrimSpace(name) != name:
		return []string{"must not begin or end with white space"}
	case len(name) > maxAppArmorProfile:
		return []string{fmt.Sprintf("must be no longer than %d bytes", maxAppArmorProfile)}
	}
	return nil
}

func (v *validator) localProfile(path *field.Path, local bool, name *string, check func(string) []string) {
	at := path.Child("localhostProfile")
	switch {
	case local && (name == nil || *name == ""):
		v.required(at, "for type Localhost")
	case !local && name != nil:
		v.forbidden(at, "only for type Localhost")
	case local:
		v.check(at, *name, check)
	}
}

func (v *validator) sysctls(path *field.Path, sysctls []corev1.Sysctl) {
	names := make(map[string]bool)
	for i, s := range sysctls {
		at := path.Index(i).Child("name")
		v.need(at, s.Name, isSysctl)
		v.unique(at, s.Name, names) // of one that has two spellings the last value counts
		name := SysctlName(s.Name)
		if v.pod.Spec.HostNetwork && strings.HasPrefix(name, "net.") {
			v.forbidden(at, "would change the host: the pod has its network")
		}
		ipc := strings.HasPrefix(name, "kernel.shm") || strings.HasPrefix(name, "kernel.msg") ||
			strings.HasPrefix(name, "fs.mqueue.") || name == "kernel.sem"
		if v.pod.Spec.HostIPC && ipc {
			v.forbidden(at, "would change the host: the pod has its IPC")
		}
	}
}

// isSysctl reports whether a name leads to a file below /proc/sys and nowhere else.
func isSysctl(name string) []string {
	const message = "must be parts of lower-case letters, digits, '-' and '_' that begin and end with a letter or digit, with '.' or '/' between them"
	for part := range strings.FieldsFuncSeq(name, func(r rune) bool { return r == '.' || r == '/' }) {
		if strings.Trim(part, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" || strings.Trim(part, "-_") != part {
			return []string{message}
		}
	}
	edge := strings.Trim(name, "./") != name
	if edge || strings.Contains(name, "..") || strings.Contains(name, "//") || len(name) > 253 {
		return []string{message}
	}
	return nil
}

func (v *validator) containerSecurity(path *field.Path, sc *corev1.SecurityContext) {
	v.id(path.Child("runAsUser"), sc.RunAsUser)
	v.id(path.Child("runAsGroup"), sc.RunAsGroup)
	v.profiles(path, sc.SeccompProfile, sc.AppArmorProfile)
	if p := sc.ProcMount; p != nil {
		oneOf(v, path.Child("procMount"), *p, corev1.DefaultProcMount, corev1.UnmaskedProcMount)
		if *p == corev1.UnmaskedProcMount && UsesHostUsers(v.pod) {
			v.invalid(path.Child("procMount"), *p, "Unmasked needs a user namespace of the pod's own (hostUsers: false)")
		}
	}
	if sc.AllowPrivilegeEscalation == nil || *sc.AllowPrivilegeEscalation {
		return
	}
	at := path.Child("allowPrivilegeEscalation")
	if IsPrivileged(sc) {
		v.invalid(at, false, "cannot be kept from a privileged container")
	}
	if sc.Capabilities == nil {
		return
	}
	// As in an API server, which accepts the spelling without CAP_.
	if slices.Contains(sc.Capabilities.Add, "CAP_SYS_ADMIN") {
		v.invalid(at, false, "cannot be kept from a container with CAP_SYS_ADMIN")
	}
}
