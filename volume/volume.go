package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/mounts"
	"github.com/sublet-dev/agent/internal/pathname"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// Errors that callers may look for.
var (
	// ErrUnsafe is wrapped by errors about names and paths that lead, or could
	// lead, out of their directory.
	ErrUnsafe = errors.New("path escapes its directory")
	// ErrForeignMount is wrapped by the error of Unmount if the directory of the pod
	// contains a mount that this package did not make.
	ErrForeignMount = mounts.ErrMounted
	// ErrPrivilege is wrapped by errors about operations that need root.
	ErrPrivilege = errors.New("requires root and permission to mount")
)

// Config describes a Manager.
type Config struct {
	// Root is the root directory of the agent, an absolute path. Required.
	Root string
	// Unprivileged disables mounts, as if the agent did not run as root.
	Unprivileged bool
	// Allocatable is the value of a resourceFieldRef without a limit, and limits the
	// size of volumes in memory.
	Allocatable corev1.ResourceList
	// Claims finds PersistentVolumeClaims and what they are bound to. Default: a pod with
	// one is an error.
	Claims Claims
	// NodeLabels returns the labels of the node: a PersistentVolume with a directory or disk of
	// another node is an error. It must not block; the result is read-only. Default: the node
	// affinity of volumes is not checked.
	NodeLabels func() map[string]string
	// Drivers mount the kinds of volumes that this package does not. Default: none.
	Drivers []Driver
	Hooks   Hooks
	// Logger logs degraded mounts. Default: discard.
	Logger *slog.Logger
}

// Manager mounts volumes. Its methods may be called from any goroutine; calls for one
// pod wait for each other.
type Manager struct {
	cfg        Config
	mount      mounter
	locks      keyedLocks[types.UID]
	localLocks keyedLocks[string] // paths of local volumes whose files get a group
	diskLocks  keyedLocks[string] // devices of local volumes, and where they are mounted
	busyDisks  busyDisks
	cache      mountCache
	meter      meter // of local volumes

	known       knownVolumes
	drivers     map[string]Driver // by source
	claimMu     sync.Mutex        // guards lastClaimed
	lastClaimed map[types.UID]map[string]claimedVolume
}

// New validates the configuration. It does no I/O.
func New(cfg Config) (*Manager, error) {
	if !filepath.IsAbs(cfg.Root) {
		return nil, fmt.Errorf("volume: Config.Root: %q must be an absolute path", cfg.Root)
	}
	drivers, err := cfg.drivers()
	if err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Hooks = cfg.Hooks.guarded(cfg.Logger)
	cfg.Root = filepath.Clean(cfg.Root)
	m := &Manager{cfg: cfg, mount: noMounts{}, drivers: drivers, meter: meter{statfs: localUsage, log: cfg.Logger}}
	if !cfg.Unprivileged && os.Geteuid() == 0 {
		m.mount = osMounter{}
	}
	return m, nil
}

// The plugin element of the path of a volume.
const (
	pluginEmptyDir  = "kubernetes.io~empty-dir"
	pluginConfigMap = "kubernetes.io~configmap"
	pluginSecret    = "kubernetes.io~secret"
	pluginDownward  = "kubernetes.io~downward-api"
	pluginProjected = "kubernetes.io~projected"
	pluginCSI       = "kubernetes.io~csi" // of package csi
)

const (
	volumesDir  = "volumes"
	subPathsDir = "volume-subpaths"
	devicesDir  = "volumeDevices" // of drivers
)

// Mount mounts the volumes that containers of the pod use, and updates the content of
// ConfigMaps, Secrets and pod fields. It returns the volumes by name, without those
// that no container uses. objects may be nil if there are none. The error names every
// volume that could not be mounted; the others stay mounted. An error with volumes wraps
// runtime.ErrNotUpdated: all can be used, and those that it names have the content that
// they had, for example because a ConfigMap was deleted.
func (m *Manager) Mount(ctx context.Context, pod *corev1.Pod, objects podspec.Objects) (map[string]runtime.Volume, error) {
	if err := checkElement("uid", string(pod.UID)); err != nil {
		return nil, err
	}
	if len(pod.Spec.Volumes) == 0 {
		return nil, nil
	}
	defer m.locks.lock(pod.UID)()
	used := usedVolumes(pod)
	out := make(map[string]runtime.Volume, len(used))
	var errs []error
	failed := false
	var dir *podDir // opened lazily, because cached volumes do not need it
	defer func() { dir.close() }()
	for i := range pod.Spec.Volumes {
		vol := &pod.Spec.Volumes[i]
		if !used[vol.Name] {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, errors.Join(append(errs, err)...)
		}
		v, err := m.mountVolume(ctx, &request{pod: pod, vol: vol, objects: objects, open: func() (*podDir, error) {
			var err error
			if dir == nil {
				dir, err = m.openPod(pod.UID, true)
			}
			return dir, err
		}})
		if err != nil {
			errs = append(errs, fmt.Errorf("MountVolume.SetUp failed for volume %q: %w", vol.Name, err)) // as in the kubelet's events
			if !errors.Is(err, runtime.ErrNotUpdated) {
				failed = true
				continue
			}
		}
		out[vol.Name] = v
	}
	if failed {
		return nil, errors.Join(errs...)
	}
	return out, errors.Join(errs...)
}

