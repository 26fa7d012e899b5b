package admission

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

// sysctlNamespace is the namespace that a sysctl belongs to.
type sysctlNamespace string

const (
	ipcNamespace  sysctlNamespace = "IPC"
	netNamespace  sysctlNamespace = "Net"
	utsNamespace  sysctlNamespace = "UTS"
	userNamespace sysctlNamespace = "User"
)

// namespaceOf returns the namespace of a sysctl or of a pattern without its asterisk,
// or "" if it applies to the whole node.
func namespaceOf(name string) sysctlNamespace {
	beginsWithAny := func(beginnings ...string) bool {
		return slices.ContainsFunc(beginnings, func(b string) bool { return strings.HasPrefix(name, b) })
	}
	switch {
	case name == "kernel.domainname":
		return utsNamespace
	case beginsWithAny("kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue."):
		return ipcNamespace
	case beginsWithAny("net."):
		return netNamespace
	case beginsWithAny("user."):
		return userNamespace
	}
	return ""
}

// isSafeSysctl reports whether a sysctl is namespaced on this kernel and cannot
// affect other pods. The list is the kubelet's.
func isSafeSysctl(name, kernel string) bool {
	switch name {
	case "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.tcp_syncookies",
		"net.ipv4.ping_group_range", "net.ipv4.ip_unprivileged_port_start":
		return true
	case "net.ipv4.ip_local_reserved_ports":
		return isKernelAtLeast(kernel, 3, 16)
	case "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes":
		return isKernelAtLeast(kernel, 4, 5)
	case "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_notsent_lowat":
		return isKernelAtLeast(kernel, 4, 6)
	case "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem", "net.ipv4.tcp_slow_start_after_idle":
		return isKernelAtLeast(kernel, 4, 15)
	}
	return false
}

// KernelRelease returns the release of this machine's kernel for Config.Kernel, or "" if
// it cannot be read.
func KernelRelease() string {
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(release))
}

// isKernelAtLeast compares the first two numbers of a release such as
// 6.1.0-32-amd64. An empty release is newer than all others.
func isKernelAtLeast(release string, major, minor int) bool {
	if release == "" {
		return true
	}
	first, rest, _ := strings.Cut(release, ".")
	second := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
	have, err := strconv.Atoi(first)
	if err != nil {
		return false
	}
	if have != major {
		return have > major
	}
	have, err = strconv.Atoi(second)
	return err == nil && have >= minor
}

// checkSysctlPatterns validates Config.AllowedUnsafeSysctls.
func checkSysctlPatterns(patterns []string) []error {
	var errs []error
	for _, p := range patterns {
		name, _ := strings.CutSuffix(podspec.SysctlName(p), "*")
		switch {
		case strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_./") != "":
			errs = append(errs, fmt.Errorf("admission: Config.AllowedUnsafeSysctls: %q must be a name, or a prefix followed by *", p))
		case namespaceOf(name) == "":
			errs = append(errs, fmt.Errorf("admission: Config.AllowedUnsafeSysctls: %q must belong to a namespace of the pod: kernel.shm*, kernel.msg*, kernel.sem, "+
				"kernel.domainname, fs.mqueue.*, net.* or user.*", p))
		}
	}
	return errs
}

// isAllowedSysctl reports whether Config.AllowedUnsafeSysctls contains the name.
func (a *Admitter) isAllowedSysctl(name string) bool {
	return slices.ContainsFunc(a.cfg.AllowedUnsafeSysctls, func(pattern string) bool {
		beginning, star := strings.CutSuffix(podspec.SysctlName(pattern), "*")
		return name == beginning || star && strings.HasPrefix(name, beginning)
	})
}

// sysctls rejects sysctls that are neither safe nor allowed, and those of a namespace
// that the pod shares with the node.
func (a *Admitter) sysctls(pod *corev1.Pod, _ []*corev1.Pod) podspec.AdmitResult {
	if pod.Spec.SecurityContext == nil {
		return podspec.Admitted()
	}
	for _, s := range pod.Spec.SecurityContext.Sysctls {
		name := podspec.SysctlName(s.Name)
		if !isSafeSysctl(name, a.cfg.Kernel) && !a.isAllowedSysctl(name) {
			return podspec.Rejected(ReasonSysctl, fmt.Sprintf("forbidden sysctl: %q not allowlisted", name))
		}
		if ns := namespaceOf(name); sharesWithNode(pod, ns) {
			return podspec.Rejected(ReasonSysctl, fmt.Sprintf("forbidden sysctl: %q not allowed with host %s enabled", name, ns))
		}
	}
	return podspec.Admitted()
}

// sharesWithNode reports whether a pod uses the node's namespace of this kind. A pod
// in the node's network namespace is in its UTS namespace, too.
func sharesWithNode(pod *corev1.Pod, ns sysctlNamespace) bool {
	switch ns {
	case netNamespace, utsNamespace:
		return podspec.IsHostNetwork(pod)
	case ipcNamespace:
		return pod.Spec.HostIPC
	case userNamespace:
		return podspec.UsesHostUsers(pod)
	}
	return true
}
