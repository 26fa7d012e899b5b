//go:build linux || darwin

package hostprocess

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sublet-dev/agent/runtime/embedded"
)

// Start implements embedded.Executor.
func (h *Executor) Start(ctx context.Context, c *embedded.Container, sio embedded.IO, exited func(embedded.Exit)) (embedded.Process, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	dir, err := h.scratch(c.ID)
	if err != nil {
		return nil, err
	}
	if sio.Log != nil {
		if err := sio.Log.Create(); err != nil {
			return nil, fmt.Errorf("open log: %w", err)
		}
	}
	p := &containerProcess{h: h, c: c, scratch: dir, exited: exited}
	if p.cred, err = credential(c); err != nil {
		return nil, err
	}
	argv, err := c.Argv()
	if err != nil {
		return nil, err
	}
	if p.tag, err = newTag(dir); err != nil {
		return nil, err
	}
	catchIgnored()
	// The thread that starts a process must run as long as the process: its exit
	// is the parent's death for PR_SET_PDEATHSIG. The process also gets the mount
	// namespace of this thread.
	started := make(chan error)
	ownThread(func() { p.run(argv, sio, started) })
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// containerProcess is a container that is a process group.
type containerProcess struct {
	h       *Executor
	c       *embedded.Container
	scratch string
	cred    *syscall.Credential
	exited  func(embedded.Exit)
	tag     tag // of all its processes; 0: none

	// Set before the first process starts.
	ns  *namespace // nil without isolation
	dir string     // where commands run
	env []string

	pid    int
	master *os.File // of the terminal; nil without

	mu    sync.RWMutex // guards the rest; read-locked while a command is started
	ended bool         // the pid may be reused

	disk scratchUsage
	cpu  cpuTime

	hasUntagged atomic.Bool // some of its processes may have no tag
	jobs        sync.Map    // keys: PIDs of processes that others wait for
}

// killRest kills the other processes of the container after the exit of its first.
func (p *containerProcess) killRest() {
	tags, ids := map[tag]bool{}, map[string]bool{}
	if p.tag != 0 {
		tags[p.tag] = true
	}
	if p.hasUntagged.Load() {
		ids[p.c.ID] = true
	}
	if !killAll(tags, ids) {
		go func() { // it must not wait: the descriptors may be those of containers that end
			tick := time.NewTicker(time.Second)
			defer tick.Stop()
			for !killAll(tags, ids) {
				<-tick.C
			}
		}()
	}
	p.reapAll()
}

// setEnvironment sets the directory and the environment of the container. The calling
// thread is in its namespaces.
func (p *containerProcess) setEnvironment(work os.FileInfo) {
	scratch := filepath.Join(p.scratch, workDir)
	if now, err := os.Stat(scratch); err != nil || !os.SameFile(now, work) {
		scratch = "/" // a mount hides it
	}
	if p.dir = p.c.Dir(); p.dir == "" {
		p.dir = scratch
	} else if !filepath.IsAbs(p.dir) {
		p.dir = filepath.Join("/", p.dir)
	}
	p.env = p.h.environ(p.c, p.ns != nil, p.dir)
}

// run runs the container from start to exit, on a thread of its own.
func (p *containerProcess) run(argv []string, sio embedded.IO, started chan<- error) {
	j, err := p.startFirst(argv, sio)
	if err != nil {
		p.ns.close()
		started <- err
		return
	}
	p.pid, p.master = j.proc.Pid, j.master
	p.h.reaper.add(p)
	started <- nil

	exitOf(p.pid)
	at := time.Now()
	p.h.reaper.drop(p)
	_ = syscall.Kill(-p.pid, syscall.SIGKILL) // the rest of the group
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	p.killRest()
	code := j.finish(nil)
	p.ns.close()
	p.disk.close()
	p.exited(embedded.Exit{Code: code, At: at})
}

// startFirst creates the namespaces of the container and starts its first process.
func (p *containerProcess) startFirst(argv []string, sio embedded.IO) (*job, error) {
	work, err := os.Stat(filepath.Join(p.scratch, workDir))
	if err != nil {
		return nil, err
	}
	if err := p.prepare(); err != nil {
		return nil, err
	}
	if p.h.isolated() {
		if p.ns, err = isolate(p); err != nil {
			return nil, err
		}
	}
	p.setEnvironment(work)
	return p.launch(argv, sio)
}

// launch starts a command on the calling thread, which is in the container's
// namespaces.
func (p *containerProcess) launch(argv []string, sio embedded.IO) (*job, error) {
	path, err := lookPath(argv, p.env, p.dir)
	if err != nil {
		return nil, err
	}
	if st, err := os.Stat(p.dir); err != nil {
		return nil, fmt.Errorf("working directory: %w", err)
	} else if !st.IsDir() {
		return nil, fmt.Errorf("working directory %q: not a directory", p.dir)
	}
	env := p.env
	if sio.TTY {
		env = withDefault(slices.Clip(env), "TERM", "xterm")
	}
	oom := p.c.Config.GetLinux().GetResources().GetOomScoreAdj()
	j := &job{path: path, argv: argv, dir: p.dir, env: env, oom: oom, attr: attributes(p.cred)}
	if err := j.connect(sio); err != nil {
		return nil, err
	}
	if err := j.start(p.tag); err != nil {
		return nil, fmt.Errorf("run %s in %s: %w", path, p.dir, explainDenied(err, p.dir, p.cred))
	}
	p.jobs.Store(j.proc.Pid, nil)
	if !j.tagged {
		p.hasUntagged.Store(true)
	}
	return j, nil
}

// PID returns the PID of the container's first process.
func (p *containerProcess) PID() int { return p.pid }

// Signal implements embedded.Process: the first process gets sig; SIGKILL its group, and after
// its exit all others.
func (p *containerProcess) Signal(sig syscall.Signal) error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.ended {
		return nil
	}
	to := p.pid
	if sig == syscall.SIGKILL {
		to = -p.pid
	}
	if err := syscall.Kill(to, native(sig)); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal process %d: %w", p.pid, err)
	}
	return nil
}