// usedVolumes returns the names of volumes that a container mounts or has as a device.
func usedVolumes(pod *corev1.Pod) map[string]bool {
	used := make(map[string]bool)
	for c := range podspec.Containers(pod) {
		for i := range c.VolumeMounts {
			used[c.VolumeMounts[i].Name] = true
		}
		for i := range c.VolumeDevices {
			used[c.VolumeDevices[i].Name] = true
		}
	}
	return used
}

// request is the input for mounting one volume.
type request struct {
	pod     *corev1.Pod
	vol     *corev1.Volume
	open    func() (*podDir, error) // opens dir
	dir     *podDir
	objects podspec.Objects

	kind     Kind // zero: not known
	byDriver bool
}

func (m *Manager) volume(ctx context.Context, r *request) (runtime.Volume, error) {
	if err := checkElement("name", r.vol.Name); err != nil {
		return runtime.Volume{}, err
	}
	switch v := r.vol; {
	case v.HostPath != nil:
		return runtime.Volume{HostPath: filepath.Clean(v.HostPath.Path)}, hostPath(v.HostPath)
	case v.Image != nil:
		return runtime.Volume{Image: v.Image.Reference, ReadOnly: true}, nil
	case v.EmptyDir != nil:
		path, err := m.emptyDir(r)
		return runtime.Volume{HostPath: path, SELinuxRelabel: true}, err
	}
	if plugin := contentPlugin(r.vol); plugin != "" {
		return m.content(ctx, r, plugin)
	}
	return m.viaDriver(ctx, r)
}

// PodUIDs returns the pods that have volumes on disk, including those of previous
// processes. Directories that cannot be read are logged and left out.
func (m *Manager) PodUIDs() []types.UID {
	pods := filepath.Join(m.cfg.Root, "pods")
	entries, err := os.ReadDir(pods)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.cfg.Logger.Error("listing pod directories failed", logattr.Err(err))
	}
	var uids []types.UID
	for _, e := range entries {
		for _, sub := range []string{volumesDir, subPathsDir, devicesDir} {
			if info, err := os.Lstat(filepath.Join(pods, e.Name(), sub)); err == nil && info.IsDir() && e.IsDir() {
				uids = append(uids, types.UID(e.Name()))
				break
			}
		}
	}
	return uids
}

// checkElement checks that s can be used as one element of a path.
func checkElement(what, s string) error {
	if !pathname.IsElement(s) {
		return fmt.Errorf("invalid %s %q: %w", what, s, ErrUnsafe)
	}
	return nil
}

// keyedLocks is one lock per key. The zero value is ready to use.
type keyedLocks[K comparable] struct {
	mu    sync.Mutex
	locks map[K]*keyedLock
}

type keyedLock struct {
	slot  chan struct{} // full while it is locked
	users int           // guarded by keyedLocks.mu
}

// lock locks a key and returns the function that unlocks it.
func (k *keyedLocks[K]) lock(key K) func() {
	l := k.use(key)
	l.slot <- struct{}{}
	return func() { k.unlock(key, l) }
}

// lockContext is lock that waits until ctx is done at most. An error is ctx's.
func (k *keyedLocks[K]) lockContext(ctx context.Context, key K) (unlock func(), err error) {
	l := k.use(key)
	select {
	case l.slot <- struct{}{}:
		return func() { k.unlock(key, l) }, nil
	case <-ctx.Done():
		k.leave(key, l)
		return nil, ctx.Err()
	}
}

// tryLock is lock that does not wait. unlock is nil if another has the key.
func (k *keyedLocks[K]) tryLock(key K) (unlock func()) {
	l := k.use(key)
	select {
	case l.slot <- struct{}{}:
		return func() { k.unlock(key, l) }
	default:
		k.leave(key, l)
		return nil
	}
}

// use returns the lock of a key, which leave gives back.
func (k *keyedLocks[K]) use(key K) *keyedLock {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.locks == nil {
		k.locks = make(map[K]*keyedLock)
	}
	l := k.locks[key]
	if l == nil {
		l = &keyedLock{slot: make(chan struct{}, 1)}
		k.locks[key] = l
	}
	l.users++
	return l
}

func (k *keyedLocks[K]) unlock(key K, l *keyedLock) {
	<-l.slot
	k.leave(key, l)
}

func (k *keyedLocks[K]) leave(key K, l *keyedLock) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.users--; l.users == 0 {
		delete(k.locks, key)
	}
}
