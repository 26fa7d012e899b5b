//go:build linux

package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// RT-11: what the runtime made of a container's settings, as the kernel has it.
func process(p *pod) {
	v := p.runs()
	for key, want := range map[string]string{
		"Uid": "1001 1001 1001 1001", "Gid": "3001 3001 3001 3001", "Groups": "2001 3001 4001 4002",
		"NoNewPrivs": "1", "Seccomp": "2", "CapBnd": "0000000000000400", "CapAmb": "0000000000000000",
	} {
		require.Equal(p.t, want, p.proc("main", key), key)
	}
	require.Equal(p.t, "0", p.proc("other", "NoNewPrivs"))
	pid, other, pause := p.pid("main"), p.pid("other"), p.pausePID()

	for kind, with := range map[string]int{"net": other, "ipc": other, "uts": other} {
		require.Equal(p.t, namespace(p, with, kind), namespace(p, pid, kind), "containers share %s", kind)
		require.Equal(p.t, namespace(p, pause, kind), namespace(p, pid, kind), "it is the sandbox's")
	}
	for _, kind := range []string{"pid", "mnt"} {
		require.NotEqual(p.t, namespace(p, other, kind), namespace(p, pid, kind), "each has a %s of its own", kind)
	}
	for _, kind := range []string{"net", "ipc", "uts", "pid", "mnt"} {
		require.NotEqual(p.t, namespace(p, os.Getpid(), kind), namespace(p, pid, kind), "%s is not the node's", kind)
	}
	require.Equal(p.t, namespace(p, os.Getpid(), "user"), namespace(p, pid, "user"))

	groups := p.read(pid, "cgroup")
	require.Contains(p.t, groups, p.node.PodCgroup(p.t, v)+"/")
	want := bounds{shares: 204, quota: 40000, memory: 64 << 20, pod: none}
	require.Equal(p.t, want, boundsOf(pid, want))

	env := strings.Split(p.read(pid, "environ"), "\x00")
	require.Subset(p.t, env, []string{"FIRST=one", "SECOND=one, two", "PATH=/bin", "HOSTNAME=process-" + nodeName})
	require.Equal(p.t, "sleep\x003600\x00", p.read(pid, "cmdline"))
	cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
	require.NoError(p.t, err)
	require.Equal(p.t, "/data/deeper", cwd)
	require.Equal(p.t, p.read(pause, "limits"), p.read(pid, "limits"), "a pod says nothing of rlimits: they are the runtime's")

	mounts := mountsOf(p.read(pid, "mountinfo"))
	for path, flag := range map[string]string{"/": "ro", "/data": "rw", "/seen": "ro", "/etc/hosts": "", "/dev/termination-log": "rw", "/proc/keys": "", "/dev/shm": "rw"} {
		require.Contains(p.t, mounts, path, "%v", slices.Sorted(maps.Keys(mounts)))
		if flag != "" {
			require.Contains(p.t, strings.Split(mounts[path], ","), flag, path)
		}
	}
	require.Contains(p.t, strings.Split(mounts["/proc/sys"], ","), "ro")
}

// pausePID is the first process of the pod's sandbox.
func (p *pod) pausePID() int {
	p.t.Helper()
	list, err := p.rt.ListPodSandbox(p.t.Context(), &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{
		LabelSelector: map[string]string{"io.kubernetes.pod.name": p.name + "-" + nodeName},
	}})
	require.NoError(p.t, err)
	require.Len(p.t, list.GetItems(), 1)
	st, err := p.rt.PodSandboxStatus(p.t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: list.GetItems()[0].GetId(), Verbose: true})
	require.NoError(p.t, err)
	return pidOf(p.t, st.GetInfo())
}

func (p *pod) read(pid int, file string) string {
	p.t.Helper()
	text, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), file))
	require.NoError(p.t, err)
	return string(text)
}

func namespace(p *pod, pid int, kind string) string {
	p.t.Helper()
	id, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
	require.NoError(p.t, err)
	return id
}

// mountsOf returns the options of the topmost mount on each path.
func mountsOf(mountinfo string) map[string]string {
	found := map[string]string{}
	for line := range strings.Lines(mountinfo) {
		if f := strings.Fields(line); len(f) > 5 {
			found[f[4]] = f[5]
		}
	}
	return found
}
