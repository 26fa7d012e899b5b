package runtimetest

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/hugepages"
)

// commandOutput runs a command in a container, and returns its output without white space
// around it, or ends the case.
func (c *CaseT) commandOutput(id string, cmd ...string) string {
	r, err := c.exec(id, execTimeout, cmd...)
	c.ok(err, "exec "+strings.Join(cmd, " "))
	return strings.Trim(string(r.GetStdout()), "\x00 \n")
}

// securityLabel is where the kernel shows the AppArmor profile or SELinux label of a process.
const securityLabel = "/proc/self/attr/current"

func nodeFeatureCases() []testCase {
	return []testCase{
		{"a container has its AppArmor profile", "securityContext.appArmorProfile would be ignored", confinement, func(c *CaseT) {
			c.requires(hasAppArmor)
			profile := func(kind v1.SecurityProfile_ProfileType, name string) containerEdit {
				return security(func(sc *v1.LinuxContainerSecurityContext) {
					sc.Apparmor = &v1.SecurityProfile{ProfileType: kind, LocalhostRef: name}
				})
			}
			p := c.pod("p")
			standard := c.commandOutput(p.start("default", longRunTime, profile(v1.SecurityProfile_RuntimeDefault, "")), "cat", securityLabel)
			c.check(standard != "" && standard != "unconfined", "apparmor RuntimeDefault: profile in the container is %q", standard)
			free := c.commandOutput(p.start("unconfined", longRunTime, profile(v1.SecurityProfile_Unconfined, "")), "cat", securityLabel)
			same(c, "unconfined", free, "apparmor Unconfined: profile in the container")
			err := p.tryStart(p.containerConfig("local", sh(longRunTime), profile(v1.SecurityProfile_Localhost, "sublet-test-not-loaded")))
			c.rejected(err, "apparmor Localhost: a container with a profile that is not loaded")
		}},
		{"a container has its SELinux label", "securityContext.seLinuxOptions would be ignored, and pods read each other's volumes", confinement, func(c *CaseT) {
			c.requires(hasSELinux)
			options := &v1.SELinuxOption{User: "system_u", Role: "system_r", Type: "container_t", Level: "s0:c123,c456"}
			p := c.pod("p", func(cfg *v1.PodSandboxConfig) { cfg.Linux.SecurityContext.SelinuxOptions = options })
			id := p.start("c", longRunTime, security(func(sc *v1.LinuxContainerSecurityContext) { sc.SelinuxOptions = options }), func(cfg *v1.ContainerConfig) {
				cfg.Mounts = []*v1.Mount{{ContainerPath: "/data", HostPath: c.dataDir(), SelinuxRelabel: true}}
			})
			same(c, "system_u:system_r:container_t:s0:c123,c456", c.commandOutput(id, "cat", securityLabel), "selinux_options: label of the container")
			same(c, "from the host", c.commandOutput(id, "cat", "/data/file"), "selinux_relabel: content of a file in a mount")
		}},
		{"settings of cgroup v2 are passed on", "memory.high of the memory QoS of kubelets would have no effect", confinement | limits, func(c *CaseT) {
			c.requires(hasCgroupV2)
			id := c.pod("p").start("c", longRunTime, limited, func(cfg *v1.ContainerConfig) {
				cfg.Linux.Resources.Unified = map[string]string{"memory.high": "50331648"}
			})
			same(c, "50331648", c.cgroupOf(id, "memory.high"), "unified memory.high 48Mi: value in the container's cgroup")
		}},
		{"a limit of huge pages is in the cgroup", "a pod could take the huge pages of the others", confinement | limits, func(c *CaseT) {
			c.requires(hasHugePages)
			size := c.hugePages()[0]
			name, limit := hugepages.Name(size), 2*uint64(size)
			id := c.pod("p").start("c", longRunTime, func(cfg *v1.ContainerConfig) {
				cfg.Linux.Resources.HugepageLimits = []*v1.HugepageLimit{{PageSize: name, Limit: limit}}
			})
			got := c.cgroupOf(id, "hugetlb."+name+".max", "hugetlb/hugetlb."+name+".limit_in_bytes")
			same(c, strconv.FormatUint(limit, 10), got, "hugepage_limits "+name+", two pages: value in the container's cgroup")
		}},
		{"a mount in a user namespace has mapped owners", "pods with hostUsers: false could not use the files of their volumes", confinement, func(c *CaseT) {
			if !c.features().GetUserNamespaces() {
				c.skipped("the runtime does not report user_namespaces")
			}
			dir := c.dataDir()
			ids := []*v1.IDMapping{{HostId: 1 << 20, ContainerId: 0, Length: 1 << 16}}
			userns := &v1.UserNamespace{Mode: v1.NamespaceMode_POD, Uids: ids, Gids: ids}
			p := c.pod("p", func(cfg *v1.PodSandboxConfig) { cfg.Linux.SecurityContext.NamespaceOptions.UsernsOptions = userns })
			cfg := p.containerConfig("c", sh(longRunTime), func(cfg *v1.ContainerConfig) {
				cfg.Mounts = []*v1.Mount{{ContainerPath: "/data", HostPath: dir, UidMappings: ids, GidMappings: ids}}
			})
			id, err := p.createConfig(cfg)
			c.ok(err, "create container with a mount of mapped ids")
			if err := c.start(id); err != nil && strings.Contains(err.Error(), "idmap") {
				c.skipped("the file system of LogRoot cannot map ids: " + err.Error())
			} else {
				c.ok(err, "start container with a mount of mapped ids")
			}
			owner := c.commandOutput(id, sh("set -- $(ls -ln /data/file); echo $3 $4")...)
			same(c, fmt.Sprint(os.Geteuid(), " ", os.Getegid()), owner, "uidMappings and gidMappings: owner, in the container, of a file")
		}},
	}
}
