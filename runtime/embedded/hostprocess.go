//go:build linux || darwin

package embedded

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/mkdir"
	"github.com/sublet-dev/agent/internal/mounts"
)

// HostProcess runs containers as processes of this machine. Each has a session
// and process group of its own. A signal goes to the first process, SIGKILL to the
// whole group. When the first process ends, all the others are killed, as they would
// be in a container.
//
// # Held processes
//
// On Linux the processes of a container are told by their hard limit of file locks
// (RLIMIT_LOCKS, which the kernel has not looked at since 2.4): a number of the
// container's own, set before its program runs its first instruction. All that it
// starts inherits it, and an ordinary user cannot raise it again, so that no process
// outlives its container by a new session, a double fork or an empty environment.
// What can: processes of root that set the limit anew, as a service manager or
// another container runtime does for what it starts; and, for the runtime of an
// ordinary user, what a program with the set-user-ID bit became. Where the limit
// cannot be set, processes are told by EnvContainerID in their environment. On macOS
// only the process group is killed.
//
// A container ends with the process that embeds it: Runtime.Close ends all. When the
// embedding process itself is killed, the Linux kernel kills each container's first
// process (PR_SET_PDEATHSIG), but not that one's children. They are killed, and what
// they wrote is removed, when the next container is made under the same
// HostConfig.Root.
//
// # What a container has of its own
//
// It isolates nothing but, for root on Linux 5.12 or later, mounts, the host name and
// the root directory itself: "/" is a private copy that has the host's entries in it,
// so that nothing done to "/" reaches the host. Everything below is the host's.
// Limits, capabilities, devices and security profiles have no effect.
//
// What a pod asks for to be safer is done or refused, never dropped:
// allowPrivilegeEscalation false (no_new_privs, on Linux), readOnlyRootFilesystem (for
// root; all of the host is read-only but /dev, /proc and /sys), and users and groups
// (for an ordinary user only those that it is in). What every agent hands to every
// pod, which a pod without it still runs on, is left to the host where there are no
// mount namespaces: its host name, resolver and /etc/hosts. HostConfig.Logger is told
// once a pod.
//
// Descriptors that this process inherited reach no container: all but the first three
// are marked close-on-exec, in this process. Containers start with umask 022.
type HostProcess struct {
	cfg HostConfig

	mu   sync.Mutex // guards the rest
	root string     // of scratch directories
	temp bool       // root is ours to remove
	lock *os.File   // held while root, if it is not ours, is in use

	probe    sync.Once
	isolates bool // mount namespaces can be made

	table procTable
}

// NewHostProcess returns an executor that runs real processes.
func NewHostProcess(cfg HostConfig) *HostProcess { return &HostProcess{cfg: cfg} }

// isolated reports whether mount namespaces can be made here.
func (h *HostProcess) isolated() bool {
	h.probe.Do(func() { h.isolates = !h.cfg.Unprivileged && os.Geteuid() == 0 && canIsolate() })
	return h.isolates
}

// ownThread runs f in a goroutine on an operating system thread that ends with
// it. It is never the main thread, which stands for the whole process in
// /proc/self and must stay in its namespaces.
func ownThread(f func()) {
	go func() {
		runtime.LockOSThread() // not unlocked before f: the thread is thrown away
		if !onMainThread() {
			f()
			return
		}
		locked := make(chan struct{})
		go func() { // cannot be given the thread that we hold
			runtime.LockOSThread()
			close(locked)
			f()
		}()
		<-locked
		runtime.UnlockOSThread()
	}()
}

// scratch is the directory of one container.
func (h *HostProcess) scratch(id string) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.root == "" {
		if h.cfg.Root != "" {
			lock, err := acquireRoot(h.cfg.Root, h.cfg.Logger)
			if err != nil {
				return "", err
			}
			h.root, h.lock = h.cfg.Root, lock
		} else {
			dir, err := os.MkdirTemp("", "sublet-host-")
			if err != nil {
				return "", err
			}
			if err := os.Chmod(dir, 0o711); err != nil { // containers may run as others
				return "", err
			}
			h.root, h.temp = dir, true
		}
	}
	return filepath.Join(h.root, "containers", id), nil
}

// Sandbox tells once a pod what its containers will not get.
func (h *HostProcess) Sandbox(ctx context.Context, pod *v1.PodSandboxConfig) error {
	if h.cfg.Logger == nil || h.isolated() {
		return nil
	}
	m := pod.GetMetadata()
	h.cfg.Logger.InfoContext(ctx, "host processes without mount namespaces have the host's name, resolver and hosts file, not the pod's",
		slog.String("pod", m.GetName()), slog.String("namespace", m.GetNamespace()), slog.String("uid", m.GetUid()))
	return nil
}

// Create implements Executor.
func (h *HostProcess) Create(_ context.Context, c *Container) error {
	if err := checkMounts(c, h.isolated()); err != nil {
		return err
	}
	if err := checkSecurity(c, h.isolated()); err != nil {
		return err
	}
	if _, err := c.Argv(); err != nil {
		return err
	}
	cred, err := credential(c)
	if err != nil {
		return err
	}
	dir, err := h.scratch(c.ID)
	if err != nil {
		return err
	}
	// Others may pass through, not look around: the container may run as
	// somebody else.
	if err := mkdir.All(dir, 0o711); err != nil {
		return err
	}
	work := filepath.Join(dir, workDir)
	if err := os.Mkdir(work, 0o700); err != nil {
		return err
	}
	if cred != nil {
		return os.Chown(work, int(cred.Uid), int(cred.Gid))
	}
	return nil
}

// workDir is the directory that a container works in unless it asks for another.
const workDir = "work"

// Remove implements Executor.
func (h *HostProcess) Remove(c *Container) {
	if dir, err := h.scratch(c.ID); err == nil {
		removeScratch(filepath.Dir(dir), c.ID, h.cfg.Logger)
	}
}

// Close removes the temporary directory, or leaves Root to others. Runtime.Close calls
// it.
func (h *HostProcess) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lock != nil {
		err := h.lock.Close()
		h.root, h.lock = "", nil
		return err
	}
	if !h.temp {
		return nil
	}
	dir := h.root
	h.root, h.temp = "", false
	return mounts.Remove(context.Background(), filepath.Dir(dir), filepath.Base(dir))
}

// DialPod implements Dialer.
func (h *HostProcess) DialPod(ctx context.Context, _ *v1.PodSandboxConfig, port int32) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
}
