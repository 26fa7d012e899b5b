package runtimetest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// dataDir makes a directory of the case that can be mounted, with one file in it.
func (c *CaseT) dataDir() string {
	dir := filepath.Join(c.logDir("data"))
	c.ok(os.MkdirAll(dir, 0o755), "make a directory to mount")
	c.ok(os.WriteFile(filepath.Join(dir, "file"), []byte("from the host\n"), 0o644), "write a file to mount")
	return dir
}

// mount mounts a directory of the host at /data.
func mount(dir string, readOnly bool) containerEdit {
	return func(cfg *v1.ContainerConfig) {
		cfg.Mounts = append(cfg.Mounts, &v1.Mount{ContainerPath: "/data", HostPath: dir, Readonly: readOnly})
	}
}

func security(edit func(*v1.LinuxContainerSecurityContext)) containerEdit {
	return func(cfg *v1.ContainerConfig) { edit(cfg.Linux.SecurityContext) }
}

// output runs a script in a container of a new pod until it exits, and returns its log.
func (c *CaseT) output(script string, podEdits []podEdit, edits ...containerEdit) []string {
	p := c.pod("p", podEdits...)
	c.exited(p.start("c", script, edits...))
	return p.lines("c/0.log")
}

// procStatus returns the values of a line of /proc/PID/status in a log.
func procStatus(lines []string, name string) []string {
	for _, l := range lines {
		if rest, ok := strings.CutPrefix(l, "stdout F "+name+":"); ok {
			return strings.Fields(rest)
		}
	}
	return nil
}

func isolationCases() []testCase {
	return slices.Concat(mountCases(), []testCase{
		{"a container runs as its user and groups", "runAsUser would be ignored, and containers would run as root", isolation, func(c *CaseT) {
			lines := c.output("cat /proc/self/status", nil, security(func(sc *v1.LinuxContainerSecurityContext) {
				sc.RunAsUser, sc.RunAsGroup = &v1.Int64Value{Value: 12345}, &v1.Int64Value{Value: 23456}
				sc.SupplementalGroups = []int64{34567}
			}))
			same(c, "12345", strings.Join(slices.Compact(procStatus(lines, "Uid")), " "), "run_as_user 12345: user id in the container")
			same(c, "23456", strings.Join(slices.Compact(procStatus(lines, "Gid")), " "), "run_as_group 23456: group id in the container")
			groups := procStatus(lines, "Groups")
			c.check(slices.Contains(groups, "34567"), "supplemental_groups 34567: groups in the container are %v", groups)
		}},
		{"a container runs as the user that its image names", "containers of images with USER name would run as root", isolation, func(c *CaseT) {
			const name = "daemon"
			lines := c.output("grep ^"+name+": /etc/passwd; cat /proc/self/status", nil, security(func(sc *v1.LinuxContainerSecurityContext) { sc.RunAsUsername = name }))
			entry := strings.Split(strings.Join(lines, "\n"), ":")
			if len(entry) < 3 || entry[0] != "stdout F "+name {
				c.skipped("the image has no user " + name)
			}
			same(c, entry[2], strings.Join(slices.Compact(procStatus(lines, "Uid")), " "), "run_as_username "+name+": user id in the container")
		}},
		{"a user that the image does not have is refused", "a container whose image names an unknown user would run as root", isolation, func(c *CaseT) {
			p := c.pod("p")
			err := p.tryStart(p.containerConfig("c", sh(longRunTime), security(func(sc *v1.LinuxContainerSecurityContext) { sc.RunAsUsername = "sublet-no-user" })))
			c.rejected(err, "run_as_username: a container with a user that its image does not have")
		}},
		{"a group without a user is refused", "runAsGroup would apply to a user that no one has chosen", 0, func(c *CaseT) {
			p := c.pod("p")
			group := &v1.Int64Value{Value: 23456}
			err := p.tryStart(p.containerConfig("c", sh(longRunTime), security(func(sc *v1.LinuxContainerSecurityContext) { sc.RunAsGroup = group })))
			c.rejected(err, "run_as_group: a container without run_as_user and run_as_username")
			_, err = c.runConfig(c.podConfig("q", func(cfg *v1.PodSandboxConfig) { cfg.Linux.SecurityContext.RunAsGroup = group }))
			c.rejected(err, "run_as_group: a pod without run_as_user")
		}},
		{"a process cannot gain privileges where it must not", "allowPrivilegeEscalation: false would be ignored", processes, func(c *CaseT) {
			lines := c.output("cat /proc/self/status", nil, security(func(sc *v1.LinuxContainerSecurityContext) { sc.NoNewPrivs = true }))
			same(c, "1", strings.Join(procStatus(lines, "NoNewPrivs"), " "), "no_new_privs: NoNewPrivs in the container")
		}},
		{"a pod has its host name", "applications would register under the name of the node", isolation, func(c *CaseT) {
			lines := c.output("cat /proc/sys/kernel/hostname", []podEdit{func(cfg *v1.PodSandboxConfig) { cfg.Hostname = "a-name" }})
			set(c, []string{"stdout F a-name"}, lines, "host name in the container")
		}},
		{"a pod has its DNS configuration", "services could not be found by name", isolation, func(c *CaseT) {
			lines := c.output("cat /etc/resolv.conf", []podEdit{func(cfg *v1.PodSandboxConfig) {
				cfg.DnsConfig = &v1.DNSConfig{Servers: []string{"10.9.8.7"}, Searches: []string{"ns.svc.example"}, Options: []string{"ndots:3"}}
			}})
			for _, want := range []string{"nameserver 10.9.8.7", "search ns.svc.example", "options ndots:3"} {
				c.check(slices.Contains(lines, "stdout F "+want), "dns_config: /etc/resolv.conf lacks %q: %q", want, lines)
			}
		}},
		{"a container with a terminal has one", "tty: true would be ignored; shells would not prompt", processes, func(c *CaseT) {
			p := c.pod("p")
			id := p.start("c", "[ -t 0 ] && [ -t 1 ] && exit 7; exit 8", func(cfg *v1.ContainerConfig) { cfg.Tty, cfg.Stdin = true, true })
			same(c, 7, c.exited(id).GetExitCode(), "tty: exit code of a container that exits with 7 on a terminal and with 8 otherwise")
			id = p.start("plain", "[ -t 1 ] && exit 7; exit 8")
			same(c, 8, c.exited(id).GetExitCode(), "no tty: exit code of a container that exits with 7 on a terminal and with 8 otherwise")
		}},
		{"a container with stdin waits for input", "stdin: true would be ignored; kubectl attach -i could send nothing", processes, func(c *CaseT) {
			p := c.pod("p")
			id := p.start("c", "read line; exit 3", func(cfg *v1.ContainerConfig) { cfg.Stdin = true })
			none := p.start("none", "read line; exit 3")
			same(c, 3, c.exited(none).GetExitCode(), "exit code of a container without stdin that reads it")
			c.wait(500 * time.Millisecond)
			same(c, running, c.status(id).GetState(), "stdin: state of a container that reads its input, with no client attached,")
		}},
	})
}

