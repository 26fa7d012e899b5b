//go:build linux || darwin

package hostprocess

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/mkdir"
	"github.com/sublet-dev/agent/internal/mounts"
	"github.com/sublet-dev/agent/runtime/embedded"
)

// Executor runs containers as processes of this machine. Each has its own session and
// process group. A signal is sent to the first process, SIGKILL to the process group.
// When the first process exits, all others are killed, as in a container.
//
// # Processes of a container
//
// On Linux the processes of a container are identified by their hard limit of file locks
// (RLIMIT_LOCKS, which the kernel ignores since 2.4): a number that is unique to the
// container, set before its program runs its first instruction. Children inherit it,
// and an ordinary user cannot raise it, so that no process outlives its container by a
// new session, a double fork or an empty environment. Exceptions are processes of root
// that set the limit, as a service manager or another container runtime does for its
// children; and, for the runtime of an ordinary user, programs with the set-user-ID
// bit. Where the limit cannot be set, processes are identified by EnvContainerID in
// their environment. On macOS only the process group is killed.
//
// Containers do not outlive the process that embeds the runtime: embedded.Runtime.Close stops
// all. If the embedding process is killed, the Linux kernel kills each container's first
// process (PR_SET_PDEATHSIG), but not its children. They are killed, and their scratch
// directories removed, when the next runtime with the same Config.Root is dialed or run.
//
// Where the embedding process is process 1, as in an image, or a subreaper, it becomes the
// parent of processes that outlive theirs. They are reaped within seconds of their exit.
//
// # Isolation
//
// There is none but, for root on Linux 5.12 or later, mounts, the host name and the
// root directory itself: "/" is a private copy with the host's entries, so that changes
// of "/" do not reach the host. Everything below is the host's. Limits, capabilities,
// devices and security profiles have no effect. The OOM score of a container is set on
// Linux, as far as the user of this process may. Of the limit of processes (RLIMIT_NPROC) a
// container gets three quarters, or all but 256 if that is more: the rest is for this process,
// which could not start a thread otherwise, and would end.
//
// Security settings of a pod are applied or rejected, never ignored:
// allowPrivilegeEscalation false (no_new_privs, on Linux), readOnlyRootFilesystem (for
// root; all of the host is read-only except /dev, /proc and /sys), and users and groups
// (for an ordinary user only its own). What agents set for every pod, and pods can do
// without, is ignored without mount namespaces: host name, resolver and /etc/hosts.
// Config.Logger logs that once a pod.
//
// Containers inherit no descriptors: all but the first three are marked close-on-exec in
// this process. Nor do they ignore what this process ignores of SIGHUP, SIGINT, SIGQUIT, SIGTERM
// and SIGPIPE: from its first container on, it catches and drops these instead. Containers start
// with umask 022.
type Executor struct {
	cfg Config

	mu   sync.Mutex // guards the rest
	root string     // of scratch directories
	temp bool       // root is removed by Close
	lock *os.File   // open while Config.Root is in use

	probe    sync.Once
	isolates bool // mount namespaces can be created

	table  procTable
	reaper reaper
}

var (
	_ embedded.Executor        = (*Executor)(nil)
	_ embedded.Checker         = (*Executor)(nil)
	_ embedded.Opener          = (*Executor)(nil)
	_ embedded.SandboxPreparer = (*Executor)(nil)
	_ embedded.PodIPAllocator  = (*Executor)(nil)
	_ embedded.Dialer          = (*Executor)(nil)
	_ io.Closer                = (*Executor)(nil)
	_ embedded.Identified      = (*containerProcess)(nil)
	_ embedded.TerminalResizer = (*containerProcess)(nil)
)

// New returns an executor that runs real processes.
func New(cfg Config) *Executor { return &Executor{cfg: cfg} }

// isolated reports whether mount namespaces can be created here.
func (h *Executor) isolated() bool {
	h.probe.Do(func() { h.isolates = !h.cfg.Unprivileged && os.Geteuid() == 0 && canIsolate() })
	return h.isolates
}

