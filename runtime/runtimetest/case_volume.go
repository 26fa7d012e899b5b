package runtimetest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// features returns the features of the default runtime handler.
func (c *CaseT) features() *v1.RuntimeHandlerFeatures {
	for _, h := range c.handlers() {
		if h.GetName() == "" {
			return h.GetFeatures()
		}
	}
	return nil
}

// mountinfo is a script that prints the line of /data in the mounts of a container.
const mountinfo = "grep ' /data ' /proc/self/mountinfo"

func propagated(dir string, mode v1.MountPropagation) containerEdit {
	return func(cfg *v1.ContainerConfig) {
		cfg.Mounts = append(cfg.Mounts, &v1.Mount{ContainerPath: "/data", HostPath: dir, Propagation: mode})
	}
}

func volumeCases() []testCase {
	return []testCase{
		{"a file mounted at /etc/hosts is the container's", "host aliases would be ignored", isolation, func(c *CaseT) {
			file := filepath.Join(c.dataDir(), "hosts")
			c.ok(os.WriteFile(file, []byte("192.0.2.7 alias.example\n"), 0o644), "write a file to mount") //nolint:gosec // a container of any user reads it
			lines := c.output("cat /etc/hosts", nil, func(cfg *v1.ContainerConfig) {
				cfg.Mounts = []*v1.Mount{{ContainerPath: "/etc/hosts", HostPath: file}}
			})
			set(c, []string{"stdout F 192.0.2.7 alias.example"}, lines, "content of /etc/hosts")
		}},
		{"mounts propagate as they should", "storage drivers could not mount volumes for pods", confinement, func(c *CaseT) {
			dir := c.dataDir()
			p := c.pod("p")
			private := p.line("private", mountinfo, propagated(dir, v1.MountPropagation_PROPAGATION_PRIVATE))
			c.check(!strings.Contains(private, " shared:"), "propagation PRIVATE: the mount is %s", private)
			if !c.s.isMountShared(dir) {
				c.skipped("the directory LogRoot is not on a shared mount")
			}
			slave := p.line("slave", mountinfo, propagated(dir, v1.MountPropagation_PROPAGATION_HOST_TO_CONTAINER))
			c.check(strings.Contains(slave, " master:"), "propagation HOST_TO_CONTAINER: the mount is %s", slave)
			both := p.line("shared", mountinfo, propagated(dir, v1.MountPropagation_PROPAGATION_BIDIRECTIONAL),
				security(func(sc *v1.LinuxContainerSecurityContext) { sc.Privileged = false }))
			c.check(strings.Contains(both, " shared:"), "propagation BIDIRECTIONAL: the mount is %s", both)
		}},
		{"a mount can be read-only with all below it", "recursiveReadOnly would be ignored", confinement, func(c *CaseT) {
			if !c.features().GetRecursiveReadOnlyMounts() {
				c.skipped("the runtime does not report recursive_read_only_mounts")
			}
			dir := c.dataDir()
			p := c.pod("p")
			id := p.start("c", "echo x > /data/written && exit 7; exit 3", func(cfg *v1.ContainerConfig) {
				cfg.Mounts = []*v1.Mount{{ContainerPath: "/data", HostPath: dir, Readonly: true, RecursiveReadOnly: true}}
			})
			same(c, 3, c.exited(id).GetExitCode(), "recursive_read_only: exit code of a container that exits with 3 if it cannot write to the mount")
			for _, m := range c.status(id).GetMounts() {
				c.check(m.GetContainerPath() != "/data" || m.GetRecursiveReadOnly(), "recursive_read_only is false in the status")
			}
		}},
		{"an image can be mounted", "volumes of type image would be empty", confinement | twoImages, func(c *CaseT) {
			p := c.pod("p")
			cfg := p.containerConfig("c", sh("[ -e /data/bin/sh ] || exit 7; echo x > /data/x && exit 8; exit 3"), func(cfg *v1.ContainerConfig) {
				cfg.Mounts = []*v1.Mount{{ContainerPath: "/data", Image: &v1.ImageSpec{Image: c.s.second}, Readonly: true}}
			})
			id, err := p.createConfig(cfg)
			c.implemented(err, "mount of an image")
			c.ok(c.start(id), "start container")
			same(c, 3, c.exited(id).GetExitCode(), "exit code of a container that exits with 3 if the image is mounted and cannot be written")
		}},
		{"a path that an image does not have is not mounted", "subPath of an image volume with a typo would be an empty directory, or all of the image", confinement | twoImages, func(c *CaseT) {
			p := c.pod("p")
			err := p.tryStart(p.containerConfig("c", sh(longRunTime), func(cfg *v1.ContainerConfig) {
				cfg.Mounts = []*v1.Mount{{ContainerPath: "/data", Image: &v1.ImageSpec{Image: c.s.second}, ImageSubPath: "no/such/path", Readonly: true}}
			}))
			c.rejected(err, "image_sub_path: a container with a mount of a path that its image does not have")
		}},
		{"a pod with a user namespace has its ids mapped", "hostUsers: false would be ignored; root in the pod would be root on the node", confinement, func(c *CaseT) {
			if !c.features().GetUserNamespaces() {
				c.skipped("the runtime does not report user_namespaces")
			}
			ids := []*v1.IDMapping{{HostId: 1 << 20, ContainerId: 0, Length: 1 << 16}}
			userns := &v1.UserNamespace{Mode: v1.NamespaceMode_POD, Uids: ids, Gids: ids}
			p := c.pod("p", func(cfg *v1.PodSandboxConfig) { cfg.Linux.SecurityContext.NamespaceOptions.UsernsOptions = userns })
			got := strings.Fields(p.line("c", "cat /proc/self/uid_map"))
			same(c, "0 1048576 65536", strings.Join(got, " "), "userns_options: uid_map in the container")
			same(c, v1.NamespaceMode_POD, p.status().GetLinux().GetNamespaces().GetOptions().GetUsernsOptions().GetMode(), "userns_options.mode in the status of the pod")
		}},
		{"only the groups of the pod are its groups", "supplementalGroupsPolicy: Strict would be ignored", confinement, func(c *CaseT) {
			if r, err := c.rs.Status(c.ctx, &v1.StatusRequest{}); err != nil || !r.GetFeatures().GetSupplementalGroupsPolicy() {
				c.skipped("the runtime does not report supplemental_groups_policy")
			}
			lines := c.output("cat /proc/self/status", nil, security(func(sc *v1.LinuxContainerSecurityContext) {
				sc.RunAsUser, sc.RunAsGroup = &v1.Int64Value{Value: 12345}, &v1.Int64Value{Value: 23456}
				sc.SupplementalGroups, sc.SupplementalGroupsPolicy = []int64{34567}, v1.SupplementalGroupsPolicy_Strict
			}))
			groups := strings.Join(procStatus(lines, "Groups"), " ")
			c.check(groups == "34567" || groups == "23456 34567", "supplemental_groups_policy Strict: groups in the container are %s", groups)
		}},
		{"a user has the groups that its image gives it", "files that belong to a group of the image could not be read", confinement, func(c *CaseT) {
			lines := c.output("cat /etc/group /proc/self/status", nil, security(func(sc *v1.LinuxContainerSecurityContext) {
				sc.RunAsUser = &v1.Int64Value{Value: 0}
				sc.SupplementalGroups, sc.SupplementalGroupsPolicy = []int64{34567}, v1.SupplementalGroupsPolicy_Merge
			}))
			want := groupsOf("root", lines)
			if len(want) == 0 {
				c.skipped("no group of the image has root as a member")
			}
			groups := procStatus(lines, "Groups")
			for _, g := range append(want, "34567") {
				c.check(slices.Contains(groups, g), "supplemental_groups_policy Merge: groups in the container are %v, want %s among them", groups, g)
			}
		}},
	}
}

// groupsOf returns the ids of the groups of /etc/group, in a log, that have a user as a member.
func groupsOf(user string, lines []string) (ids []string) {
	for _, l := range lines {
		fields := strings.Split(strings.TrimPrefix(l, "stdout F "), ":")
		if len(fields) == 4 && slices.Contains(strings.Split(fields[3], ","), user) {
			ids = append(ids, fields[2])
		}
	}
	return ids
}
