//go:build linux

package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// idle is what critest has most of its containers run.
func idle(sc *v1.LinuxContainerSecurityContext) *v1.ContainerConfig {
	return &v1.ContainerConfig{Command: []string{"sh", "-c", "top"}, Linux: &v1.LinuxContainerConfig{SecurityContext: sc}}
}

// inNewPod starts a container in a pod of its own, and asserts that it goes on.
func (c critest) inNewPod(config *v1.ContainerConfig) string {
	c.Helper()
	pod, sandbox := c.pod(nil)
	id := c.started(pod, sandbox, config)
	time.Sleep(50 * time.Millisecond) // a program that cannot be run would have ended
	require.Equal(c, v1.ContainerState_CONTAINER_RUNNING, c.container(id).GetState())
	return id
}

// logOf runs a container to its end and returns its log's lines without the times.
func (c critest) logOf(sandbox *v1.PodSandboxConfig, config *v1.ContainerConfig) []string {
	c.Helper()
	sandbox.LogDirectory = c.TempDir()
	pod, sandbox := c.pod(sandbox)
	config.LogPath = "c.log"
	id := c.started(pod, sandbox, config)
	require.Eventually(c, func() bool {
		return c.container(id).GetState() == v1.ContainerState_CONTAINER_EXITED
	}, time.Minute, 10*time.Millisecond)
	text, err := os.ReadFile(filepath.Join(sandbox.GetLogDirectory(), "c.log"))
	require.NoError(c, err)
	var lines []string
	for line := range strings.Lines(string(text)) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		lines = append(lines, rest)
	}
	return lines
}

// needs skips the case where the machine lacks a program that it is about.
func (c critest) needs(programs ...string) {
	c.root()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			c.Skip(err)
		}
	}
}

func number(n int64) *v1.Int64Value { return &v1.Int64Value{Value: n} }

// securityCases are those of "Security Context" and of seccomp that ask for nothing
// to be confined.
func securityCases() map[string]func(critest) {
	hostName := func(sc *v1.LinuxContainerSecurityContext) func(critest) {
		return func(c critest) {
			c.needs("hostname")
			before, err := os.Hostname()
			require.NoError(c, err)
			c.exec(c.inNewPod(idle(sc)), "hostname", "ANewHostName")
			after, err := os.Hostname()
			require.NoError(c, err)
			assert.Equal(c, before, after, "the machine got the name")
		}
	}
	unconfined := &v1.SecurityProfile{ProfileType: v1.SecurityProfile_Unconfined}
	seccomp := func(profile *v1.SecurityProfile) func(critest) {
		return func(c critest) {
			own, err := os.ReadFile("/proc/self/status")
			require.NoError(c, err)
			if !strings.Contains(string(own), "Seccomp:\t0") {
				c.Skip("this machine confines all of its programs")
			}
			id := c.inNewPod(idle(&v1.LinuxContainerSecurityContext{Seccomp: profile}))
			assert.Contains(c, c.exec(id, "grep", "Seccomp:", "/proc/self/status"), "0")
		}
	}
	return map[string]func(critest){
		"should support seccomp unconfined on the container":                                   seccomp(unconfined),
		"should support nil profile, which is unconfined":                                      seccomp(nil),
		"runtime should not block setting host name with unconfined seccomp and SYS_ADMIN":     hostName(&v1.LinuxContainerSecurityContext{Seccomp: unconfined, Capabilities: &v1.Capability{AddCapabilities: []string{"SYS_ADMIN"}}}),
		"runtime should ignore a seccomp profile that blocks setting hostname when privileged": hostName(&v1.LinuxContainerSecurityContext{Privileged: true, Seccomp: &v1.SecurityProfile{ProfileType: v1.SecurityProfile_Localhost, LocalhostRef: "/block.json"}}),
		"runtime should support RunAsUser": func(c critest) {
			c.root()
			id := c.inNewPod(idle(&v1.LinuxContainerSecurityContext{RunAsUser: number(1001)}))
			assert.Equal(c, "1001\n", c.exec(id, "id", "-u"))
		},
		"runtime should support RunAsUserName": func(c critest) {
			c.root()
			id := c.inNewPod(idle(&v1.LinuxContainerSecurityContext{RunAsUsername: "nobody"}))
			assert.Equal(c, "nobody\n", c.exec(id, "id", "-nu"))
		},
		"runtime should support RunAsGroup": func(c critest) {
			c.root()
			config := idle(&v1.LinuxContainerSecurityContext{RunAsUser: number(1001), RunAsGroup: number(1002)})
			config.Command = []string{"sh", "-c", "echo $(id -u):$(id -g)"}
			assert.Equal(c, []string{"stdout F 1001:1002"}, c.logOf(&v1.PodSandboxConfig{}, config))
		},
		"images without a command run as any user": func(c critest) {
			c.root()
			c.inNewPod(&v1.ContainerConfig{Linux: &v1.LinuxContainerConfig{SecurityContext: &v1.LinuxContainerSecurityContext{RunAsUser: number(1001)}}})
		},
		"runtime should support that ReadOnlyRootfs is false": func(c critest) {
			config := idle(&v1.LinuxContainerSecurityContext{})
			config.Command = []string{"sh", "-c", "touch test.go && [ -f test.go ] && echo 'Found'"}
			assert.Equal(c, []string{"stdout F Found"}, c.logOf(&v1.PodSandboxConfig{}, config))
		},
		"runtime should support adding ALL capabilities": func(c critest) {
			c.root()
			id := c.inNewPod(idle(&v1.LinuxContainerSecurityContext{Capabilities: &v1.Capability{AddCapabilities: []string{"ALL"}}}))
			assert.NotContains(c, c.exec(id, "cat", "/proc/self/status"), "CapBnd:\t0000000000000000")
		},
		"runtime should support HostIpc is true": func(c critest) {
			c.needs("ipcmk", "ipcs", "ipcrm")
			out, err := exec.Command("ipcmk", "-M", "4096").Output()
			require.NoError(c, err)
			segment := strings.TrimPrefix(strings.TrimSpace(string(out)), "Shared memory id: ")
			c.Cleanup(func() { assert.NoError(c, exec.Command("ipcrm", "-m", segment).Run()) })
			options := &v1.NamespaceOption{Ipc: v1.NamespaceMode_NODE}
			assert.Contains(c, c.exec(c.inNewPod(idle(&v1.LinuxContainerSecurityContext{NamespaceOptions: options})), "ipcs", "-m"), segment)
		},
		"runtime should support PodPID": func(c critest) {
			assert.NotContains(c, c.exec(c.inNewPod(idle(nil)), "cat", "/proc/1/cmdline"), "master process")
		},
		"runtime should support HostNetwork is true": func(c critest) {
			c.needs("netstat")
			lis, err := net.Listen("tcp", ":0")
			require.NoError(c, err)
			defer func() { _ = lis.Close() }()
			_, port, err := net.SplitHostPort(lis.Addr().String())
			require.NoError(c, err)
			options := &v1.NamespaceOption{Network: v1.NamespaceMode_NODE}
			config := idle(&v1.LinuxContainerSecurityContext{NamespaceOptions: options})
			config.Command = []string{"sh", "-c", "netstat -ln"}
			log := c.logOf(&v1.PodSandboxConfig{Linux: &v1.LinuxPodSandboxConfig{
				SecurityContext: &v1.LinuxSandboxSecurityContext{NamespaceOptions: options},
			}}, config)
			assert.Contains(c, strings.Join(log, "\n"), ":"+port)
		},
	}
}
