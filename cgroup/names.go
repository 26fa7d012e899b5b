package cgroup

import (
	"fmt"
	"path"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Driver says how groups are named.
type Driver string

// The drivers, by the names that runtimes use.
const (
	Cgroupfs Driver = "cgroupfs"
	Systemd  Driver = "systemd"
)

const (
	nodeGroup   = "kubepods"
	podPrefix   = "pod"
	slice       = ".slice"
	maxNameSize = 200
)

// tiers are the QoS classes that have a group of their own. Guaranteed pods
// stand directly below the node's group.
func tiers() []corev1.PodQOSClass {
	return []corev1.PodQOSClass{corev1.PodQOSGuaranteed, corev1.PodQOSBurstable, corev1.PodQOSBestEffort}
}

// names maps pods to groups. A cgroup is named by its path relative to the root of
// a hierarchy, with a leading slash.
type names struct {
	driver Driver
	parent string // clean, absolute; "/" is the root
}

// group returns the group that is elements below the parent: for instance
// kubepods, burstable, pod1.
func (n names) group(elements ...string) string {
	if n.driver != Systemd {
		return path.Join(append([]string{n.parent}, elements...)...)
	}
	// A slice's name holds those of all above it: a-b.slice is below a.slice.
	at, unit := n.parent, strings.TrimSuffix(path.Base(n.parent), slice)
	if n.parent == "/" {
		unit = ""
	}
	for _, e := range elements {
		e = strings.ReplaceAll(e, "-", "_")
		if unit != "" {
			e = unit + "-" + e
		}
		unit = e
		at = path.Join(at, unit+slice)
	}
	return at
}

// tier returns the group of a QoS class.
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

// pod returns the group of a pod.
func (n names) pod(q corev1.PodQOSClass, uid types.UID) (string, error) {
	if err := checkUID(uid); err != nil {
		return "", err
	}
	return n.group(append(tierElements(q), podPrefix+string(uid))...), nil
}

// forRuntime returns a group as a runtime wants it as cgroup parent: the path,
// or the slice's own name.
func (n names) forRuntime(group string) string {
	if n.driver == Systemd {
		return path.Base(group)
	}
	return group
}

// uid returns the pod whose group has that name in the tier's directory.
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
		name = strings.ReplaceAll(name, "_", "-")
	}
	id, ok := strings.CutPrefix(name, podPrefix)
	uid := types.UID(id)
	return uid, ok && checkUID(uid) == nil
}

// checkUID refuses UIDs that would not be one element of a path.
func checkUID(uid types.UID) error {
	if len(uid) == 0 || len(uid) > maxNameSize {
		return fmt.Errorf("pod UID of %d bytes cannot name a cgroup", len(uid))
	}
	for _, r := range uid {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_':
		default:
			return fmt.Errorf("pod UID %q cannot name a cgroup", string(uid))
		}
	}
	return nil
}

// checkParent refuses parents that the driver cannot have.
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
