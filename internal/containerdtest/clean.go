//go:build linux

package containerdtest

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/cgroup"
)

const (
	cleanTimeout = 3 * time.Minute
	cgroupMount  = "/sys/fs/cgroup"
)

// clean removes every pod, the daemon, what it left running, its mounts, its
// cgroups and its files.
func (n *Node) clean(t testing.TB) {
	t.Helper()
	if n.cmd != nil {
		n.Purge(t)
		n.StopDaemon(t, syscall.SIGTERM)
	}
	n.Registry.srv.CloseClientConnections()
	n.Registry.srv.Close()
	n.killShims()
	for _, m := range n.Mounts() {
		_ = unix.Unmount(m, unix.MNT_DETACH) // RemoveAll below reports what remains
	}
	RemoveCgroups(n.CgroupParent)
	if n.CgroupDriver == cgroup.Systemd {
		if out, err := exec.Command("systemctl", "stop", filepath.Base(n.CgroupParent)).CombinedOutput(); err != nil {
			t.Errorf("stop slice: %v: %s", err, out)
		}
	}
	if err := n.network.release(); err != nil {
		t.Error(err)
	}
	if t.Failed() {
		t.Logf("log of %s:\n%s", n.Name, n.Log())
	}
	if err := os.RemoveAll(n.dir); err != nil {
		t.Errorf("remove %s: %v", n.dir, err)
	}
}

// Purge removes every pod of the runtime.
func (n *Node) Purge(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Timeout(cleanTimeout))
	defer cancel()
	rt := cri.NewRuntimeServiceClient(n.Dial(t))
	cs, err := rt.ListContainers(ctx, &cri.ListContainersRequest{})
	if err != nil {
		t.Errorf("purge: list containers: %v", err)
		return
	}
	for _, c := range cs.GetContainers() {
		_, err := rt.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: c.GetId()})
		if err != nil {
			t.Logf("purge: stop container: %v", err)
		}
	}
	ps, err := rt.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		t.Errorf("purge: list sandboxes: %v", err)
		return
	}
	for _, p := range ps.GetItems() {
		_, err1 := rt.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: p.GetId()})
		_, err2 := rt.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: p.GetId()})
		if err := errors.Join(err1, err2); err != nil {
			t.Logf("purge: remove sandbox: %v", err)
		}
	}
}

// Mounts returns the mount points below the node's directory, deepest first.
func (n *Node) Mounts() []string {
	b, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil
	}
	var found []string
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], n.dir+"/") {
			found = append(found, f[1])
		}
	}
	slices.Sort(found)
	slices.Reverse(found)
	return found
}

// Cgroups returns the cgroup directories below the node's parent, in every hierarchy.
func (n *Node) Cgroups() []string { return cgroups(n.CgroupParent) }

// cgroupRoots returns the directories of a cgroup in the hierarchies, or in the only one.
func cgroupRoots(parent string) []string {
	roots, _ := filepath.Glob(filepath.Join(cgroupMount, "*", parent)) // the pattern is well-formed
	if _, err := os.Stat(filepath.Join(cgroupMount, parent)); err == nil {
		roots = append(roots, filepath.Join(cgroupMount, parent))
	}
	return roots
}

func cgroups(parent string) []string {
	var found []string
	for _, r := range cgroupRoots(parent) {
		_ = filepath.WalkDir(r, func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && p != r {
				found = append(found, p)
			}
			return nil
		})
	}
	return found
}

// RemoveCgroups kills the processes below a cgroup path and removes its directories in
// every hierarchy. parent must not be used by anything else.
func RemoveCgroups(parent string) {
	dirs := append(cgroupRoots(parent), cgroups(parent)...)
	slices.Sort(dirs)
	slices.Reverse(dirs)
	for _, d := range dirs {
		b, _ := os.ReadFile(filepath.Join(d, "cgroup.procs")) // gone: nothing to kill
		for f := range strings.FieldsSeq(string(b)) {
			if pid, err := strconv.Atoi(f); err == nil && pid > 1 {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		left := false
		for _, d := range dirs {
			if err := os.Remove(d); err != nil && !errors.Is(err, fs.ErrNotExist) {
				left = true
			}
		}
		if !left {
			return
		}
	}
}

// Shims returns the processes of the node's shims by the ids of their sandboxes.
func (n *Node) Shims() map[string][]int {
	shims := map[string][]int{}
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is well-formed
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		args := strings.Split(string(b), "\x00")
		id := slices.Index(args, "-id") + 1
		if !strings.Contains(args[0], "containerd-shim") || !strings.Contains(string(b), n.Socket) || id == 0 || id == len(args) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f))); err == nil {
			shims[args[id]] = append(shims[args[id]], pid)
		}
	}
	return shims
}

// killShims ends shims of this node that outlived the daemon.
func (n *Node) killShims() {
	for _, pids := range n.Shims() {
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}
