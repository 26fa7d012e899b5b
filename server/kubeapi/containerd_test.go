//go:build linux

package kubeapi_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/containerdtest"
	"github.com/sublet-dev/agent/internal/logtest"
	"github.com/sublet-dev/agent/node"
)

// cluster is a node with real containers and the unmodified kubectl.
type cluster struct {
	*realNode
	kubectl, dir, image string
}

const containersManifest = `{apiVersion: v1, kind: Pod, metadata: {name: web, labels: {app: web}}, spec: {terminationGracePeriodSeconds: 1, containers: [
  {name: main, image: IMAGE, command: [sh, -c, 'mkdir /www; echo hello > /www/index.html; httpd -p 8080 -h /www; seq 1 100; exec sleep 10000']},
  {name: shell, image: IMAGE, command: [sh], stdin: true, tty: true},
  {name: crash, image: IMAGE, command: [sh, -c, 'echo bye; exit 3']}]}}`

const jobManifest = `apiVersion: v1
kind: Pod
metadata: {name: job, labels: {app: job}}
spec: {terminationGracePeriodSeconds: 1, containers: [{name: main, image: IMAGE, command: [sleep, "10000"]}]}
`

// TestAgent_KubectlOnContainerd is what an operator does with kubectl on an edge box: the
// agent, containerd and nothing else. SV-4
func TestAgent_KubectlOnContainerd(t *testing.T) {
	kubectl := findKubectl(t)
	ctrd := containerdtest.Start(t)
	dir := filepath.Join(ctrd.Shared, "agent")
	require.NoError(t, os.Mkdir(dir, 0o755))
	n := serveNode(t, dir, ctrd.Dial(t), node.Config{IPs: []string{"192.0.2.10"}, CgroupRoot: ctrd.CgroupParent}, strings.ReplaceAll(containersManifest, "IMAGE", ctrd.Busybox))
	c := &cluster{realNode: n, kubectl: kubectl, dir: t.TempDir(), image: ctrd.Busybox}
	n.waitFor(t, "web-"+nodeName, func(pod *corev1.Pod) bool {
		for i := range pod.Status.ContainerStatuses {
			if s := &pod.Status.ContainerStatuses[i]; s.Name == "crash" && s.RestartCount == 0 || s.Name != "crash" && !s.Ready {
				return false
			}
		}
		return len(pod.Status.ContainerStatuses) == 3
	})
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"logs", c.logs},
		{"exec", c.exec},
		{"attach", c.attach},
		{"cp", c.cp},
		{"port-forward", c.portForward},
		{"inspect", c.inspect},
		{"change", c.change},
		{"debug", c.debug},
		{"refusals", c.refusals},
		{"delete", c.delete},
	} {
		t.Run(test.name, test.run)
	}
}

// command returns a kubectl. DIR and IMAGE in its arguments are replaced.
func (c *cluster) command(t *testing.T, args string) *exec.Cmd {
	t.Helper()
	fields := strings.Fields(args)
	for i := range fields {
		fields[i] = strings.NewReplacer("DIR", c.dir, "IMAGE", c.image, "·", " ").Replace(fields[i])
	}
	cmd := exec.CommandContext(t.Context(), c.kubectl, append([]string{"--kubeconfig", c.kubeconfig, "--cache-dir", filepath.Join(c.dir, "cache")}, fields...)...)
	cmd.WaitDelay = time.Minute
	return cmd
}

// run returns what a kubectl prints and its exit code. A · is a space in an argument.
func (c *cluster) run(t *testing.T, args string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := c.command(t, args)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	code = exitCode(t, cmd.Run(), &out, &errs)
	return out.String(), errs.String(), code
}

// exitCode returns that of a process, and 0 for no error.
func exitCode(t *testing.T, err error, printed ...fmt.Stringer) int {
	t.Helper()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	require.NoError(t, err, "%s", printed)
	return 0
}

// says runs kubectls that succeed, in order, each with a part of what it prints.
func (c *cluster) says(t *testing.T, commands ...[2]string) {
	t.Helper()
	for _, cmd := range commands {
		stdout, stderr, code := c.run(t, cmd[0])
		assert.Zero(t, code, "%s: %s", cmd[0], stderr)
		assert.Contains(t, stdout+stderr, cmd[1], cmd[0])
	}
}

