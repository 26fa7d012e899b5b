package hostprocess

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/mounts"
)

// namespace is the mount and host name namespace of one container. A nil
// namespace is the host's.
type namespace struct {
	// mu keeps the files open while a command enters: the number of a closed
	// descriptor may be reused.
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

// enter moves the calling thread, which is locked and shares its root with no other,
// into the namespace.
func (n *namespace) enter() error {
	if n == nil {
		return nil
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

// isolate creates the namespaces of p's container, with its mounts, for the calling
// thread, which is locked and discarded later.
func isolate(p *containerProcess) (ns *namespace, err error) {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS | unix.CLONE_NEWUTS); err != nil {
		return nil, fmt.Errorf("create mount namespace: %w", err)
	}
	ns = &namespace{}
	var merr, uerr error
	ns.mnt, merr = os.Open("/proc/thread-self/ns/mnt")
	ns.uts, uerr = os.Open("/proc/thread-self/ns/uts")
	defer func() {
		if err != nil {
			ns.close()
			ns = nil
		}
	}()
	if err := errors.Join(merr, uerr); err != nil {
		return ns, err
	}
	if name := p.c.Pod.GetHostname(); name != "" && p.c.Pod.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() != v1.NamespaceMode_NODE {
		if err := unix.Sethostname([]byte(name)); err != nil {
			return ns, fmt.Errorf("set host name: %w", err)
		}
	}
	mounts, err := p.mounts()
	if err != nil {
		return ns, err
	}
	b := &mounter{sources: map[*v1.Mount]int{}, volumes: map[uint64]bool{}}
	defer b.close()
	return ns, b.build(mounts, p.c.Config.GetLinux().GetSecurityContext().GetReadonlyRootfs())
}

// mounts returns the container's mounts and the resolv.conf of its pod, parents before
// children.
func (p *containerProcess) mounts() ([]*v1.Mount, error) {
	mounts := slices.Clone(p.c.Config.GetMounts())
	if text := resolvConf(p.c.Pod.GetDnsConfig()); text != "" {
		path := filepath.Join(p.scratch, "resolv.conf")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil { // the umask is 022
			return nil, err
		}
		mounts = slices.Insert(mounts, 0, &v1.Mount{ContainerPath: "/etc/resolv.conf", HostPath: path})
	}
	depth := func(m *v1.Mount) int { return strings.Count(filepath.Clean(m.GetContainerPath()), "/") }
	slices.SortStableFunc(mounts, func(a, b *v1.Mount) int { return depth(a) - depth(b) })
	return mounts, nil
}

// resolvConf returns the resolv.conf of a pod's DNS configuration, "" for none.
func resolvConf(dns *v1.DNSConfig) string {
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
	return b.String()
}

// mounter makes bind mounts in a private mount namespace, for the thread that it runs
// on. The host's files never change: where a mount point does not exist, its parent
// directory is replaced, in this container only, by a tmpfs with the same entries. Only
// in a volume of the container the mount point is created.
//
// The sources are opened before anything is mounted over them, and mount points are
// resolved with the container's root as root of the thread, so that links lead where
// they lead in the container.
type mounter struct {
	sources map[*v1.Mount]int // descriptors of what is mounted, still detached
	memory  []int             // descriptors of the tmpfs mounts; the first is "/"
	volumes map[uint64]bool   // the container's mounts, by mount id
}

// close closes the descriptors. What was mounted stays mounted.
func (b *mounter) close() {
	for _, fd := range b.sources {
		_ = unix.Close(fd)
	}
	for _, fd := range b.memory {
		_ = unix.Close(fd)
	}
}

// build makes all mounts of a container.
func (b *mounter) build(mounts []*v1.Mount, readonly bool) error {
	if err := b.keep(mounts); err != nil {
		return err
	}
	// Mounts of the host propagate to the container, its mounts not to the host, except
	// those that keep opened.
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("detach from the host's mount propagation: %w", err)
	}
	for _, m := range mounts {
		if err := b.open(m); err != nil {
			return fmt.Errorf("mount %q: %w", m.GetContainerPath(), err)
		}
	}
	if err := b.reroot(readonly); err != nil {
		return fmt.Errorf("create root directory: %w", err)
	}
	for _, m := range mounts {
		if err := b.bind(m); err != nil {
			return fmt.Errorf("mount %q: %w", m.GetContainerPath(), err)
		}
	}
	if readonly {
		for _, fd := range b.memory {
			if err := setReadonly(fd, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// open opens the source of m and sets its mount options.
func (b *mounter) open(m *v1.Mount) error {
	fd, ok := b.sources[m]
	if !ok {
		var err error
		if fd, err = openTree(unix.AT_FDCWD, m.GetHostPath(), 0); err != nil {
			return err
		}
		b.sources[m] = fd
	}
	if m.GetRecursiveReadOnly() {
		if err := setReadonly(fd, unix.AT_RECURSIVE); err != nil {
			return err
		}
	}
	attr := &unix.MountAttr{Attr_set: options(m)}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, attr); err != nil {
		return fmt.Errorf("set options of %s: %w", m.GetHostPath(), err)
	}
	if m.GetPropagation() == v1.MountPropagation_PROPAGATION_PRIVATE {
		attr := &unix.MountAttr{Propagation: unix.MS_PRIVATE}
		if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attr); err != nil {
			return fmt.Errorf("make %s private: %w", m.GetHostPath(), err)
		}
	}
	return nil
}

// openTree returns a detached copy of a mount, from path on.
func openTree(dir int, path string, flags uint) (int, error) {
	fd, err := unix.OpenTree(dir, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|flags)
	if err != nil {
		return -1, fmt.Errorf("clone mount of %s: %w", path, err)
	}
	return fd, nil
}

func setReadonly(fd int, flags uint) error {
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|flags, attr); err != nil {
		return fmt.Errorf("make read-only: %w", err)
	}
	return nil
}

// options returns the attributes of the mount for m.
func options(m *v1.Mount) uint64 {
	var attr uint64
	if m.GetReadonly() {
		attr |= unix.MOUNT_ATTR_RDONLY
	}
	for _, o := range m.GetMountOptions() {
		attr |= map[string]uint64{
			"noexec": unix.MOUNT_ATTR_NOEXEC, "nodev": unix.MOUNT_ATTR_NODEV, "nosuid": unix.MOUNT_ATTR_NOSUID, "ro": unix.MOUNT_ATTR_RDONLY,
		}[o]
	}
	return attr
}

// bind mounts one source.
func (b *mounter) bind(m *v1.Mount) error {
	source := b.sources[m]
	var st unix.Stat_t
	if err := unix.Fstat(source, &st); err != nil {
		return err
	}
	at := filepath.Clean(m.GetContainerPath())
	target, err := b.place(at, st.Mode&unix.S_IFMT == unix.S_IFDIR)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(target) }()
	if err := attach(source, target, ""); err != nil {
		return fmt.Errorf("bind %s: %w", m.GetHostPath(), err)
	}
	if id, err := mounts.ID(source, ""); err == nil {
		b.volumes[id] = true
	}
	return nil
}

// attach mounts fd on a name in dir, or on dir itself.
func attach(fd, dir int, name string) error {
	flags := unix.MOVE_MOUNT_F_EMPTY_PATH
	if name == "" {
		flags |= unix.MOVE_MOUNT_T_EMPTY_PATH
	}
	return unix.MoveMount(fd, "", dir, name, flags)
}