// ownThread runs f in a goroutine on an operating system thread that ends with it. It
// is never the main thread, which represents the process in /proc/self and must stay in
// its namespaces.
func ownThread(f func()) {
	go func() {
		runtime.LockOSThread() // not unlocked after f: the thread is discarded
		if !onMainThread() {
			f()
			return
		}
		locked := make(chan struct{})
		go func() { // runs on another thread: this one is locked
			runtime.LockOSThread()
			close(locked)
			f()
		}()
		<-locked
		runtime.UnlockOSThread()
	}()
}

// Open implements embedded.Opener: it removes what a killed process has left in Config.Root.
func (h *Executor) Open() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.acquire()
}

// acquire acquires Config.Root, if there is one and it is not yet. The caller holds mu.
func (h *Executor) acquire() error {
	if h.root != "" || h.cfg.Root == "" {
		return nil
	}
	lock, err := acquireRoot(h.cfg.Root, h.cfg.Logger)
	if err == nil {
		h.root, h.lock = h.cfg.Root, lock
	}
	return err
}

// scratch returns the directory of one container.
func (h *Executor) scratch(id string) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.acquire(); err != nil {
		return "", err
	}
	if h.root == "" {
		dir, err := os.MkdirTemp("", "sublet-host-")
		if err != nil {
			return "", err
		}
		if err := os.Chmod(dir, 0o711); err != nil { // containers may run as others
			return "", err
		}
		h.root, h.temp = dir, true
	}
	return filepath.Join(h.root, "containers", id), nil
}

// Sandbox implements embedded.SandboxPreparer: it logs what the containers of the pod lack.
func (h *Executor) Sandbox(ctx context.Context, pod *v1.PodSandboxConfig) error {
	if h.cfg.Logger == nil || h.isolated() {
		return nil
	}
	m := pod.GetMetadata()
	h.cfg.Logger.InfoContext(ctx, "mount namespaces unavailable, using host name, resolver and hosts file of the host",
		logattr.PodName(m.GetNamespace(), m.GetName()), slog.String("podUID", m.GetUid()))
	return nil
}

// Create implements embedded.Executor.
func (h *Executor) Create(_ context.Context, c *embedded.Container) error {
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
	// Searchable but not readable by others: the container may run as another user.
	if err := mkdir.All(dir, 0o711); err != nil {
		return err
	}
	work := filepath.Join(dir, workDir)
	err = os.Mkdir(work, 0o700)
	if err == nil && cred != nil {
		err = os.Chown(work, int(cred.Uid), int(cred.Gid))
	}
	if err != nil {
		h.Remove(c) // for a container that was not created, it is not called
	}
	return err
}

// workDir is the default working directory of a container.
const workDir = "work"

// Remove implements embedded.Executor. After Close, the next process that uses Root removes the
// directory.
func (h *Executor) Remove(c *embedded.Container) {
	h.mu.Lock()
	root := h.root
	h.mu.Unlock()
	if root != "" {
		removeScratch(filepath.Join(root, "containers"), c.ID, h.cfg.Logger)
	}
}

// Close removes the temporary directory, or releases Root. embedded.Runtime.Close calls it.
func (h *Executor) Close() error {
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
	return mounts.Remove(context.Background(), filepath.Dir(dir), filepath.Base(dir)) //nolint:forbidigo // io.Closer has no context
}

// DialPod implements embedded.Dialer. As with other runtimes, a process may listen on either
// address of localhost.
func (h *Executor) DialPod(ctx context.Context, _ *v1.PodSandboxConfig, port int32) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
	if err == nil {
		return conn, nil
	}
	conn, err6 := d.DialContext(ctx, "tcp6", net.JoinHostPort("::1", strconv.Itoa(int(port))))
	if err6 != nil {
		return nil, fmt.Errorf("%w; %w", err, err6)
	}
	return conn, nil
}
