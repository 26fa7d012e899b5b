package hostprocess

import (
	"cmp"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// reapPeriod is how often exited processes of running containers are reaped.
const reapPeriod = 10 * time.Second

// reaper reaps, while containers run, the exited processes of theirs that became children of this
// process. It has a goroutine while there are containers.
type reaper struct {
	period time.Duration // 0: reapPeriod

	mu      sync.Mutex // guards the rest
	running map[tag]*containerProcess
	stop    chan struct{}
}

// add begins to reap the processes of a container that runs.
func (r *reaper) add(p *containerProcess) {
	if p.tag == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.running) == 0 {
		r.running, r.stop = map[tag]*containerProcess{}, make(chan struct{})
		go r.run(r.stop)
	}
	r.running[p.tag] = p
}

// drop ends what add has begun.
func (r *reaper) drop(p *containerProcess) {
	if p.tag == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if delete(r.running, p.tag); len(r.running) == 0 {
		close(r.stop)
	}
}

func (r *reaper) run(stop <-chan struct{}) {
	tick := time.NewTicker(cmp.Or(r.period, reapPeriod))
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
			r.reap()
		}
	}
}

func (r *reaper) reap() {
	if !hasExitedChild() {
		return
	}
	for _, pid := range pids() {
		if !isExitedChild(pid) {
			continue
		}
		r.mu.Lock()
		p := r.running[tagOf(pid)]
		r.mu.Unlock()
		// While a command is started, its process is no job yet: later, then.
		if p != nil && p.mu.TryLock() {
			p.reap(pid)
			p.mu.Unlock()
		}
	}
}

// reapAll reaps the exited processes of the container that are children of this process. Where this
// process is process 1 they are what outlived its parent. No command is started meanwhile.
func (p *containerProcess) reapAll() {
	if p.tag == 0 {
		return
	}
	for _, pid := range pids() {
		p.reap(pid)
	}
}

// reap reaps one of them, if it is, except for a job, which others wait for.
func (p *containerProcess) reap(pid int) {
	if _, isJob := p.jobs.Load(pid); !isJob && isExitedChild(pid) && tagOf(pid) == p.tag {
		_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
	}
}

// hasExitedChild reports whether this process has an exited child, without reaping it.
func hasExitedChild() bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err == nil && info.Signo != 0
}

// isExitedChild reports whether a process is an exited child of this one.
func isExitedChild(pid int) bool {
	p, isRunning := readProcess(pid)
	return !isRunning && p.parent == os.Getpid() // no process that cannot be read has a parent
}
