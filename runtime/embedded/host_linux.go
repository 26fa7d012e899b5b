package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// drain is how long output is waited for after a process has gone while others
// still hold its pipe.
const drain = time.Second

// HostProcess runs containers as processes of this machine. Each has a session
// and process group of its own; when its first process ends, all the others are
// killed, also those that left the group, as they would be in a container. A
// signal goes to the first process, SIGKILL to all.
//
// A container ends with the process that embeds it. Runtime.Close kills all.
// When the embedding process itself is killed, the kernel kills each container's
// first process (PR_SET_PDEATHSIG), but not that one's children. They are killed,
// and what they wrote is removed, when the next container is made under the same
// HostConfig.Root. Others tell them by EnvContainerID in their environment.
//
// It isolates nothing but, for root, mounts and the host name. Limits,
// capabilities, devices and security profiles have no effect.
type HostProcess struct {
	cfg HostConfig

	mu   sync.Mutex // guards the rest
	root string     // of scratch folders
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
	h.probe.Do(func() {
		if h.cfg.Unprivileged || os.Geteuid() != 0 {
			return
		}
		done := make(chan error)
		ownThread(func() { done <- unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS) })
		h.isolates = <-done == nil
	})
	return h.isolates
}

// ownThread runs f in a goroutine on an operating system thread that ends with
// it. It is never the main thread, which stands for the whole process in
// /proc/self and must stay in its namespaces.
func ownThread(f func()) {
	go func() {
		runtime.LockOSThread() // not unlocked before f: the thread is thrown away
		if unix.Gettid() != os.Getpid() {
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

// scratch is the folder of one container.
func (h *HostProcess) scratch(id string) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.root == "" {
		if h.cfg.Root != "" {
			lock, err := claim(h.cfg.Root)
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

// Create implements Executor.
func (h *HostProcess) Create(_ context.Context, c *Container) error {
	if err := checkMounts(c, h.isolated()); err != nil {
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
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return err
	}
	work := filepath.Join(dir, "work")
	if err := os.Mkdir(work, 0o700); err != nil {
		return err
	}
	if cred != nil {
		return os.Chown(work, int(cred.Uid), int(cred.Gid))
	}
	return nil
}

// Remove implements Executor.
func (h *HostProcess) Remove(c *Container) {
	if dir, err := h.scratch(c.ID); err == nil {
		_ = os.RemoveAll(dir) // nothing depends on it any more
	}
}

// Close removes the temporary folder, or leaves Root to others. Runtime.Close calls
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
	return os.RemoveAll(dir)
}

// DialPod implements Dialer.
func (h *HostProcess) DialPod(ctx context.Context, _ *v1.PodSandboxConfig, port int32) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
}

// Start implements Executor.
func (h *HostProcess) Start(ctx context.Context, c *Container, sio IO, exited func(Exit)) (Process, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	dir, err := h.scratch(c.ID)
	if err != nil {
		return nil, err
	}
	if o, ok := sio.Stdout.(output); ok {
		if err := o.c.touch(); err != nil {
			return nil, fmt.Errorf("open log: %w", err)
		}
	}
	p := &hostProcess{h: h, c: c, scratch: dir, dir: c.Dir(), exited: exited}
	if p.dir == "" {
		p.dir = filepath.Join(dir, "work")
	}
	p.env = h.environ(c, h.isolated(), p.dir)
	if p.cred, err = credential(c); err != nil {
		return nil, err
	}
	argv, err := c.Argv()
	if err != nil {
		return nil, err
	}
	cmd, err := p.command(argv, sio)
	if err != nil {
		return nil, err
	}
	// The thread that makes a process must live as long as the process: the
	// kernel takes its end for the death of the parent. It is also the one whose
	// mount namespace the process gets.
	up := make(chan error)
	ownThread(func() { p.run(cmd, up) })
	if err := <-up; err != nil {
		return nil, err
	}
	return p, nil
}

// hostProcess is a container that is a process group.
type hostProcess struct {
	h       *HostProcess
	c       *Container
	scratch string
	dir     string
	env     []string
	cred    *syscall.Credential
	exited  func(Exit)

	ns     *namespace // nil without isolation
	pid    int
	master *os.File // of the terminal; nil without

	mu    sync.Mutex // guards the rest
	ended bool       // the pid is not ours any more
}

// job is a command with the streams that go with it.
type job struct {
	*exec.Cmd
	copies sync.WaitGroup // of output
	ours   []*os.File     // our ends, read from
	theirs []*os.File     // closed once the command runs
	feed   func()         // copies input, if any
	master *os.File
}

// close lets go of everything of a job that did not start.
func (j *job) close() {
	for _, f := range append(j.ours, j.theirs...) {
		_ = f.Close()
	}
}

// command prepares argv with its streams. Nothing runs yet.
func (p *hostProcess) command(argv []string, sio IO) (*job, error) {
	path, err := lookPath(argv, p.env, p.dir)
	if err != nil {
		return nil, err
	}
	if st, err := os.Stat(p.dir); p.ns == nil && (err != nil || !st.IsDir()) {
		return nil, fmt.Errorf("working directory %q: not a folder on this machine", p.dir)
	}
	j := &job{Cmd: &exec.Cmd{Path: path, Args: argv, Env: p.env, Dir: p.dir, SysProcAttr: &syscall.SysProcAttr{
		Setsid: true, Pdeathsig: syscall.SIGKILL, Credential: p.cred,
	}}}
	if sio.TTY {
		return j, j.terminal(sio)
	}
	return j, j.pipes(sio)
}

// pipes connects the streams by pipes.
func (j *job) pipes(sio IO) error {
	for _, out := range []struct {
		to  io.Writer
		set *io.Writer
	}{{sio.Stdout, &j.Stdout}, {sio.Stderr, &j.Stderr}} {
		if out.to == nil {
			continue
		}
		r, w, err := os.Pipe()
		if err != nil {
			j.close()
			return err
		}
		*out.set = w
		j.ours, j.theirs = append(j.ours, r), append(j.theirs, w)
		j.copies.Go(func() { _, _ = io.Copy(out.to, r) })
	}
	if sio.Stdin == nil {
		return nil
	}
	r, w, err := os.Pipe()
	if err != nil {
		j.close()
		return err
	}
	j.Stdin = r
	j.theirs = append(j.theirs, r)
	j.ours = append(j.ours, w)
	j.feed = func() {
		_, _ = io.Copy(w, sio.Stdin)
		_ = w.Close()
	}
	return nil
}

// terminal connects the streams by a pseudo terminal.
func (j *job) terminal(sio IO) error {
	master, slave, err := openTerminal()
	if err != nil {
		return err
	}
	j.master = master
	j.ours, j.theirs = append(j.ours, master), append(j.theirs, slave)
	j.Stdin, j.Stdout, j.Stderr = slave, slave, slave
	j.SysProcAttr.Setctty = true
	if sio.Stdout != nil {
		j.copies.Go(func() { _, _ = io.Copy(sio.Stdout, master) })
	}
	if sio.Stdin != nil {
		j.feed = func() { _, _ = io.Copy(master, sio.Stdin) }
	}
	return nil
}

// launch starts the command. The calling goroutine must be locked to its thread
// until finish has returned.
func (j *job) launch() error {
	err := j.Start()
	if err != nil {
		j.close()
		return err
	}
	for _, f := range j.theirs {
		_ = f.Close()
	}
	if j.feed != nil {
		go j.feed() // ends with the input, or when finish closes our end
	}
	return nil
}

// exitOf blocks until the process has ended, and leaves it as a zombie, so that
// its number and group cannot become another's yet.
func exitOf(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// finish reaps the command, waits a moment for the rest of its output, and
// returns its exit code.
func (j *job) finish() int32 {
	_ = j.Wait() // the code is in ProcessState
	copied := make(chan struct{})
	go func() {
		j.copies.Wait()
		close(copied)
	}()
	t := time.NewTimer(drain)
	defer t.Stop()
	select {
	case <-copied:
	case <-t.C: // somebody else holds the pipe
	}
	for _, f := range j.ours {
		_ = f.Close()
	}
	<-copied
	if ws, ok := j.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int32(ws.Signal())
	}
	return int32(j.ProcessState.ExitCode())
}

// run is the life of the container, on a thread of its own.
func (p *hostProcess) run(j *job, up chan<- error) {
	if p.h.isolated() {
		ns, err := isolate(p)
		if err != nil {
			j.close()
			up <- err
			return
		}
		p.ns = ns
		j.SysProcAttr.Chroot = ns.root
	}
	if err := j.launch(); err != nil {
		p.ns.close()
		up <- err
		return
	}
	p.pid, p.master = j.Process.Pid, j.master
	up <- nil

	exitOf(p.pid)
	at := time.Now()
	_ = syscall.Kill(-p.pid, syscall.SIGKILL) // whoever is left of the group
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	killMarked(p.c.ID)
	code := j.finish()
	p.ns.close()
	p.exited(Exit{Code: code, At: at})
}

// PID is the number of the container's first process.
func (p *hostProcess) PID() int { return p.pid }

// Signal implements Process: the first process gets sig; SIGKILL goes to all.
func (p *hostProcess) Signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return nil
	}
	to := p.pid
	if sig == syscall.SIGKILL {
		to = -p.pid
	}
	if err := syscall.Kill(to, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal process %d: %w", p.pid, err)
	}
	return nil
}

// Exec implements Process.
func (p *hostProcess) Exec(ctx context.Context, e Exec) (int32, error) {
	j, err := p.command(e.Cmd, e.IO)
	if err != nil {
		return 0, err
	}
	type result struct {
		code int32
		err  error
	}
	done := make(chan result, 1)
	pid := make(chan int, 1)
	ownThread(func() {
		if err := p.ns.enter(); err != nil {
			j.close()
			done <- result{err: err}
			return
		}
		if p.ns != nil {
			j.SysProcAttr.Chroot = p.ns.root
		}
		if err := j.launch(); err != nil {
			done <- result{err: err}
			return
		}
		pid <- j.Process.Pid
		exitOf(j.Process.Pid)
		// What it left in the background lives on in the container.
		done <- result{code: j.finish()}
	})
	for {
		select {
		case r := <-done:
			return r.code, r.err
		case size, ok := <-e.Resize:
			if !ok {
				e.Resize = nil
			} else if j.master != nil {
				_ = resizeTerminal(j.master, size)
			}
		case <-ctx.Done():
			select {
			case n := <-pid:
				_ = syscall.Kill(-n, syscall.SIGKILL)
				<-done
			case <-done:
			}
			return 0, ctx.Err()
		}
	}
}

// Resize implements Resizer.
func (p *hostProcess) Resize(width, height uint16) error {
	if p.master == nil {
		return nil
	}
	return resizeTerminal(p.master, Size{width, height})
}
