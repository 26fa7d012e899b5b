//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/containerdtest"
	"github.com/sublet-dev/agent/internal/csitest"
)

// stormVolumes is the number of pods with a volume.
const stormVolumes = 20

// csiStorm is a node with pods that have volumes of a driver that fails, and one pod with a
// volume of a driver that hangs.
type csiStorm struct {
	*world
	dir, registry string
	driver, hung  *csitest.Driver

	mu     sync.Mutex
	calls  map[string]int  // by method
	failed map[string]bool // by method and volume
}

// fault fails the first call of each method for a volume: before it does anything for half of the
// volumes, and after it has done it for the others.
func (s *csiStorm) fault(done bool) func(context.Context, string, any) error {
	return func(_ context.Context, method string, request any) error {
		r, ok := request.(interface{ GetVolumeId() string })
		if !ok {
			return nil
		}
		i, err := strconv.Atoi(strings.TrimPrefix(r.GetVolumeId(), "v"))
		if err != nil || (i%2 == 0) == done {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.calls[method]++
		if key := method + r.GetVolumeId(); !s.failed[key] {
			s.failed[key] = true
			return status.Error(codes.Unavailable, "unavailable")
		}
		return nil
	}
}

func (s *csiStorm) handle(i int) string { return fmt.Sprint("v", i) }

// data returns what the pods of a volume have written.
func (s *csiStorm) data(i int) string {
	text, err := os.ReadFile(filepath.Join(s.driver.VolumeDir(s.handle(i)), "data", "log"))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func (s *csiStorm) serve(d *csitest.Driver, name string) (stop func(bool)) {
	s.t.Helper()
	stop, err := d.Serve(filepath.Join(s.dir, name+".sock"), filepath.Join(s.registry, name+".sock"))
	require.NoError(s.t, err)
	return stop
}

func (s *csiStorm) writeVolume(name, driver, handle string, gi int) {
	s.write(name+".yaml", fmt.Sprintf(`apiVersion: v1
kind: PersistentVolume
metadata: {name: %s}
spec: {accessModes: [ReadWriteOnce], capacity: {storage: %dGi}, csi: {driver: %s, volumeHandle: %s, fsType: ext4}}
`, name, gi, driver, handle))
}

// podOf is a pod that appends its name to a file of its volume.
func (s *csiStorm) podOf(name, volume string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 2
  volumes: [{name: data, persistentVolumeClaim: {claimName: %s}}]
  containers:
  - name: main
    image: %s
    imagePullPolicy: IfNotPresent
    command: ["sh", "-c", "trap 'exit 0' TERM; echo %s >>/data/log; sleep 3600 & wait"]
    volumeMounts: [{name: data, mountPath: /data}]
`, name, volume, s.node.Busybox, name)
}

// generation writes the pods of a generation, replaces those of the one before, and waits until
// they run and have written.
func (s *csiStorm) generation(g int) {
	s.t.Helper()
	s.writePods(g)
	s.eventually(3*longRunTime, func() error {
		_, err := s.runningPods(g)
		return err
	})
	s.eventually(longRunTime, func() error {
		for i := range stormVolumes {
			if want := fmt.Sprintf("p%d-%d\n", i, g); !strings.HasSuffix(s.data(i), want) {
				return fmt.Errorf("volume %d has %q, want %q at its end", i, s.data(i), want)
			}
		}
		return nil
	})
}

// VD-2, VD-3: twenty pods with volumes are made, moved, expanded and deleted, while calls of their
// driver fail, and agent and driver are killed. No mount, directory and staged volume is
// left, and each volume has what all its pods have written. A driver that hangs makes its own
// pod wait, and no other, and the event says for which volume of which driver.
func TestCSIStormOnContainerd(t *testing.T) {
	n := containerdtest.Start(t)
	dir, err := os.MkdirTemp("", "csi") //nolint:usetesting // its name is too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	s := &csiStorm{
		world: newWorld(t, n), dir: dir, registry: filepath.Join(dir, "plugins"), calls: map[string]int{}, failed: map[string]bool{},
		driver: &csitest.Driver{Dir: filepath.Join(n.Shared, "driver")}, hung: &csitest.Driver{Name: "hung.example", Dir: filepath.Join(n.Shared, "hung")},
	}
	s.extra = []string{"-csi", "-plugin-registry-dir", s.registry, "-sync-frequency=3s"}
	require.NoError(t, os.Mkdir(s.registry, 0o700))
	for i := range stormVolumes {
		require.NoError(t, s.driver.CreateVolumeDir(s.handle(i)))
		s.writeVolume(fmt.Sprint("disk", i), csitest.Name, s.handle(i), 1)
	}
	require.NoError(t, s.hung.CreateVolumeDir("h"))
	s.writeVolume("hung", "hung.example", "h", 1)
	s.write("waits.yaml", s.podOf("waits", "hung"))
	s.driver.SetBefore(s.fault(false))
	s.driver.SetAfter(s.fault(true))
	s.hung.SetBefore(func(ctx context.Context, method string, _ any) error {
		if method != "NodeStageVolume" {
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	})
	stop, stopHung := s.serve(s.driver, "csi"), s.serve(s.hung, "hung")
	defer func() { stop(false); stopHung(false) }()

	s.start()
	s.eventually(longRunTime, func() error {
		if len(s.hung.Calls("NodeStageVolume")) == 0 {
			return errors.New("the hung driver was not called")
		}
		return nil
	})
	s.generation(0)
	s.eventually(longRunTime, func() error {
		return s.logged(`reason=VolumeDriverSlow .*volume \\"data\\" waits for CSI driver hung.example, which has not answered NodeStageVolume for 10s`, "pod=default/waits-node")
	})

	// Moved, while the agent and the driver are killed in the middle of it.
	s.writePods(1)
	s.killDuring("NodeUnpublishVolume")
	stop(true)
	s.start()
	stop = s.serve(s.driver, "csi")
	s.generation(1)

	before, err := s.runningPods(1)
	require.NoError(t, err)
	for i := range stormVolumes { // expanded
		s.writeVolume(fmt.Sprint("disk", i), csitest.Name, s.handle(i), 2)
	}
	s.eventually(2*longRunTime, func() error {
		for i := range stormVolumes {
			if size := s.driver.Size(s.handle(i)); size != 2<<30 {
				return fmt.Errorf("volume %d has %d bytes", i, size)
			}
		}
		return nil
	})
	after, err := s.runningPods(1)
	require.NoError(t, err)
	require.Equal(t, before, after, "no pod is disturbed")

	// Deleted, while the agent is killed once more. The driver that hangs does not recover.
	for i := range stormVolumes {
		require.NoError(t, os.Remove(filepath.Join(s.manifests, fmt.Sprintf("pod%d.yaml", i))))
	}
	require.NoError(t, os.Remove(filepath.Join(s.manifests, "waits.yaml")))
	s.killDuring("NodeUnstageVolume")
	s.start()
	s.eventually(3*longRunTime, func() error { return s.running() })
	s.eventually(2*longRunTime, func() error { return nothingLeft(s.root) })
	for i := range stormVolumes {
		lines := slices.Compact(strings.Fields(s.data(i))) // a container whose start was interrupted may have written, too
		require.Equal(t, []string{fmt.Sprintf("p%d-0", i), fmt.Sprintf("p%d-1", i)}, lines)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, method := range []string{"NodeStageVolume", "NodePublishVolume", "NodeExpandVolume", "NodeUnpublishVolume", "NodeUnstageVolume"} {
		for i := range stormVolumes {
			require.True(t, s.failed[method+s.handle(i)], "%s of volume %d", method, i)
		}
	}
	require.Empty(t, s.hung.Calls("NodePublishVolume"))
}

func (s *csiStorm) writePods(g int) {
	s.t.Helper()
	for i := range stormVolumes {
		s.write(fmt.Sprintf("pod%d.yaml", i), s.podOf(fmt.Sprintf("p%d-%d", i, g), fmt.Sprint("disk", i)))
	}
}

// killDuring kills the agent after some more calls of a method.
func (s *csiStorm) killDuring(method string) {
	s.t.Helper()
	count := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.calls[method]
	}
	before := count()
	s.eventually(longRunTime, func() error {
		if n := count() - before; n < stormVolumes/4 {
			return fmt.Errorf("%d calls of %s", n, method)
		}
		return nil
	})
	s.signal(syscall.SIGKILL)
}

// runningPods returns the running container of each pod of a generation, and an error until exactly these pods run. A container
// whose start the end of an agent interrupted has exited; another one takes its place.
func (s *csiStorm) runningPods(g int) (ids map[string]string, err error) {
	have, err := s.containers()
	if err != nil {
		return nil, err
	}
	ids = map[string]string{}
	for i := range stormVolumes {
		name := fmt.Sprintf("p%d-%d-node", i, g)
		running := slices.DeleteFunc(slices.Clone(have[name]), func(c *cri.Container) bool { return c.GetState() == cri.ContainerState_CONTAINER_EXITED })
		if len(running) != 1 || running[0].GetState() != cri.ContainerState_CONTAINER_RUNNING {
			return nil, fmt.Errorf("pod %s has containers %v", name, have[name])
		}
		ids[name] = running[0].GetId()
		delete(have, name)
	}
	if len(have) > 0 {
		return nil, fmt.Errorf("pods %v should be gone", slices.Sorted(maps.Keys(have)))
	}
	return ids, nil
}

// logged returns an error until the agent has logged a line that matches both patterns.
func (w *world) logged(patterns ...string) error {
	text, err := os.ReadFile(w.out.Name())
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		if !slices.ContainsFunc(patterns, func(p string) bool { return !regexp.MustCompile(p).MatchString(line) }) {
			return nil
		}
	}
	return fmt.Errorf("no line of the log matches %q", patterns)
}