// Exec implements embedded.Process.
func (p *containerProcess) Exec(ctx context.Context, e embedded.Exec) (int32, error) {
	type result struct {
		code int32
		err  error
	}
	started, done := make(chan *job, 1), make(chan result, 1)
	ownThread(func() {
		j, err := p.execute(e)
		if err != nil {
			done <- result{err: err}
			return
		}
		started <- j
		exitOf(j.proc.Pid)
		// Its background processes run on in the container.
		code := j.finish(ctx.Done())
		p.jobs.Delete(j.proc.Pid)
		done <- result{code: code}
	})
	var (
		j      *job
		resize <-chan embedded.TerminalSize // nil until the command runs
	)
	for {
		select {
		case r := <-done:
			return r.code, r.err
		case j = <-started:
			resize = e.Resize // with a size that was sent before the terminal existed
		case size, ok := <-resize:
			if !ok {
				resize = nil
			} else if j.master != nil {
				_ = resizeTerminal(j.master, size)
			}
		case <-ctx.Done():
			if j == nil {
				select {
				case j = <-started:
				case <-done: // it never ran, or has exited
					return 0, ctx.Err()
				}
			}
			j.kill()
			<-done
			return 0, ctx.Err()
		}
	}
}

// execute starts a command in the container.
func (p *containerProcess) execute(e embedded.Exec) (*job, error) {
	p.mu.RLock() // so that killRest finds a process that is started
	defer p.mu.RUnlock()
	if p.ended {
		return nil, errors.New("container has exited")
	}
	if err := p.prepare(); err != nil {
		return nil, err
	}
	if err := p.ns.enter(); err != nil {
		return nil, err
	}
	return p.launch(e.Cmd, e.IO)
}

// Resize implements embedded.TerminalResizer.
func (p *containerProcess) Resize(width, height uint16) error {
	if p.master == nil {
		return nil
	}
	return resizeTerminal(p.master, embedded.TerminalSize{Width: width, Height: height})
}

// Usage implements embedded.Process.
func (p *containerProcess) Usage() embedded.Usage {
	u, at := p.h.table.of(p.pid, p.tag)
	u.CPU = p.cpu.add(u.CPU, at)
	disk := p.disk.measure(filepath.Join(p.scratch, workDir))
	u.Disk, u.Inodes = disk.Bytes, disk.Inodes
	return u
}