func mountCases() []testCase {
	return []testCase{
		{"a mounted directory is the host's", "volumes would be empty, and what is written to them lost", isolation, func(c *CaseT) {
			dir := c.dataDir()
			lines := c.output("cat /data/file; echo from the container > /data/written", nil, mount(dir, false))
			set(c, []string{"stdout F from the host"}, lines, "content of a file in the mounted directory")
			b, err := os.ReadFile(filepath.Join(dir, "written"))
			c.check(err == nil, "what the container wrote to its mount is not in the host's directory: %v", err)
			same(c, "from the container\n", string(b), "content of the file that the container wrote")
		}},
		{"a read-only mount cannot be written", "a container could change ConfigMaps, Secrets and the host's files", isolation, func(c *CaseT) {
			dir := c.dataDir()
			p := c.pod("p")
			id := p.start("c", "cat /data/file; echo x > /data/written && exit 7; exit 3", mount(dir, true))
			same(c, 3, c.exited(id).GetExitCode(), "readonly: exit code of a container that exits with 3 if it cannot write to the mount")
			_, err := os.Stat(filepath.Join(dir, "written"))
			c.check(os.IsNotExist(err), "readonly: the container wrote to the host's directory")
			set(c, []string{"stdout F from the host"}, p.stdout("c/0.log"), "content of a file in the mounted directory")
			for _, m := range c.status(id).GetMounts() {
				c.check(m.GetContainerPath() != "/data" || m.GetReadonly(), "readonly: the mount is reported as writable")
			}
		}},
		{"a link is mounted as what it leads to", "volumes behind a link would be empty", isolation, func(c *CaseT) {
			dir := c.dataDir()
			link := filepath.Join(dir, "link")
			c.ok(os.Symlink(dir, link), "make a link to mount")
			set(c, []string{"stdout F from the host"}, c.output("cat /data/file", nil, mount(link, true)), "content of a file in the directory that a mounted link leads to")
		}},
		{"a mount of what is not there is refused", "a hostPath with a typo would be an empty directory, which is made on the node", isolation, func(c *CaseT) {
			path := filepath.Join(c.dataDir(), "missing")
			p := c.pod("p")
			c.rejected(p.tryStart(p.containerConfig("c", sh(longRunTime), mount(path, false))), "host_path: a container with a mount of a path that does not exist")
			_, err := os.Stat(path)
			c.check(os.IsNotExist(err), "host_path: the path was made on the node")
		}},
		{"a read-only root cannot be written", "readOnlyRootFilesystem would be ignored", isolation, func(c *CaseT) {
			name := fmt.Sprintf("/sublet-test-%s", c.s.id)
			id := c.pod("p").start("c", "echo x > "+name+" && exit 7; exit 3",
				security(func(sc *v1.LinuxContainerSecurityContext) { sc.ReadonlyRootfs = true }))
			same(c, 3, c.exited(id).GetExitCode(), "readonly_rootfs: exit code of a container that exits with 3 if it cannot write to /")
		}},
	}
}

// stdout returns what a log has of standard output.
func (p *pod) stdout(path string) []string {
	return slices.DeleteFunc(p.lines(path), func(l string) bool { return !strings.HasPrefix(l, "stdout ") })
}
