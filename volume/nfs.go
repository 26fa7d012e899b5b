package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/diskusage"
	"github.com/sublet-dev/agent/internal/mounts"
	"github.com/sublet-dev/agent/runtime"
)

const pluginNFS = "kubernetes.io~nfs"

// nfsTimeout bounds mounting, which waits for the server.
const nfsTimeout = 2 * time.Minute

// NFSConfig describes an NFS.
type NFSConfig struct {
	// Root is the root directory of the agent, an absolute path. Required.
	Root string
	// MountCommand is the program that mounts. It needs mount.nfs, usually of the package
	// nfs-common. Default: mount.
	MountCommand string
	// Hooks observe the volumes that are unmounted: the hooks of a Manager are called for those that are mounted.
	Hooks  Hooks
	Logger *slog.Logger // Default: discard
}

// NFS is a Driver for NFS volumes, of pods and of PersistentVolumes. It mounts with the
// mount program of the node, as the kubelet does. A server that does not answer makes the
// pods with its volumes wait, and does not keep them from ending.
type NFS struct {
	cfg   NFSConfig
	meter meter
}

var _ UsageReporter = (*NFS)(nil)

// NewNFS returns an NFS. It checks cfg and does no I/O.
func NewNFS(cfg NFSConfig) (*NFS, error) {
	if !filepath.IsAbs(cfg.Root) {
		return nil, fmt.Errorf("volume: NFSConfig.Root: %q must be an absolute path", cfg.Root)
	}
	cfg.MountCommand = cmp.Or(cfg.MountCommand, "mount")
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Hooks = cfg.Hooks.guarded(cfg.Logger)
	return &NFS{cfg: cfg, meter: meter{statfs: diskusage.FileSystem, log: cfg.Logger}}, nil
}

// Sources implements Driver.
func (*NFS) Sources() []string { return []string{"nfs"} }

// Mount implements Driver.
func (n *NFS) Mount(ctx context.Context, v DriverVolume) (runtime.Volume, error) {
	source, name, options := v.Volume.NFS, v.Volume.Name, []string(nil)
	if v.PersistentVolume != nil {
		source, name, options = v.PersistentVolume.Spec.NFS, v.PersistentVolume.Name, v.PersistentVolume.Spec.MountOptions
	}
	if err := errors.Join(checkElement("uid", string(v.Pod.UID)), checkElement("name", name)); err != nil {
		return runtime.Volume{}, err
	}
	if source.Server == "" || strings.HasPrefix(source.Server, "-") || !filepath.IsAbs(source.Path) {
		return runtime.Volume{}, fmt.Errorf("NFS volume: server %q and absolute path %q required", source.Server, source.Path)
	}
	dir := n.dir(v.Pod.UID)
	if err := os.MkdirAll(dir, modeTraverse); err != nil {
		return runtime.Volume{}, err
	}
	real, err := filepath.EvalSymlinks(dir) // as in the mount table
	if err != nil {
		return runtime.Volume{}, err
	}
	path, readOnly := filepath.Join(real, name), v.ReadOnly || source.ReadOnly
	out := runtime.Volume{HostPath: path, ReadOnly: readOnly}
	// The mount table, because a server that does not answer blocks every look at the path.
	table, err := mounts.Below(path)
	if err != nil {
		return out, err
	}
	if len(table) > 0 {
		n.meter.add(v.Pod.UID, v.Volume.Name, path)
		return out, nil
	}
	if err := os.Mkdir(path, modeTraverse); err != nil && !errors.Is(err, os.ErrExist) {
		return runtime.Volume{}, err
	}
	server := source.Server
	if strings.Contains(server, ":") && !strings.HasPrefix(server, "[") {
		server = "[" + server + "]" // an IPv6 address
	}
	args := []string{"-t", "nfs"}
	if readOnly {
		options = append([]string{"ro"}, options...)
	}
	if len(options) > 0 {
		args = append(args, "-o", strings.Join(options, ","))
	}
	limited, cancel := context.WithTimeout(ctx, nfsTimeout)
	defer cancel()
	cmd := exec.CommandContext(limited, n.cfg.MountCommand, append(args, "--", server+":"+source.Path, path)...) //nolint:gosec // the options of an administrator
	cmd.WaitDelay = time.Second
	text, err := cmd.CombinedOutput()
	switch {
	case err == nil:
		n.meter.add(v.Pod.UID, v.Volume.Name, path)
		return out, nil
	case ctx.Err() == nil && limited.Err() != nil:
		err = fmt.Errorf("no answer of the server in %s", nfsTimeout)
	}
	return runtime.Volume{}, fmt.Errorf("mount NFS volume %s:%s: %w: %.512s", source.Server, source.Path, err, strings.TrimSpace(string(text)))
}

// VolumeUsage implements UsageReporter.
func (n *NFS) VolumeUsage(uid types.UID) map[string]runtime.FSUsage { return n.meter.VolumeUsage(uid) }

// Unmount implements Driver. It does not wait for the server.
func (n *NFS) Unmount(ctx context.Context, uid types.UID) error {
	if err := checkElement("uid", string(uid)); err != nil {
		return err
	}
	n.meter.forget(uid)
	dir, err := filepath.EvalSymlinks(n.dir(uid))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	table, err := mounts.Below(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, mp := range table {
		if filepath.Dir(mp.Path) != dir {
			continue
		}
		startTime := time.Now()
		err := (osMounter{}).unmount(mp.Path, true)
		if errors.Is(err, unix.EINVAL) {
			continue
		}
		errs = append(errs, err)
		n.cfg.Hooks.ended(Operation{OperationUnmount, Kind{Plugin: pluginOf("nfs")}}, startTime, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return mounts.Remove(ctx, filepath.Dir(dir), filepath.Base(dir))
}

func (n *NFS) dir(uid types.UID) string {
	return filepath.Join(n.cfg.Root, "pods", string(uid), volumesDir, pluginNFS)
}
