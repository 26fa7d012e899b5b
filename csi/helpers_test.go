package csi

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/csitest"
	"github.com/sublet-dev/agent/internal/leaktest"
	"github.com/sublet-dev/agent/internal/mounts"
	"github.com/sublet-dev/agent/pluginregistry"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/volume"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// testTimeout bounds what a test waits for on a busy machine.
const testTimeout = 60 * time.Second

// testEnv is a node with the driver of the test kit.
type testEnv struct {
	t      *testing.T
	dir    string
	driver *csitest.Driver
	*Manager
	stop func(leave bool)

	mu      sync.Mutex
	events  []*corev1.Event
	objects map[string]map[string][]byte // Secrets by name
	csi     *storagev1.CSIDriver         // nil: not found
}

// stagedVolume is the volume of volumeOf with the handle v.
var stagedVolume = volumeID{csitest.Name, "v", "pv-v", false}

// newEnv serves the driver and registers it. change may be nil.
func newEnv(t *testing.T, change func(e *testEnv, cfg *Config)) *testEnv {
	t.Helper()
	dir, err := os.MkdirTemp("", "csi") //nolint:usetesting // its name is too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() {
		table, err := mounts.Below(dir)
		require.NoError(t, err)
		require.Empty(t, table, "mounts are left")
		require.NoError(t, os.RemoveAll(dir))
	})
	e := &testEnv{t: t, dir: dir, driver: &csitest.Driver{Dir: filepath.Join(dir, "driver")}}
	e.restart(change)
	e.serve()
	t.Cleanup(func() { e.stop(false) })
	return e
}

// restart replaces the Manager, as a new process does.
func (e *testEnv) restart(change func(e *testEnv, cfg *Config)) {
	e.t.Helper()
	cfg := Config{Root: filepath.Join(e.dir, "root"), NodeName: "node", Drivers: e, Recorder: e, CallTimeout: testTimeout, SlowCallAge: testTimeout}
	if change != nil {
		change(e, &cfg)
	}
	if e.Manager != nil {
		e.closeAll()
	}
	m, err := New(cfg)
	require.NoError(e.t, err)
	m.updateWait = testTimeout // a busy machine needs more than the few seconds that pods wait
	e.Manager = m
	e.t.Cleanup(m.closeAll)
}

func (e *testEnv) endpoint() string { return filepath.Join(e.dir, "csi.sock") }

// serve starts the driver, and registers it.
func (e *testEnv) serve() {
	e.t.Helper()
	var err error
	e.stop, err = e.driver.Serve(e.endpoint(), "")
	require.NoError(e.t, err)
	e.register()
}

func (e *testEnv) register() {
	e.t.Helper()
	require.NoError(e.t, e.Register(e.t.Context(), e.plugin()))
}

func (e *testEnv) plugin() pluginregistry.Plugin {
	return pluginregistry.Plugin{Socket: "/registration.sock", Type: PluginType, Name: csitest.Name, Endpoint: e.endpoint(), Versions: []string{"1.0.0"}}
}

// Record implements Recorder.
func (e *testEnv) Record(event *corev1.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.events = append(e.events, event)
}

// recorded returns the messages of events of a reason.
func (e *testEnv) recorded(reason string) (list []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, event := range e.events {
		if event.Reason == reason {
			list = append(list, event.InvolvedObject.Name+": "+event.Message)
		}
	}
	return list
}

// setCSIDriver sets the CSIDriver of the driver.
func (e *testEnv) setCSIDriver(s storagev1.CSIDriverSpec) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.csi = &storagev1.CSIDriver{Spec: s}
}

// CSIDriver implements Drivers.
func (e *testEnv) CSIDriver(context.Context, string) (*storagev1.CSIDriver, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.csi == nil {
		return nil, podspec.ErrObjectNotFound
	}
	return e.csi, nil
}

