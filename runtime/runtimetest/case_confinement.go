package runtimetest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Bits of capabilities in /proc/PID/status.
const (
	capNetAdmin = 12
	capSysAdmin = 21
)

// bit returns a bit of a hexadecimal value of /proc/PID/status, and whether it has one.
func bit(lines []string, name string, n int) (bool, bool) {
	v := procStatus(lines, name)
	if len(v) != 1 {
		return false, false
	}
	set, err := strconv.ParseUint(v[0], 16, 64)
	return set&(1<<n) != 0, err == nil
}

// hasBit expects a bit of a hexadecimal value of /proc/PID/status.
func (c *CaseT) hasBit(lines []string, name string, n int, want bool, what string) {
	got, ok := bit(lines, name, n)
	c.check(ok, "%s: /proc/self/status has no %s: %.300q", what, name, lines)
	c.check(!ok || got == want, "%s: bit %d of %s in the container is %t, want %t", what, n, name, got, want)
}

// exitCode runs a script in a container of a pod until it exits.
func (p *pod) exitCode(name, script string, edits ...containerEdit) int32 {
	return p.c.exited(p.start(name, script, edits...)).GetExitCode()
}

// line runs a script in a container of a pod until it exits, and returns its last line of
// output.
func (p *pod) line(name, script string, edits ...containerEdit) string {
	p.exitCode(name, script, edits...)
	lines := p.stdout(name + "/0.log")
	if len(lines) == 0 {
		return ""
	}
	return strings.TrimPrefix(lines[len(lines)-1], "stdout F ")
}

func capabilities(add, drop []string) containerEdit {
	return security(func(sc *v1.LinuxContainerSecurityContext) {
		sc.Capabilities = &v1.Capability{AddCapabilities: add, DropCapabilities: drop}
	})
}

// device returns a device of this machine that no container has by itself, or ends the
// case as skipped.
func (c *CaseT) device() string {
	for _, path := range []string{"/dev/loop-control", "/dev/net/tun", "/dev/fuse", "/dev/vhost-net", "/dev/kvm"} {
		if st, err := os.Stat(path); err == nil && st.Mode()&os.ModeCharDevice != 0 {
			return path
		}
	}
	c.skipped("this machine has none of the devices that the case knows")
	return ""
}

