package admission

import (
	"bytes"
	"io/fs"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

// HasAppArmor reports whether the kernel confines processes with AppArmor, for Config.NoAppArmor. root
// is the root directory of the machine.
func HasAppArmor(root fs.FS) bool {
	enabled, err := fs.ReadFile(root, "sys/module/apparmor/parameters/enabled")
	return err == nil && bytes.HasPrefix(enabled, []byte("Y"))
}

// appArmor rejects a pod that is to be confined on a node that cannot do it: a runtime may ignore
// that, or never create its containers. A pod that was started before is not checked.
func (a *Admitter) appArmor(pod *corev1.Pod, _ []*corev1.Pod) podspec.AdmitResult {
	started := pod.Status.Phase != corev1.PodPending && pod.Status.Phase != ""
	if !a.cfg.NoAppArmor || started || !needsAppArmor(pod) {
		return podspec.Admitted()
	}
	return podspec.Rejected(ReasonAppArmor, "AppArmor is not enabled in the kernel of the node")
}

// needsAppArmor reports whether a pod names an AppArmor profile, in its spec or in an annotation.
func needsAppArmor(pod *corev1.Pod) bool {
	confines := func(p *corev1.AppArmorProfile) bool {
		return p != nil && p.Type != corev1.AppArmorProfileTypeUnconfined
	}
	if sc := pod.Spec.SecurityContext; sc != nil && confines(sc.AppArmorProfile) {
		return true
	}
	for c := range podspec.Containers(pod) {
		if c.SecurityContext != nil && confines(c.SecurityContext.AppArmorProfile) {
			return true
		}
	}
	for key, profile := range pod.Annotations {
		if strings.HasPrefix(key, corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix) && profile != corev1.DeprecatedAppArmorBetaProfileNameUnconfined {
			return true
		}
	}
	return false
}
