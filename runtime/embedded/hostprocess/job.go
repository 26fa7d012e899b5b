//go:build linux || darwin

package hostprocess

import (
	"io"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/runtime/embedded"
)

// job is a command with its streams.
type job struct {
	path string
	argv []string
	dir  string
	env  []string
	oom  int64 // score for the kernel when it is out of memory; on Linux
	attr *syscall.SysProcAttr

	proc   *os.Process
	tagged bool // with all that it has started
	std    [3]*os.File
	output outputs
	drain  func()     // called after the exit, before the rest of the output is taken; nil without
	ours   []*os.File // our ends
	theirs []*os.File // closed once the command runs
	feed   func()     // copies input; nil without
	master *os.File

	mu     sync.Mutex // guards the rest
	reaped bool       // the pid may be reused
}

// close closes the files of a job that did not start.
func (j *job) close() {
	for _, f := range append(j.ours, j.theirs...) {
		_ = f.Close()
	}
}

// connect connects the streams. It closes what it opened if it fails.
func (j *job) connect(sio embedded.IO) error {
	connect := j.pipes
	if sio.TTY {
		connect = j.terminal
	}
	err := connect(sio)
	for i := 0; i < len(j.std) && err == nil; i++ {
		if j.std[i] != nil {
			continue
		}
		if j.std[i], err = os.OpenFile(os.DevNull, os.O_RDWR, 0); err == nil {
			j.theirs = append(j.theirs, j.std[i])
		}
	}
	if err != nil {
		j.close()
	}
	if sio.Log != nil {
		j.drain = sio.Log.Drain
	}
	return err
}

// pipes connects the streams by pipes.
func (j *job) pipes(sio embedded.IO) error {
	for i, to := range []io.Writer{sio.Stdout, sio.Stderr} {
		if to == nil {
			continue
		}
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		j.give(w)
		j.std[1+i] = w
		j.ours, j.theirs = append(j.ours, r), append(j.theirs, w)
		j.output.copy(to, r)
	}
	if sio.Stdin == nil {
		return nil
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	j.give(r)
	j.std[0] = r
	j.ours, j.theirs = append(j.ours, w), append(j.theirs, r)
	j.feed = func() {
		_, _ = io.Copy(w, sio.Stdin)
		_ = w.Close()
	}
	return nil
}

// terminal connects the streams by a pseudo terminal.
func (j *job) terminal(sio embedded.IO) error {
	master, slave, err := openTerminal()
	if err != nil {
		return err
	}
	j.give(slave)
	j.master = master
	j.ours, j.theirs = append(j.ours, master), append(j.theirs, slave)
	j.std = [3]*os.File{slave, slave, slave}
	j.attr.Setctty = true
	out := sio.Stdout
	if out == nil {
		out = io.Discard // a terminal that is not read stops what prints to it
	}
	j.output.copy(out, master)
	if sio.Stdin != nil {
		j.feed = func() { _, _ = io.Copy(master, sio.Stdin) }
	}
	return nil
}

// give makes the user of the command the owner of one of its pipes, or of its terminal, so that it
// can open that by name, as /dev/stderr. Not all systems can do it, and most programs do not need it.
func (j *job) give(f *os.File) {
	if c := j.attr.Credential; c != nil {
		_ = f.Chown(int(c.Uid), -1)
	}
}

// start runs the command. The calling goroutine must be locked to its thread until
// finish has returned.
func (j *job) start(t tag) (err error) {
	if j.proc, err = j.spawn(t); err != nil {
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

// fork starts the process.
func (j *job) fork() (*os.Process, error) {
	return os.StartProcess(j.path, j.argv, &os.ProcAttr{Dir: j.dir, Env: j.env, Files: j.std[:], Sys: j.attr})
}

// kill kills the command's process group.
func (j *job) kill() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.reaped {
		_ = syscall.Kill(-j.proc.Pid, syscall.SIGKILL)
	}
}

// finish reaps the command, waits for the rest of its output, for a short time once
// abandoned is closed, and returns its exit code.
func (j *job) finish(abandoned <-chan struct{}) int32 {
	j.mu.Lock()
	j.reaped = true
	state, err := j.proc.Wait() // it has exited already
	j.mu.Unlock()
	if j.drain != nil {
		j.drain()
	}
	j.output.finish(abandoned)
	for _, f := range j.ours {
		_ = f.Close()
	}
	if err != nil {
		return 255 // other code of this process reaped it
	}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int32(ws.Signal())
	}
	return int32(state.ExitCode())
}

func resizeTerminal(f *os.File, s embedded.TerminalSize) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var ierr error
	if err := conn.Control(func(fd uintptr) {
		ierr = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: s.Height, Col: s.Width})
	}); err != nil {
		return err
	}
	return ierr
}