// Object implements podspec.Objects.
func (e *testEnv) Object(_ context.Context, ref podspec.Ref) (podspec.Object, error) {
	data, ok := e.objects[ref.Namespace+"/"+ref.Name]
	if !ok || ref.Kind != podspec.Secret {
		return podspec.Object{}, podspec.ErrObjectNotFound
	}
	return podspec.Object{Ref: ref, Data: data}, nil
}

func newPod(uid string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pod-" + uid, Namespace: "default", UID: types.UID(uid)},
		Spec:       corev1.PodSpec{ServiceAccountName: "robot"},
	}
}

// volumeOf returns the volume of a PersistentVolume with a handle, which exists.
func (e *testEnv) volumeOf(pod *corev1.Pod, handle string) volume.DriverVolume {
	e.t.Helper()
	require.NoError(e.t, e.driver.CreateVolumeDir(handle))
	return volume.DriverVolume{
		Pod: pod, Volume: &corev1.Volume{Name: "data"}, Source: "csi", Objects: e,
		Claim: &corev1.PersistentVolumeClaim{},
		PersistentVolume: &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pv-" + handle},
			Spec: corev1.PersistentVolumeSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Capacity: corev1.ResourceList{"storage": resource.MustParse("1Gi")},
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: csitest.Name, VolumeHandle: handle, FSType: "ext4"}},
			},
		},
	}
}

// mounted mounts a volume and returns its path.
func (e *testEnv) mounted(v volume.DriverVolume) string {
	e.t.Helper()
	m, err := e.Mount(e.t.Context(), v)
	require.NoError(e.t, err)
	return m.HostPath
}

func (e *testEnv) unmounted(pod *corev1.Pod) {
	e.t.Helper()
	require.NoError(e.t, e.Unmount(e.t.Context(), pod.UID))
}

// unstageOrphans unstages what no pod has, as Run does, until nothing is left of it.
func (e *testEnv) unstageOrphans() {
	e.t.Helper()
	for range 1000 {
		e.Manager.mu.Lock()
		ids := slices.Collect(maps.Keys(e.volumes))
		e.Manager.mu.Unlock()
		var errs []error
		for _, id := range ids {
			errs = append(errs, e.unstageOrphan(e.t.Context(), id))
		}
		if errors.Join(errs...) == nil {
			return
		}
	}
	require.Fail(e.t, "orphans are left")
}

// methods returns the names of the calls of the driver for mounting since the last time.
func (e *testEnv) methods() (names []string) {
	for _, c := range e.driver.TakeCalls() {
		if !slices.Contains([]string{"NodeGetCapabilities", "NodeGetInfo"}, c.Method) {
			names = append(names, c.Method)
		}
	}
	return names
}

// requireNothingLeft fails if a mount, a file or a directory is left, besides those of drivers, of
// devices and of the pods themselves.
func (e *testEnv) requireNothingLeft() {
	e.t.Helper()
	var left []string
	root := filepath.Join(e.dir, "root")
	for _, dir := range []string{"plugins", "pods"} {
		_ = filepath.WalkDir(filepath.Join(root, dir), func(path string, d os.DirEntry, err error) error {
			name, relErr := filepath.Rel(root, path)
			require.NoError(e.t, relErr)
			if err == nil && (!d.IsDir() || !slices.ContainsFunc(keptDirs(), func(pattern string) bool {
				kept, matchErr := filepath.Match(pattern, name)
				require.NoError(e.t, matchErr)
				return kept
			})) {
				left = append(left, name)
			}
			return nil
		})
	}
	require.Empty(e.t, left)
	table, err := mounts.Below(e.dir)
	require.NoError(e.t, err)
	require.Empty(e.t, table)
}

// keptDirs are patterns of the directories that are not those of a volume.
func keptDirs() []string {
	const plugin = "plugins/kubernetes.io/csi"
	return []string{
		"plugins", "plugins/kubernetes.io", plugin, plugin + "/" + csitest.Name, plugin + "/volumeDevices", plugin + "/volumeDevices/staging", plugin + "/volumeDevices/publish",
		"pods", "pods/*", "pods/*/volumes", "pods/*/volumeDevices",
	}
}