func confinementCases() []testCase {
	return []testCase{
		{"capabilities are dropped and added", "securityContext.capabilities would be ignored", confinement, func(c *CaseT) {
			const show = "cat /proc/self/status"
			lines := c.output(show, nil, capabilities(nil, []string{"ALL"}))
			same(c, "0000000000000000", strings.Join(procStatus(lines, "CapEff"), " "), "drop_capabilities ALL: CapEff in the container")
			c.hasBit(c.outputOf("added", show, capabilities([]string{"NET_ADMIN"}, nil)), "CapEff", capNetAdmin, true, "add_capabilities NET_ADMIN")
			c.hasBit(c.outputOf("plain", show), "CapEff", capSysAdmin, false, "without capabilities")
		}},
		{"a privileged container has all capabilities", "network plug-ins and storage drivers could not run", confinement, func(c *CaseT) {
			privileged := func(cfg *v1.PodSandboxConfig) { cfg.Linux.SecurityContext.Privileged = true }
			lines := c.output("cat /proc/self/status; [ -e /dev/kmsg ] || [ -e /dev/mem ] || [ -e /dev/loop-control ] || echo none", []podEdit{privileged},
				security(func(sc *v1.LinuxContainerSecurityContext) { sc.Privileged = true }))
			c.hasBit(lines, "CapEff", capSysAdmin, true, "privileged")
			c.check(!slices.Contains(lines, "stdout F none"), "privileged: the container has no devices of the host")
			p := c.pod("plain")
			c.hasBit(p.outputOf("c", "cat /proc/self/status"), "CapEff", capSysAdmin, false, "not privileged")
		}},
		{"system calls are filtered", "seccompProfile would be ignored", confinement, func(c *CaseT) {
			profile := func(sp *v1.SecurityProfile) containerEdit {
				return security(func(sc *v1.LinuxContainerSecurityContext) { sc.Seccomp = sp })
			}
			p := c.pod("p", func(cfg *v1.PodSandboxConfig) {
				cfg.Linux.SecurityContext.Seccomp = &v1.SecurityProfile{ProfileType: v1.SecurityProfile_RuntimeDefault}
			})
			const show = "grep Seccomp: /proc/self/status | tr -d '\\t'"
			same(c, "Seccomp:2", p.line("default", show, profile(&v1.SecurityProfile{ProfileType: v1.SecurityProfile_RuntimeDefault})), "seccomp RuntimeDefault: mode in the container")
			same(c, "Seccomp:0", p.line("unconfined", show, profile(&v1.SecurityProfile{ProfileType: v1.SecurityProfile_Unconfined})), "seccomp Unconfined: mode in the container")
			file := filepath.Join(c.dataDir(), "seccomp.json")
			c.ok(os.WriteFile(file, []byte(`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO"}]}`), 0o600), "write a seccomp profile")
			local := profile(&v1.SecurityProfile{ProfileType: v1.SecurityProfile_Localhost, LocalhostRef: file})
			same(c, 3, p.exitCode("local", "mkdir /tmp/x && exit 7; exit 3", local), "seccomp Localhost: exit code of a container that exits with 3 if mkdir is denied, as its profile says,")
		}},
		{"paths are masked and read-only", "containers could read the kernel's keys and change its settings", confinement, func(c *CaseT) {
			p := c.pod("p")
			paths := security(func(sc *v1.LinuxContainerSecurityContext) {
				sc.MaskedPaths, sc.ReadonlyPaths = []string{"/proc/version"}, []string{"/etc"}
			})
			same(c, 3, p.exitCode("masked", "grep -q Linux /proc/version && exit 7; exit 3", paths), "masked_paths: exit code of a container that exits with 3 if /proc/version is empty")
			same(c, 3, p.exitCode("readonly", "echo x > /etc/sublet-test && exit 7; exit 3", paths), "readonly_paths: exit code of a container that exits with 3 if it cannot write to /etc")
		}},
		{"containers have the process namespace that they ask for", "shareProcessNamespace and hostPID would be ignored, or containers see each other's processes", confinement, func(c *CaseT) {
			mode := func(m v1.NamespaceMode) podEdit {
				return func(cfg *v1.PodSandboxConfig) { cfg.Linux.SecurityContext.NamespaceOptions.Pid = m }
			}
			pidNamespace := func(id string) string {
				r, err := c.exec(id, execTimeout, "readlink", "/proc/self/ns/pid")
				c.ok(err, "exec")
				return strings.TrimSpace(string(r.GetStdout()))
			}
			own := c.pod("own", mode(v1.NamespaceMode_CONTAINER))
			same(c, "1", own.line("c", "echo $$"), "pid CONTAINER: process id of the container's shell")
			shared := c.pod("shared", mode(v1.NamespaceMode_POD))
			a := pidNamespace(shared.start("a", longRunTime)) // which runs on: the number of a namespace that has ended may be that of the next
			b := shared.line("b", "readlink /proc/self/ns/pid")
			c.check(a == b && a != "", "pid POD: process namespaces of two containers are %q and %q, want the same", a, b)
			target := own.start("target", longRunTime)
			joined := own.line("joined", "readlink /proc/self/ns/pid", security(func(sc *v1.LinuxContainerSecurityContext) {
				sc.NamespaceOptions = &v1.NamespaceOption{Pid: v1.NamespaceMode_TARGET, TargetId: target}
			}))
			same(c, pidNamespace(target), joined, "pid TARGET: process namespace of a container that shares another's")
			host := c.pod("host", mode(v1.NamespaceMode_NODE))
			node := host.line("c", "readlink /proc/self/ns/pid")
			c.check(node != "" && node != a && node != joined, "pid NODE: process namespace %q is that of another pod", node)
			same(c, node, c.pod("host2", mode(v1.NamespaceMode_NODE)).line("c", "readlink /proc/self/ns/pid"), "pid NODE: process namespace of a second pod")
		}},
		{"pods have the network and IPC that they ask for", "hostNetwork and hostIPC would be ignored, or pods share what is theirs", confinement, func(c *CaseT) {
			const show = "echo $(readlink /proc/self/ns/net) $(readlink /proc/self/ns/ipc)"
			host := func(cfg *v1.PodSandboxConfig) {
				cfg.Linux.SecurityContext.NamespaceOptions.Ipc = v1.NamespaceMode_NODE
				hostNetwork(cfg)
			}
			p, q := c.pod("p"), c.pod("q")
			one, two, other := strings.Fields(p.line("a", show)), strings.Fields(p.line("b", show)), strings.Fields(q.line("a", show))
			first, second := strings.Fields(c.pod("host", host).line("c", show)), strings.Fields(c.pod("host2", host).line("c", show))
			if len(one) != 2 || len(two) != 2 || len(other) != 2 || len(first) != 2 || len(second) != 2 {
				c.fatal("namespaces in containers: %q, %q, %q, %q, %q", one, two, other, first, second)
			}
			for i, name := range []string{"network", "ipc"} {
				same(c, one[i], two[i], name+" POD: namespace of a second container of the pod")
				c.check(one[i] != other[i], "%s POD: two pods share the namespace %s", name, one[i])
				same(c, first[i], second[i], name+" NODE: namespace of a second pod")
				c.check(first[i] != one[i], "%s NODE: the namespace is that of another pod, %s", name, one[i])
			}
		}},
		{"sysctls of a pod are set", "securityContext.sysctls would be ignored", confinement, func(c *CaseT) {
			p := c.pod("p", func(cfg *v1.PodSandboxConfig) { cfg.Linux.Sysctls = map[string]string{"kernel.shm_rmid_forced": "1"} })
			same(c, "1", p.line("c", "cat /proc/sys/kernel/shm_rmid_forced"), "sysctls: kernel.shm_rmid_forced in the container")
		}},
		{"devices are there with their permissions", "devices of plug-ins would be missing, or writable for all", confinement, func(c *CaseT) {
			host := c.device()
			device := func(permissions string) containerEdit {
				return func(cfg *v1.ContainerConfig) {
					cfg.Devices = []*v1.Device{{ContainerPath: "/dev/sublet-test", HostPath: host, Permissions: permissions}}
				}
			}
			p := c.pod("p")
			same(c, 3, p.exitCode("rw", "[ -c /dev/sublet-test ] && (exec 3<>/dev/sublet-test) && exit 3; exit 7", device("rwm")),
				"devices: exit code of a container that exits with 3 if it can open its device")
			same(c, 3, p.exitCode("r", "(exec 3</dev/sublet-test) || exit 8; (exec 3<>/dev/sublet-test) && exit 7; exit 3", device("r")),
				"permissions r: exit code of a container that exits with 3 if it can only read its device")
		}},
		{"the OOM killer knows what to spare", "the kernel would kill guaranteed pods first", confinement, func(c *CaseT) {
			p := c.pod("p")
			same(c, "987", p.line("c", "cat /proc/self/oom_score_adj", func(cfg *v1.ContainerConfig) { cfg.Linux.Resources.OomScoreAdj = 987 }),
				"oom_score_adj 987: value in the container")
		}},
		{"the root of a container is its own", "containers would see the files of the node and of each other", confinement, func(c *CaseT) {
			p := c.pod("p")
			name := fmt.Sprintf("/sublet-test-%s", c.s.id)
			same(c, 0, p.exitCode("a", "echo x > "+name), "exit code of a container that writes to its root")
			same(c, 3, p.exitCode("b", "[ -e "+name+" ] && exit 7; exit 3"), "exit code of a container that exits with 3 if it does not see the files of another")
			_, err := os.Stat(name)
			c.check(os.IsNotExist(err), "a file of the container is on the node")
		}},
	}
}

// outputOf runs a script in a pod of its own until it exits, and returns its log.
func (c *CaseT) outputOf(pod, script string, edits ...containerEdit) []string {
	return c.pod(pod).outputOf("c", script, edits...)
}

// outputOf runs a script in a container of the pod until it exits, and returns its log.
func (p *pod) outputOf(name, script string, edits ...containerEdit) []string {
	p.exitCode(name, script, edits...)
	return p.lines(name + "/0.log")
}
