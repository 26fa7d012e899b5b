//go:build linux

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// RT-11
func usersAndGroups(p *pod) {
	p.runs()
	p.says("main", "id -u; id -g; id -G", "1000\n3000\n3000 2000 4000")
	p.says("main", "stat -c '%g %a' /data", "2000 2777")
	p.saysSoon("main", "stat -c '%u %g' /data/file", "1000 2000")
	require.Equal(p.t, "1000 1000 1000 1000", p.proc("main", "Uid"))
	require.Equal(p.t, "2002 2002 2002 2002", p.proc("other", "Uid"))
	require.Equal(p.t, "3000 3000 3000 3000", p.proc("other", "Gid"), "the pod's group is the container's too")
	require.Equal(p.t, "1", p.proc("main", "NoNewPrivs"))
	require.Equal(p.t, "0", p.proc("other", "NoNewPrivs"))
}

// Bits of the kernel's capability sets.
const (
	capNetBind  = 1 << 10
	capNetAdmin = 1 << 12
	capSysTime  = 1 << 25
)

func (p *pod) capabilities(container string) (bits uint64) {
	p.t.Helper()
	_, err := fmt.Sscanf(p.proc(container, "CapEff"), "%x", &bits)
	require.NoError(p.t, err)
	return bits
}

// RT-11
func capabilities(p *pod) {
	p.runs()
	require.Equal(p.t, uint64(capNetBind), p.capabilities("fewer"))
	more := p.capabilities("more")
	require.Equal(p.t, uint64(capNetAdmin|capSysTime), more&(capNetAdmin|capSysTime))
	require.Equal(p.t, uint64(capNetBind), more&capNetBind, "the usual ones stay")
}

// RT-11
func readOnlyRoot(p *pod) {
	p.runs()
	said, code, err := p.sh("main", "touch /file")
	require.NoError(p.t, err)
	require.NotZero(p.t, code)
	require.Contains(p.t, said, "Read-only file system")
	p.says("main", "touch /tmp/file && ls /tmp", "file")
}

// RT-11
func seccomp(p *pod) {
	p.runs()
	require.Equal(p.t, "2", p.proc("filtered", "Seccomp"))
	require.Equal(p.t, "1", p.proc("filtered", "NoNewPrivs"))
	require.Equal(p.t, "0", p.proc("unfiltered", "Seccomp"))
}

// RT-11
func sharedProcesses(p *pod) {
	p.runs()
	p.says("shell", "cat /proc/1/comm", "pause")
	p.saysSoon("shell", "cat /proc/$(pidof httpd)/root/tmp/note", "of the web container")
	p.says("shell", "kill -0 $(pidof httpd) && echo can", "can")
}

// RT-11
func privileged(p *pod) {
	p.runs()
	host, err := os.ReadFile("/proc/self/status")
	require.NoError(p.t, err)
	for line := range strings.Lines(string(host)) {
		if bound, ok := strings.CutPrefix(line, "CapBnd:"); ok {
			require.Equal(p.t, strings.TrimSpace(bound), p.proc("main", "CapEff"), "all that this process may give")
		}
	}
	p.says("main", "grep -c ' /proc/sys ' /proc/self/mountinfo; test -w /proc/sys/kernel/hostname && echo writable", "0\nwritable")
}

func runAsNonRoot(p *pod) {
	require.Contains(p.t, p.waits("root", "CreateContainerConfigError").Message, "runAsNonRoot")
	require.Equal(p.t, corev1.PodPending, p.until(func(v *corev1.Pod) error { return nil }).Status.Phase)
}

// RT-11
func hostNetwork(p *pod) {
	v := p.runs()
	require.True(p.t, p.sharesNamespace("net"))
	require.False(p.t, p.sharesNamespace("pid"))
	name, err := os.Hostname()
	require.NoError(p.t, err)
	p.says("main", "hostname", name)
	require.Equal(p.t, nodeIP, v.Status.PodIP)
	p.reportsNoNetwork(v)
}

// RT-11
func hostProcesses(p *pod) {
	p.runs()
	require.True(p.t, p.sharesNamespace("pid"))
	require.True(p.t, p.sharesNamespace("ipc"))
	require.False(p.t, p.sharesNamespace("net"))
	p.says("main", fmt.Sprintf("test -d /proc/%d && echo seen", os.Getpid()), "seen")
}

// RT-11
func hostAliases(p *pod) {
	v := p.runs()
	p.says("main", "hostname", "front")
	hosts, _, err := p.sh("main", "cat /etc/hosts")
	require.NoError(p.t, err)
	for _, want := range []string{"127.0.0.1 foo.local bar.local", "10.1.2.3 foo.remote", v.Status.PodIP + " front"} {
		require.Contains(p.t, strings.Split(strings.ReplaceAll(hosts, "\t", " "), "\n"), want)
	}
}

// RT-11
func dnsConfig(p *pod) {
	p.runs()
	p.says("main", "cat /etc/resolv.conf",
		"search ns1.svc.cluster-domain.example my.dns.search.suffix\nnameserver 192.0.2.1\noptions ndots:2 edns0")
}

// RT-11
func sysctls(p *pod) {
	p.runs()
	p.says("main", "cat /proc/sys/kernel/shm_rmid_forced /proc/sys/net/ipv4/ip_unprivileged_port_start", "1\n7")
	host, err := os.ReadFile("/proc/sys/net/ipv4/ip_unprivileged_port_start")
	require.NoError(p.t, err)
	require.NotEqual(p.t, "7\n", string(host), "the node's own stays")
}

