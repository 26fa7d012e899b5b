package stats

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// isolated starts a process in a network namespace of its own, with an interface eth0.
func isolated(t *testing.T) (pid int) {
	t.Helper()
	const setUp = "ip link add eth0 type veth peer name peer0 && ip addr add 10.0.0.1/24 dev eth0 && " +
		"ip link set eth0 up && ip link set peer0 up && echo ready && exec cat"
	cmd := exec.Command("unshare", "-n", "sh", "-c", setUp)
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	if err := cmd.Start(); err != nil {
		t.Skip("needs root and unshare: ", err)
	}
	t.Cleanup(func() {
		stdin.Close() // it ends the process
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil || line != "ready\n" {
		t.Skip("needs root, network namespaces and ip: ", line, err)
	}
	return cmd.Process.Pid
}

// testCgroup returns a new cgroup, of the pids controller on v1, and a function that moves a process into one below it.
func testCgroup(t *testing.T) (group string, add func(pid int)) {
	t.Helper()
	root := "/sys/fs/cgroup"
	if !openGroups(os.DirFS(root)).v2 {
		root += "/pids"
	}
	group = fmt.Sprintf("/sublet-stats-test-%d", os.Getpid())
	child := filepath.Join(root, group, "container")
	if err := os.MkdirAll(child, 0o755); err != nil {
		t.Skip("needs root and cgroups: ", err)
	}
	t.Cleanup(func() {
		for _, dir := range []string{child, filepath.Dir(child)} {
			assert.Eventually(t, func() bool { err := os.Remove(dir); return err == nil || errors.Is(err, os.ErrNotExist) }, time.Minute, 10*time.Millisecond)
		}
	})
	return group, func(pid int) {
		require.NoError(t, os.WriteFile(filepath.Join(child, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o600))
	}
}

// sendFrom sends a datagram from the network namespace of a process.
func sendFrom(t *testing.T, pid int) {
	t.Helper()
	out, err := exec.Command("nsenter", "-n", "-t", strconv.Itoa(pid), "bash", "-c", "echo x >/dev/udp/10.0.0.2/9").CombinedOutput()
	require.NoError(t, err, string(out))
}

// The network of a pod is what the kernel counts in its namespace, and no file of the
// namespace is kept open. A process on the network of the host has none.
func TestProvider_RealPodNetwork(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: it makes a network namespace and a cgroup")
	}
	group, add := testCgroup(t)
	p, err := New(Config{Pods: func() []Pod { return []Pod{{Pod: &corev1.Pod{}, Cgroup: group}} }})
	require.NoError(t, err)
	network := func() *NetworkStats {
		s, err := p.Summary(t.Context(), "n", nil)
		require.NoError(t, err)
		require.NotNil(t, s.Node.Swap)
		return s.Pods[0].Network
	}
	assert.Nil(t, network(), "no process")

	host := exec.Command("sleep", "1000")
	require.NoError(t, host.Start())
	defer func() {
		_ = host.Process.Kill()
		_ = host.Wait()
	}()
	add(host.Process.Pid)
	assert.Nil(t, network(), "on the network of the host")

	pid := isolated(t)
	for _, tool := range []string{"nsenter", "bash"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("needs root and ", tool)
		}
	}
	add(pid)
	sendFrom(t, pid)
	require.Eventually(t, func() bool { n := network(); return n != nil && *n.TxBytes > 0 }, time.Minute, 10*time.Millisecond)
	n := network()
	assert.Equal(t, "eth0", n.Name)
	names := map[string]bool{}
	for _, i := range n.Interfaces {
		names[i.Name] = true
	}
	assert.True(t, names["peer0"])
	assert.False(t, names["lo"])
	assert.Empty(t, p.procUncached.kept.files)
}
