//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/containerdtest"
	"github.com/sublet-dev/agent/internal/logtest"
)

// streamed is a command of a user that is connected to a container.
type streamed struct {
	cmd  *exec.Cmd
	out  logtest.Buffer
	done chan error
}

func (w *world) stream(args ...string) *streamed {
	s := &streamed{cmd: exec.Command(w.bin, append([]string{args[0], "-root-dir", w.root}, args[1:]...)...), done: make(chan error, 1)}
	s.cmd.Stdout, s.cmd.Stderr = &s.out, &s.out
	require.NoError(w.t, s.cmd.Start())
	go func() { s.done <- s.cmd.Wait() }()
	w.t.Cleanup(func() { _ = s.cmd.Process.Kill() })
	return s
}

func (s *streamed) says(text string) error {
	if got := s.out.String(); got != text {
		return fmt.Errorf("output is %q, want %q", got, text)
	}
	return nil
}

// A supervisor starts containerd again after it was killed, several times while pods are
// created: these run in the end, each once, no other pod notices, and streams through the
// runtime end with an error while logs are followed further.
func TestPodsOnContainerd_KilledUnderLoad(t *testing.T) {
	containerdtest.Stress(t, func(t *testing.T, n *containerdtest.Node) {
		w := newWorld(t, n)
		all := []string{"old0-node", "old1-node", "old2-node"}
		for i := range all {
			w.write(fmt.Sprintf("old%d.yaml", i), w.manifest(fmt.Sprintf("old%d", i), "1"))
		}
		w.start()
		w.up(all...)
		before := w.identity()
		session := w.stream("exec", "old0-node", "--", "sh", "-c", "echo connected; sleep 600")
		followed := w.stream("logs", "-f", "old1-node")
		w.eventually(soon, func() error { return errors.Join(session.says("connected\n"), followed.says("started 1\n")) })

		const kills = 4
		for kill := range kills {
			var young []string
			for i := range 3 {
				name := fmt.Sprintf("new%d%d", kill, i)
				w.write(name+".yaml", w.manifest(name, "1"))
				young = append(young, name+"-node")
			}
			w.eventually(longRunTime, func() error { return w.oneBegins(young) })
			time.Sleep(time.Duration(kill) * 150 * time.Millisecond) // another moment each time
			n.StopDaemon(t, syscall.SIGKILL)
			n.StartDaemon(t)
			all = append(all, young...)
		}
		w.eventually(2*longRunTime, func() error { return errors.Join(w.oneRuns(all), w.reportedRunning(all...)) })
		after := w.identity()
		for name, id := range before {
			assert.Equal(t, id, after[name], "%s was left alone", name)
		}
		require.NoError(t, w.cmd.Process.Signal(syscall.Signal(0)), "the agent runs")

		select {
		case err := <-session.done:
			require.Error(t, err)
			assert.Contains(t, session.out.String(), "nodeagent exec: ", "with a reason")
			t.Logf("the session ended with %v: %s", err, session.out.String())
		case <-time.After(soon):
			t.Error("the session hangs")
		}
		require.NoError(t, followed.says("started 1\n"))
		select {
		case err := <-followed.done:
			t.Errorf("the log is not followed any more: %v", err)
		default:
		}
		output, err := exec.Command(w.bin, "exec", "-root-dir", w.root, "old0-node", "--", "echo", "again").CombinedOutput()
		require.NoError(t, err, string(output))
		assert.Equal(t, "again\n", string(output))

		for _, name := range all {
			require.NoError(t, os.Remove(filepath.Join(w.manifests, strings.TrimSuffix(name, "-node")+".yaml")))
		}
		w.eventually(longRunTime, w.empty)
	})
}

// empty returns an error until the runtime has no sandbox.
func (w *world) empty() error {
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	r, err := w.rt.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err == nil && len(r.GetItems()) > 0 {
		err = fmt.Errorf("%d sandboxes are left, such as %v", len(r.GetItems()), r.GetItems()[0])
	}
	return err
}

// oneRuns returns an error until each of the pods has one running container. One that the
// kill found half started may have exited beside it.
func (w *world) oneRuns(names []string) error {
	have, err := w.containers()
	if err != nil {
		return err
	}
	for _, name := range names {
		running := 0
		for _, c := range have[name] {
			if c.GetState() == cri.ContainerState_CONTAINER_RUNNING {
				running++
			}
		}
		if running != 1 {
			return fmt.Errorf("%d containers of pod %s run", running, name)
		}
	}
	return nil
}

// oneBegins returns an error until the runtime has a sandbox of one of the pods.
func (w *world) oneBegins(names []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	r, err := w.rt.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	for _, sandbox := range r.GetItems() {
		for _, name := range names {
			if sandbox.GetMetadata().GetName() == name {
				return nil
			}
		}
	}
	return errors.New("no pod has a sandbox")
}