// RT-11
func resources(p *pod) {
	v := p.runs()
	require.Equal(p.t, corev1.PodQOSBurstable, v.Status.QOSClass)
	require.Equal(p.t, fmt.Sprint(64<<20), p.cgroup("memory", "memory.limit_in_bytes", "memory.max"))
	// Weights are those of version 2, of runtimes before and after runc 1.3.2.
	require.Contains(p.t, []string{"256", "10", "35"}, p.cgroup("cpu", "cpu.shares", "cpu.weight"))
	if quota := p.cgroup("cpu", "cpu.cfs_quota_us", "cpu.max"); quota != "50000 100000" {
		require.Equal(p.t, "50000", quota)
	}
}

func guaranteed(p *pod) {
	v := p.runs()
	require.Equal(p.t, corev1.PodQOSGuaranteed, v.Status.QOSClass)
	cgroup, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.pid("main")))
	require.NoError(p.t, err)
	require.Contains(p.t, string(cgroup), p.node.PodCgroup(p.t, v))
	require.Equal(p.t, fmt.Sprint(48<<20), p.cgroup("memory", "memory.limit_in_bytes", "memory.max"))
	p.reportsUsage(v)
}

func memoryExceeded(p *pod) {
	end := find(p.ends(corev1.PodFailed), "main").State.Terminated
	require.Equal(p.t, int32(137), end.ExitCode)
	if p.node.Name == "containerd-1.6" && end.Reason == "Error" {
		return // it sees the kill and its cause in any order, and has no event for the cause
	}
	require.Equal(p.t, "OOMKilled", end.Reason)
}

func hugepages(p *pod) {
	v := p.ends(corev1.PodFailed)
	require.Equal(p.t, "OutOfhugepages-2Mi", v.Status.Reason)
	p.neverWas()
}

func claim(p *pod) {
	p.eventually(func() error {
		for _, f := range p.agent.SourceErrors() {
			if strings.HasSuffix(f.Location, p.file) && strings.Contains(f.Err.Error(), "spec.volumes[0].persistentVolumeClaim") {
				return nil
			}
		}
		return fmt.Errorf("faults: %v", p.agent.SourceErrors())
	})
	p.neverWas()
}

// RT-11: a runtime that has no user namespaces does not get to run the pod with
// the node's ids.
func userNamespace(p *pod) {
	if !p.hasUserNamespaces() {
		p.hears("FailedCreatePodSandBox", "hostUsers false: containerd")
		require.Equal(p.t, corev1.PodPending, p.until(func(*corev1.Pod) error { return nil }).Status.Phase)
		p.neverWas()
		return
	}
	v := p.runs()
	text, err := os.ReadFile(filepath.Join(p.node.Shared, "agent/pods", string(v.UID), "userns"))
	require.NoError(p.t, err)
	var kept struct {
		UIDMappings, GIDMappings []struct{ HostID, ContainerID, Length uint32 }
	}
	require.NoError(p.t, json.Unmarshal(text, &kept))
	require.Equal(p.t, kept.UIDMappings, kept.GIDMappings)
	first := kept.UIDMappings[0].HostID
	require.Zero(p.t, first%65536)
	require.NotZero(p.t, first)
	for _, file := range []string{"uid_map", "gid_map"} {
		ids, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.pid("main"), file))
		require.NoError(p.t, err)
		require.Equal(p.t, []string{"0", fmt.Sprint(first), "65536"}, strings.Fields(string(ids)), file)
	}
	require.Equal(p.t, strings.TrimSpace(strings.Repeat(fmt.Sprint(first, " "), 4)), p.proc("main", "Uid"))
	require.Equal(p.t, strings.TrimSpace(strings.Repeat(fmt.Sprint(first+1000, " "), 4)), p.proc("other", "Uid"))
	p.says("main", "id -u", "0")
	p.says("main", "cat /note/note", "readable")
	p.says("main", "stat -c '%u %g %a' /disk /memory", "0 2000 2777\n0 2000 3777")
	p.says("main", "stat -c %u /image/bin/busybox", "0") // whatever id it has on the node
	p.saysSoon("main", "stat -c '%u %g' /disk/other /memory/mine", "1000 2000\n0 2000")
	p.says("main", "stat -c %u /etc/hosts /dev/termination-log; cat /dev/termination-log", "0\n0\ndone")
	var st unix.Stat_t
	require.NoError(p.t, unix.Stat(filepath.Join(p.node.Shared, "agent/pods", string(v.UID), "volumes/kubernetes.io~empty-dir/disk/other"), &st))
	require.EqualValues(p.t, 1000, st.Uid, "on disk the volume is as it would be without the namespace")
}

func (w *testEnv) hasUserNamespaces() bool {
	ctx, cancel := context.WithTimeout(context.Background(), longRunTime)
	defer cancel()
	st, err := w.rt.Status(ctx, &cri.StatusRequest{})
	return err == nil && slices.ContainsFunc(st.GetRuntimeHandlers(), func(h *cri.RuntimeHandler) bool {
		return h.GetName() == "" && h.GetFeatures().GetUserNamespaces()
	})
}
