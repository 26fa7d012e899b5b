package node

import (
	"io/fs"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// unknownOS is what a kubelet reports for a system without os-release.
const unknownOS = "Unknown"

// DetectInfo returns what the machine tells about itself: its ids, kernel, operating
// system, user namespace and swap. root is the machine's root directory, os.DirFS("/"). The versions of
// the runtime and of the agent are not among it. What cannot be read stays empty.
func DetectInfo(root fs.FS) corev1.NodeSystemInfo {
	info := corev1.NodeSystemInfo{
		MachineID:       firstText(root, "etc/machine-id", "var/lib/dbus/machine-id"),
		SystemUUID:      firstText(root, "sys/class/dmi/id/product_uuid", "proc/device-tree/system-id", "proc/device-tree/vm,uuid", "etc/machine-id"),
		BootID:          firstText(root, "proc/sys/kernel/random/boot_id"),
		KernelVersion:   firstText(root, "proc/sys/kernel/osrelease"),
		OSImage:         osImage(root),
		OperatingSystem: goruntime.GOOS, Architecture: goruntime.GOARCH,
	}
	if swap := meminfo(root, "SwapTotal:"); swap > 0 {
		info.Swap = &corev1.NodeSwapStatus{Capacity: &swap}
	}
	inUserNamespace := isInUserNamespace(root)
	info.RunningInUserNamespace = &inUserNamespace
	return info
}

// isInUserNamespace reports whether this process has other user ids than the machine: those of the
// machine are all mapped to themselves. A kernel without user namespaces has no file.
func isInUserNamespace(root fs.FS) bool {
	b, err := fs.ReadFile(root, "proc/self/uid_map")
	return err == nil && !slices.Equal(strings.Fields(string(b)), []string{"0", "0", "4294967295"})
}

// firstText returns the text of the first file that has one. Files of a device tree end
// in a zero byte.
func firstText(root fs.FS, files ...string) string {
	for _, file := range files {
		if b, err := fs.ReadFile(root, file); err == nil {
			if text := strings.Trim(string(b), " \t\r\n\x00"); text != "" {
				return text
			}
		}
	}
	return ""
}

// osImage returns PRETTY_NAME of os-release.
func osImage(root fs.FS) string {
	for line := range strings.Lines(firstText(root, "etc/os-release", "usr/lib/os-release")) {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME=")
		if !ok {
			continue
		}
		if unquoted, err := strconv.Unquote(name); err == nil {
			name = unquoted
		}
		if name = strings.Trim(name, "'"); name != "" {
			return name
		}
	}
	return unknownOS
}
