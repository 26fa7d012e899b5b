package embedded

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// namespace is the mount and host name namespace of one container. A nil
// namespace is the host's.
type namespace struct {
	root string // to change root to; "" for the host's

	// mu keeps the files open while a command enters: a descriptor that is
	// closed meanwhile may already be another file's.
	mu       sync.RWMutex
	mnt, uts *os.File
}

func (n *namespace) close() {
	if n != nil {
		n.mu.Lock()
		defer n.mu.Unlock()
		_ = n.mnt.Close()
		_ = n.uts.Close()
	}
}

// enter brings the calling thread, which is locked, into the namespace.
func (n *namespace) enter() error {
	if n == nil {
		return nil
	}
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("leave the shared root: %w", err)
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	return errors.Join(setns(n.mnt, unix.CLONE_NEWNS), setns(n.uts, unix.CLONE_NEWUTS))
}

func setns(f *os.File, kind int) error {
	if err := unix.Setns(int(f.Fd()), kind); err != nil {
		return fmt.Errorf("enter %s: %w", f.Name(), err)
	}
	return nil
}

// isolate gives the calling thread, which is locked and thrown away later, the
// namespaces of p's container, with its mounts made.
func isolate(p *hostProcess) (*namespace, error) {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS | unix.CLONE_NEWUTS); err != nil {
		return nil, fmt.Errorf("make a mount namespace: %w", err)
	}
	mounts, err := p.mounts()
	if err != nil {
		return nil, err
	}
	b := &binder{scratch: p.scratch, ours: map[string]bool{}, peers: map[*v1.Mount]int{}}
	defer b.drop()
	if err := b.keep(mounts); err != nil {
		return nil, err
	}
	// Mounts of the host still come in; ours do not get out, but for those kept.
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return nil, fmt.Errorf("part from the host's mounts: %w", err)
	}
	if name := p.c.Pod.GetHostname(); name != "" && !hostNetwork(p.c.Pod) {
		if err := unix.Sethostname([]byte(name)); err != nil {
			return nil, fmt.Errorf("set host name: %w", err)
		}
	}
	if err := b.begin(mounts); err != nil {
		return nil, err
	}
	for _, m := range mounts {
		if err := b.bind(m); err != nil {
			return nil, fmt.Errorf("mount %q: %w", m.GetContainerPath(), err)
		}
	}
	mnt, merr := os.Open("/proc/thread-self/ns/mnt")
	uts, uerr := os.Open("/proc/thread-self/ns/uts")
	if err := errors.Join(merr, uerr); err != nil {
		return nil, err
	}
	return &namespace{mnt: mnt, uts: uts, root: b.root}, nil
}

// mounts are the container's mounts and the resolv.conf of its pod.
func (p *hostProcess) mounts() ([]*v1.Mount, error) {
	mounts := p.c.Config.GetMounts()
	dns := p.c.Pod.GetDnsConfig()
	if dns == nil || len(dns.GetServers())+len(dns.GetSearches())+len(dns.GetOptions()) == 0 {
		return mounts, nil
	}
	var b strings.Builder
	for _, s := range dns.GetServers() {
		b.WriteString("nameserver " + s + "\n")
	}
	if len(dns.GetSearches()) > 0 {
		b.WriteString("search " + strings.Join(dns.GetSearches(), " ") + "\n")
	}
	if len(dns.GetOptions()) > 0 {
		b.WriteString("options " + strings.Join(dns.GetOptions(), " ") + "\n")
	}
	path := filepath.Join(p.scratch, "resolv.conf")
	if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
		return nil, err
	}
	return append([]*v1.Mount{{ContainerPath: "/etc/resolv.conf", HostPath: path}}, mounts...), nil
}

// binder makes bind mounts in a private mount namespace. The host's files are
// never changed: where a mount needs a place that is not there, the folder
// around it is replaced, for this container alone, by one in memory that has
// the same things in it.
type binder struct {
	scratch string
	root    string // "" as long as the host's root serves
	held    int
	ours    map[string]bool // folders that can be written to without anybody else seeing it
	// peers are file descriptors of sources that stay joined with the host.
	peers map[*v1.Mount]int
}

// begin replaces the root folder if any of the mounts needs a place in it.
func (b *binder) begin(mounts []*v1.Mount) error {
	for _, m := range mounts {
		if at := filepath.Clean(m.GetContainerPath()); at != "/" && ancestor("/", at) == "/" {
			root := filepath.Join(b.scratch, "root")
			if err := os.MkdirAll(root, 0o755); err != nil {
				return err
			}
			if err := tmpfs(root, 0o755); err != nil {
				return err
			}
			b.root = root
			// Or the copy of the folder that root is in would have root in it.
			if err := unix.Mount("", root, "", unix.MS_UNBINDABLE, ""); err != nil {
				return err
			}
			return mirror("/", root)
		}
	}
	return nil
}

