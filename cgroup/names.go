package cgroup

import (
	"fmt"
	"path"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Driver is how cgroups are named, as the kubelet's setting cgroupDriver. Agent and
// runtime must use the same driver.
type Driver string

// The drivers, by the names that runtimes use.
const (
	Cgroupfs Driver = "cgroupfs" // /kubepods/burstable/pod1f2e
	Systemd  Driver = "systemd"  // /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1f2e.slice
)

const (
	nodeGroup   = "kubepods"
	podPrefix   = "pod"
	slice       = ".slice"
	maxNameSize = 200 // of a UID: names of files have at most 255 bytes
)

// In the name of a slice a hyphen separates it from its parent, so that there is an underscore for each in a UID, as with the
// kubelet. An underscore has systemd's escape: with its own name, a pod would be taken for another one.
//
//nolint:gochecknoglobals // constants
var (
	toUnit   = strings.NewReplacer("-", "_", "_", `\x5f`)
	fromUnit = strings.NewReplacer("_", "-", `\x5f`, "_")
)

// tiers returns all QoS classes. The cgroup of guaranteed pods is that of all pods, as in
// the kubelet.
func tiers() []corev1.PodQOSClass {
	return []corev1.PodQOSClass{corev1.PodQOSGuaranteed, corev1.PodQOSBurstable, corev1.PodQOSBestEffort}
}

// names has the names of cgroups: paths below the root of a hierarchy, with a leading
// slash.
type names struct {
	driver Driver
	parent string // clean, absolute; "/" is the root
}

// group returns the cgroup with the given elements below the parent, for example kubepods,
// burstable, pod1.
func (n names) group(elements ...string) string {
	if n.driver != Systemd {
		return path.Join(append([]string{n.parent}, elements...)...)
	}
	// The name of a slice contains those of its parents: a-b.slice is below a.slice.
	at, unit := n.parent, strings.TrimSuffix(path.Base(n.parent), slice)
	if n.parent == "/" {
		unit = ""
	}
	for _, e := range elements {
		e = toUnit.Replace(e)
		if unit != "" {
			e = unit + "-" + e
		}
		unit = e
		at = path.Join(at, unit+slice)
	}
	return at
}

// tier returns the cgroup of a QoS class.
func (n names) tier(q corev1.PodQOSClass) string { return n.group(tierElements(q)...) }

func tierElements(q corev1.PodQOSClass) []string {
	switch q {
	case corev1.PodQOSBurstable:
		return []string{nodeGroup, "burstable"}
	case corev1.PodQOSBestEffort:
		return []string{nodeGroup, "besteffort"}
	default:
		return []string{nodeGroup}
	}
}

// pod returns the cgroup of a pod.
func (n names) pod(q corev1.PodQOSClass, uid types.UID) (string, error) {
	if err := checkUID(uid); err != nil {
		return "", err
	}
	return n.group(append(tierElements(q), podPrefix+string(uid))...), nil
}

// uid returns the pod whose cgroup has the given name in the directory of a QoS class.
func (n names) uid(q corev1.PodQOSClass, name string) (types.UID, bool) {
	if n.driver == Systemd {
		prefix := strings.TrimSuffix(path.Base(n.tier(q)), slice) + "-"
		var ok bool
		if name, ok = strings.CutPrefix(name, prefix); !ok {
			return "", false
		}
		if name, ok = strings.CutSuffix(name, slice); !ok {
			return "", false
		}
		name = fromUnit.Replace(name)
	}
	id, ok := strings.CutPrefix(name, podPrefix)
	uid := types.UID(id)
	return uid, ok && checkUID(uid) == nil
}

// checkUID returns an error for a UID that cannot be one element of a path.
func checkUID(uid types.UID) error {
	if len(uid) == 0 || len(uid) > maxNameSize {
		return fmt.Errorf("pod UID of %d bytes cannot name a cgroup", len(uid))
	}
	for i, r := range uid {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_', r == '.' && i > 0:
		default:
			return fmt.Errorf("pod UID %q cannot name a cgroup", string(uid))
		}
	}
	return nil
}

// checkParent returns an error for a parent that is invalid with the driver.
func checkParent(d Driver, parent string) error {
	if !path.IsAbs(parent) || path.Clean(parent) != parent {
		return fmt.Errorf("cgroup parent %q is not a clean absolute path", parent)
	}
	if d != Systemd || parent == "/" {
		return nil
	}
	unit := ""
	for e := range strings.SplitSeq(parent[1:], "/") {
		name, ok := strings.CutSuffix(e, slice)
		if !ok || !regexp.MustCompile(`^[A-Za-z0-9_.:]+$`).MatchString(strings.TrimPrefix(name, unit)) || !strings.HasPrefix(name, unit) {
			return fmt.Errorf("cgroup parent %q is not a systemd slice path", parent)
		}
		unit = name + "-"
	}
	return nil
}
