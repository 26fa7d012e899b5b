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

	"github.com/sublet-dev/agent/internal/mounts"
	"github.com/sublet-dev/agent/internal/pathname"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// Errors that callers may look for.
var (
	// ErrUnsafe is wrapped by errors about names and paths that lead, or could
	// lead, out of where they belong.
	ErrUnsafe = errors.New("leads out of its folder")
	// ErrForeignMount is wrapped by the error of Unmount when something that
	// this package did not mount is mounted in the pod's folder.
	ErrForeignMount = mounts.ErrMounted
	// ErrPrivilege is wrapped by errors about what only root can do.
	ErrPrivilege = errors.New("needs root with the right to mount")
)

// Config describes a Manager.
type Config struct {
	// Root is the agent's root folder, an absolute path. Required.
	Root string
	// Unprivileged mounts nothing, as if the agent did not run as root.
	Unprivileged bool
	// Allocatable is what a resourceFieldRef without a limit means, and the
	// bound of volumes in memory.
	Allocatable corev1.ResourceList
	// Logger is told what could not be done as well as it should. Default: none.
	Logger *slog.Logger
}

// Manager puts volumes in place. Its methods may be called from any goroutine;
// calls for one pod wait for each other.
type Manager struct {
	cfg   Config
	mount mounter
	locks keyedLocks
	known mountCache
}

// New checks the configuration and touches nothing.
func New(cfg Config) (*Manager, error) {
	if !filepath.IsAbs(cfg.Root) {
		return nil, fmt.Errorf("volume: root folder %q: must be an absolute path", cfg.Root)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Root = filepath.Clean(cfg.Root)
	m := &Manager{cfg: cfg, mount: noMounts{}}
	if !cfg.Unprivileged && os.Geteuid() == 0 {
		m.mount = osMounter{}
	}
	return m, nil
}

// The plugin part of a volume's path.
const (
	pluginEmptyDir  = "kubernetes.io~empty-dir"
	pluginConfigMap = "kubernetes.io~configmap"
	pluginSecret    = "kubernetes.io~secret"
	pluginDownward  = "kubernetes.io~downward-api"
	pluginProjected = "kubernetes.io~projected"
)

const (
	volumesDir  = "volumes"
	subPathsDir = "volume-subpaths"
)

// Mount puts in place what the containers of the pod mount and brings the
// content of ConfigMaps, Secrets and pod fields up to date. objects may be nil
// if there are none. Every volume that could not be mounted is named in the
// error; those that could stay mounted. Volumes that no container mounts are
// left out.
func (m *Manager) Mount(ctx context.Context, pod *corev1.Pod, objects podspec.Objects) (map[string]runtime.Volume, error) {
	if err := element("uid", string(pod.UID)); err != nil {
		return nil, err
	}
	defer m.locks.lock(pod.UID)()
	used := mounted(pod)
	out := make(map[string]runtime.Volume, len(used))
	var errs []error
	var dir *podDir // opened when a volume needs it, which few do that are there already
	defer func() { dir.close() }()
	for i := range pod.Spec.Volumes {
		vol := &pod.Spec.Volumes[i]
		if !used[vol.Name] {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, errors.Join(append(errs, err)...)
		}
		v, err := m.volume(ctx, &request{pod: pod, vol: vol, objects: objects, open: func() (*podDir, error) {
			var err error
			if dir == nil {
				dir, err = m.openPod(pod.UID, true)
			}
			return dir, err
		}})
		if err != nil {
			errs = append(errs, fmt.Errorf("volume %q: %w", vol.Name, err))
			continue
		}
		out[vol.Name] = v
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return out, nil
}

// mounted returns the names of volumes that some container mounts.
func mounted(pod *corev1.Pod) map[string]bool {
	used := make(map[string]bool)
	for c := range podspec.Containers(pod) {
		for i := range c.VolumeMounts {
			used[c.VolumeMounts[i].Name] = true
		}
	}
	return used
}

// request is what one volume is made from.
type request struct {
	pod     *corev1.Pod
	vol     *corev1.Volume
	open    func() (*podDir, error) // opens dir
	dir     *podDir
	objects podspec.Objects
}

func (m *Manager) volume(ctx context.Context, r *request) (runtime.Volume, error) {
	if err := element("name", r.vol.Name); err != nil {
		return runtime.Volume{}, err
	}
	switch v := r.vol; {
	case v.HostPath != nil:
		return runtime.Volume{HostPath: filepath.Clean(v.HostPath.Path)}, hostPath(v.HostPath)
	case v.Image != nil:
		return runtime.Volume{Image: v.Image.Reference, ReadOnly: true}, nil
	case v.EmptyDir != nil:
		path, err := m.emptyDir(r)
		return runtime.Volume{HostPath: path}, err
	case v.ConfigMap != nil:
		return m.content(ctx, r, pluginConfigMap)
	case v.Secret != nil:
		return m.content(ctx, r, pluginSecret)
	case v.DownwardAPI != nil:
		return m.content(ctx, r, pluginDownward)
	case v.Projected != nil:
		return m.content(ctx, r, pluginProjected)
	}
	return runtime.Volume{}, errors.New("is of no kind that can be mounted here")
}

// PodUIDs returns the pods whose volumes are on disk, whoever made them. What
// cannot be read is logged and left out.
func (m *Manager) PodUIDs() []types.UID {
	pods := filepath.Join(m.cfg.Root, "pods")
	entries, err := os.ReadDir(pods)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.cfg.Logger.Error("cannot list the folders of pods", slog.Any("error", err))
	}
	var known []types.UID
	for _, e := range entries {
		for _, sub := range []string{volumesDir, subPathsDir} {
			if info, err := os.Lstat(filepath.Join(pods, e.Name(), sub)); err == nil && info.IsDir() && e.IsDir() {
				known = append(known, types.UID(e.Name()))
				break
			}
		}
	}
	return known
}

// element checks that s can be one part of a path.
func element(what, s string) error {
	if !pathname.IsElement(s) {
		return fmt.Errorf("%s %q as a file name: %w", what, s, ErrUnsafe)
	}
	return nil
}

// keyedLocks is a mutex a pod. Its zero value is ready.
type keyedLocks struct {
	mu    sync.Mutex
	locks map[types.UID]*keyedLock
}

type keyedLock struct {
	mu    sync.Mutex
	users int // guarded by keyedLocks.mu
}

// lock returns the func that unlocks.
func (k *keyedLocks) lock(uid types.UID) func() {
	k.mu.Lock()
	if k.locks == nil {
		k.locks = make(map[types.UID]*keyedLock)
	}
	l := k.locks[uid]
	if l == nil {
		l = &keyedLock{}
		k.locks[uid] = l
	}
	l.users++
	k.mu.Unlock()
	l.mu.Lock()
	return func() {
		l.mu.Unlock()
		k.mu.Lock()
		defer k.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(k.locks, uid)
		}
	}
}