// ancestor is the nearest folder above path that exists, seen from root.
func ancestor(root, path string) string {
	for dir := path; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(root, dir)); err == nil || dir == "/" {
			return dir
		}
	}
}

// bind makes one mount.
func (b *binder) bind(m *v1.Mount) error {
	source, err := filepath.EvalSymlinks(m.GetHostPath())
	if err != nil {
		return err
	}
	st, err := os.Stat(source)
	if err != nil {
		return err
	}
	target, err := b.place(filepath.Clean(m.GetContainerPath()), st.IsDir())
	if err != nil {
		return err
	}
	if peer, ok := b.peers[m]; ok {
		err = unix.MoveMount(peer, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH)
	} else {
		err = unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, "")
	}
	if err != nil {
		return fmt.Errorf("bind %s: %w", source, err)
	}
	if m.GetRecursiveReadOnly() {
		attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
		if err := unix.MountSetattr(unix.AT_FDCWD, target, unix.AT_RECURSIVE, attr); err != nil {
			return fmt.Errorf("make read-only with all below it: %w", err)
		}
	}
	flags := options(m)
	if flags != 0 {
		if err := unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|flags, ""); err != nil {
			return fmt.Errorf("remount: %w", err)
		}
	}
	if m.GetPropagation() == v1.MountPropagation_PROPAGATION_PRIVATE {
		return unix.Mount("", target, "", unix.MS_PRIVATE|unix.MS_REC, "")
	}
	return nil
}

// options are the mount flags that m asks for.
func options(m *v1.Mount) uintptr {
	var flags uintptr
	if m.GetReadonly() {
		flags |= unix.MS_RDONLY
	}
	for _, o := range m.GetMountOptions() {
		flags |= map[string]uintptr{"noexec": unix.MS_NOEXEC, "nodev": unix.MS_NODEV, "nosuid": unix.MS_NOSUID, "ro": unix.MS_RDONLY}[o]
	}
	return flags
}

// place returns where to mount, and makes it where it is not there.
func (b *binder) place(at string, dir bool) (string, error) {
	target := filepath.Join(b.root, at)
	if _, err := os.Stat(target); err == nil {
		return target, nil
	}
	above := filepath.Join(b.root, ancestor(b.root, at))
	if above != b.root && !b.ours[above] {
		if err := b.mimic(above); err != nil {
			return "", err
		}
		b.ours[above] = true
	}
	for d := filepath.Dir(target); len(d) > len(above); d = filepath.Dir(d) {
		b.ours[d] = true
	}
	if dir {
		return target, os.MkdirAll(target, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return "", err
	}
	return target, os.WriteFile(target, nil, 0o644)
}

// mimic puts a folder in memory over dir, with the same things in it.
func (b *binder) mimic(dir string) error {
	st, err := os.Stat(dir)
	if err != nil {
		return err
	}
	b.held++
	hold := filepath.Join(b.scratch, "hold-"+strconv.Itoa(b.held))
	if err := os.MkdirAll(hold, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(dir, hold, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("hold %s: %w", dir, err)
	}
	if err := tmpfs(dir, st.Mode().Perm()); err != nil {
		return err
	}
	if err := mirror(hold, dir); err != nil {
		return err
	}
	return unix.Unmount(hold, unix.MNT_DETACH)
}

func tmpfs(dir string, mode os.FileMode) error {
	opts := fmt.Sprintf("mode=%o,size=64m", mode)
	if err := unix.Mount("sublet", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, opts); err != nil {
		return fmt.Errorf("tmpfs on %s: %w", dir, err)
	}
	return nil
}

// mirror makes everything that is in from appear in to, by bind mounts.
func mirror(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		src, dst := filepath.Join(from, e.Name()), filepath.Join(to, e.Name())
		if e.Type()&os.ModeSymlink != 0 {
			link, err := os.Readlink(src)
			if err == nil {
				err = os.Symlink(link, dst)
			}
			if err != nil {
				return err
			}
			continue
		}
		if e.IsDir() {
			err = os.Mkdir(dst, 0o755)
		} else {
			err = os.WriteFile(dst, nil, 0o644)
		}
		if err != nil {
			return err
		}
		if err := unix.Mount(src, dst, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("mirror %s: %w", src, err)
		}
	}
	return nil
}