// fails runs kubectls that fail.
func (c *cluster) fails(t *testing.T, commands ...[2]string) {
	t.Helper()
	for _, cmd := range commands {
		stdout, stderr, code := c.run(t, cmd[0])
		assert.NotZero(t, code, cmd[0])
		assert.Contains(t, stderr, cmd[1], cmd[0]+stdout)
	}
}

func (c *cluster) write(t *testing.T, name, text string, mode os.FileMode) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(c.dir, name), []byte(strings.ReplaceAll(text, "IMAGE", c.image)), mode))
}

func (c *cluster) logs(t *testing.T) {
	const all = "logs web-edge-1 -c main "
	for args, want := range map[string]string{
		all + "--tail=3":                                           "98\n99\n100\n",
		all + "--limit-bytes=4":                                    "1\n2\n",
		all + "--since=1h --limit-bytes=2":                         "1\n",
		all + "--since-time=2999-01-01T00:00:00Z":                  "",
		"logs -l app=web -c main --tail=1":                         "100\n",
		"logs web-edge-1 -c main --tail=1 --prefix":                "[pod/web-edge-1/main] 100\n",
		"logs pod/web-edge-1 -c crash -p":                          "bye\n",
		"logs web-edge-1 -c crash --previous -f":                   "bye\n",
		all + "--tail=1 --ignore-errors --pod-running-timeout=60s": "100\n",
	} {
		stdout, stderr, code := c.run(t, args)
		assert.Equal(t, want, stdout, "%s: %s", args, stderr)
		assert.Zero(t, code, args)
	}
	stdout, stderr, _ := c.run(t, "logs web-edge-1")
	assert.Equal(t, 100, strings.Count(stdout, "\n"))
	assert.Contains(t, stderr, `Defaulted container "main" out of: main, shell, crash`)
	stdout, _, _ = c.run(t, all+"--timestamps --tail=1")
	assert.Regexp(t, regexp.MustCompile(`^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+\S+ 100\n$`), stdout)
	stdout, _, _ = c.run(t, "logs web-edge-1 --all-containers --prefix --tail=1")
	for _, line := range []string{"[pod/web-edge-1/main] 100\n", "[pod/web-edge-1/crash] bye\n"} {
		assert.Contains(t, stdout, line)
	}
	c.fails(t, [2]string{all + "-p", `previous terminated container "main" in pod "web-edge-1" not found`}, [2]string{"logs web-edge-1 -c none", "container none is not valid"},
		[2]string{"logs none", "not found"})

	// A log that is followed ends with its container.
	c.says(t, [2]string{"run count --restart=Never --image=IMAGE -- sh -c for·i·in·$(seq·200);·do·echo·$i;·sleep·0.01;·done", "created"},
		[2]string{"wait --for=jsonpath={.status.containerStatuses[0].containerID} pod/count --timeout=180s", "condition met"})
	stdout, stderr, code := c.run(t, "logs -f count")
	assert.Zero(t, code, stderr)
	assert.Equal(t, 200, strings.Count(stdout, "\n"))
	assert.True(t, strings.HasSuffix(stdout, "\n199\n200\n"), stdout)
}

func (c *cluster) exec(t *testing.T) {
	stdout, stderr, code := c.run(t, "exec web-edge-1 -c main -- sh -c echo·out;·echo·problem·>&2;·exit·42")
	assert.Equal(t, "out\n", stdout)
	assert.Equal(t, "problem\ncommand terminated with exit code 42\n", stderr)
	assert.Equal(t, 42, code)
	c.fails(t, [2]string{"exec web-edge-1 -c main -- none", "executable file not found"}, [2]string{"exec none -- true", "not found"})
	// While it waits for its next start. Until its end is known, the runtime says what is wrong.
	require.Eventually(t, func() bool {
		_, stderr, code := c.run(t, "exec web-edge-1 -c crash -- true")
		return code != 0 && strings.Contains(stderr, `container "crash"`)
	}, time.Minute, time.Second)

	tty := c.terminal(t, "exec -it web-edge-1 -c main -- sh", 33, 101)
	tty.prints(t, "stty size\n", "33 101")
	tty.resize(t, 44, 155)
	tty.prints(t, "stty size\n", "44 155")
	assert.Equal(t, 9, tty.end(t, "exit 9\n"))
}

func (c *cluster) attach(t *testing.T) {
	tty := c.terminal(t, "attach -it web-edge-1 -c shell", 20, 60)
	tty.prints(t, "echo attached $((40+2))\n", "attached 42")
	tty.prints(t, "stty size\n", "20 60")
	tty.resize(t, 21, 61)
	tty.prints(t, "stty size\n", "21 61")
	assert.Zero(t, tty.end(t, "exit 5\n"), "kubectl attach has no exit code of the container")
	c.waitFor(t, "web-"+nodeName, func(pod *corev1.Pod) bool {
		for i := range pod.Status.ContainerStatuses {
			if s := &pod.Status.ContainerStatuses[i]; s.Name == "shell" && s.Ready && s.LastTerminationState.Terminated != nil {
				return s.LastTerminationState.Terminated.ExitCode == 5
			}
		}
		return false
	})
}

// 50 MB, both ways, which is more than all buffers and windows on it; 200 MB with the kubectl of SUBLET_KUBECTL.
func (c *cluster) cp(t *testing.T) {
	size := int64(50_000_000)
	if os.Getenv("SUBLET_KUBECTL") != "" {
		size = 200_000_000
	}
	file, err := os.Create(filepath.Join(c.dir, "data"))
	require.NoError(t, err)
	sum := sha256.New()
	_, err = io.Copy(io.MultiWriter(file, sum), io.LimitReader(rand.NewChaCha8([32]byte{1}), size))
	require.NoError(t, errors.Join(err, file.Close()))
	want := fmt.Sprintf("%x", sum.Sum(nil))
	c.says(t, [2]string{"cp DIR/data web-edge-1:/tmp/data -c main", ""}, [2]string{"exec web-edge-1 -c main -- sha256sum /tmp/data", want},
		[2]string{"cp web-edge-1:/tmp/data DIR/back -c main", ""}, [2]string{"exec web-edge-1 -c main -- rm /tmp/data", ""})
	back, err := os.Open(filepath.Join(c.dir, "back"))
	require.NoError(t, err)
	defer back.Close()
	sum.Reset()
	_, err = io.Copy(sum, back)
	require.NoError(t, err)
	assert.Equal(t, want, fmt.Sprintf("%x", sum.Sum(nil)))
}

// 100 connections at the same time through one port-forward.
func (c *cluster) portForward(t *testing.T) {
	cmd := c.command(t, "port-forward pod/web-edge-1 :8080 --address=127.0.0.1")
	var out, errs logtest.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	require.NoError(t, cmd.Start())
	defer func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	}()
	var match []string
	eventually(t, func() bool {
		match = regexp.MustCompile(`Forwarding from (127\.0\.0\.1:\d+) -> 8080`).FindStringSubmatch(out.String())
		return match != nil
	}, "the port")
	conns := make([]net.Conn, 100)
	for i := range conns {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", match[1])
		require.NoError(t, err)
		defer conn.Close()
		require.NoError(t, conn.SetDeadline(time.Now().Add(testTimeout)))
		conns[i] = conn
	}
	var wg sync.WaitGroup
	for i, conn := range conns { // all are open
		wg.Go(func() {
			_, err := io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n")
			assert.NoError(t, err)
			b, err := io.ReadAll(conn)
			assert.NoError(t, err, "connection %d", i)
			assert.True(t, strings.HasSuffix(string(b), "\r\n\r\nhello\n"), "connection %d: %q", i, b)
		})
	}
	wg.Wait()
	assert.Empty(t, errs.String())
	c.fails(t, [2]string{"port-forward pod/count :80", "pod is not running"})
}

func (c *cluster) inspect(t *testing.T) {
	eventually(t, func() bool { // the container runs now and then
		stdout, _, code := c.run(t, "get pods -o wide")
		return code == 0 && strings.Contains(stdout, "CrashLoopBackOff")
	}, "get pods -o wide")
	c.says(t, [2]string{"get all", "web-edge-1"}, [2]string{"cluster-info", "is running at"},
		[2]string{"describe pod web-edge-1", "containerd://"}, [2]string{"describe pod web-edge-1", "Back-off restarting failed container crash"},
		[2]string{"describe node edge-1", "HolderIdentity:  edge-1"}, [2]string{"describe node edge-1", "Kubelet Version:            v1.37"},
		[2]string{"describe node edge-1", "Non-terminated Pods:          (1 in total)"}, [2]string{"get leases -A", "kube-node-lease   edge-1   edge-1"},
		[2]string{"get nodes -o wide", "containerd://"}, [2]string{"events --for pod/web-edge-1", "Container started: shell"},
		[2]string{"get events --field-selector reason=BackOff", "web-edge-1"}, [2]string{"explain lease.spec.renewTime", "GROUP:      coordination.k8s.io"})
	stdout, _, _ := c.run(t, "describe node edge-1")
	assert.NotContains(t, stdout, "Failed to get")
	for args, want := range map[string]string{"top pod --containers": "main", "top pod -l app=web": "web-edge-1", "top node": "edge-1"} {
		eventually(t, func() bool { // usage is known after the second measurement
			stdout, _, code := c.run(t, args)
			return code == 0 && strings.Contains(stdout, want)
		}, args)
	}
}

func (c *cluster) change(t *testing.T) {
	watch := c.command(t, "get pods -w --field-selector=metadata.name=job")
	var out logtest.Buffer
	watch.Stdout = &out
	require.NoError(t, watch.Start())
	defer func() {
		_ = watch.Process.Kill()
		_ = watch.Wait()
	}()
	c.write(t, "job.yaml", jobManifest, 0o600)
	c.write(t, "label.sh", "#!/bin/sh\nsed -i 's/app: job/app: edited/' \"$1\"\n", 0o700)
	t.Setenv("KUBE_EDITOR", filepath.Join(c.dir, "label.sh"))
	c.says(t, [2]string{"apply -f DIR/job.yaml", "created"},
		[2]string{"wait --for=condition=Ready pod/job --timeout=180s", "condition met"}, [2]string{"apply -f DIR/job.yaml", "unchanged"},
		[2]string{"edit pod job", "edited"}, [2]string{"get pod -l app=edited -o name", "pod/job"})
	for _, line := range []string{`job +0/1 +\S+ +0 `, `job +1/1 +Running +0 `} {
		eventually(t, func() bool { return regexp.MustCompile(line).MatchString(out.String()) }, line)
	}
}

func (c *cluster) debug(t *testing.T) {
	tty := c.terminal(t, "debug job -it --image=IMAGE -c dbg --target=main -- sh", 24, 80)
	tty.prints(t, "ps\n", "sleep 10000") // the target's processes
	tty.end(t, "exit\n")
	c.says(t, [2]string{"get pod job -o jsonpath={.status.ephemeralContainerStatuses[0].name}", "dbg"}, [2]string{"debug job --image=IMAGE --copy-to=job2 -- sleep 1000", ""},
		[2]string{"wait --for=condition=Ready pod/job2 --timeout=180s", "condition met"}, [2]string{"delete pod job2 --now", "deleted"},
		[2]string{"debug node/edge-1 --image=IMAGE -- cat /host/proc/1/comm", "Creating debugging pod"})
	c.fails(t, [2]string{"debug web-edge-1 --image=IMAGE -- true", `comes from the source "file"`})
}

// What a node alone does not do, it says.
func (c *cluster) refusals(t *testing.T) {
	t.Setenv("KUBE_EDITOR", filepath.Join(c.dir, "node.sh"))
	c.write(t, "node.sh", "#!/bin/sh\nsed -i 's/^  name: edge-1/  labels: {a: b}\\n  name: edge-1/' \"$1\"\n", 0o700)
	c.write(t, "cm.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n", 0o600)
	c.fails(t, [2]string{"edit node edge-1", "a node alone serves them read-only"}, [2]string{"label node edge-1 a=b", "a node alone serves them read-only"},
		[2]string{"taint node edge-1 a=b:NoSchedule", "read-only"}, [2]string{"apply -f DIR/cm.yaml", "create of configmaps is not supported"},
		[2]string{"get secrets", "secrets are not served"}, [2]string{"create deployment d --image=IMAGE", "could not find the requested resource"},
		[2]string{"label pod web-edge-1 a=b", `comes from the source "file"`})
	_, stderr, _ := c.run(t, "cordon edge-1") // kubectl's exit code is 0
	assert.Contains(t, stderr, "unable to cordon node")
	assert.Contains(t, stderr, "read-only")
}

func (c *cluster) delete(t *testing.T) {
	before := c.waitFor(t, "web-"+nodeName, func(*corev1.Pod) bool { return true })
	c.says(t, [2]string{"delete pod job", "deleted"}, [2]string{"delete pod web-edge-1", "deleted"})
	c.fails(t, [2]string{"get pod job", "not found"})
	c.waitFor(t, "web-"+nodeName, func(pod *corev1.Pod) bool { // its file says that it runs
		return pod.UID != before.UID && len(pod.Status.ContainerStatuses) == 3 && pod.Status.ContainerStatuses[1].Ready
	})
}
