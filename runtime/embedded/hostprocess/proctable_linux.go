package hostprocess

import (
	"bytes"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/sublet-dev/agent/runtime/embedded"
)

// process is a running process as it was read.
type process struct {
	pid, parent, session int
	start                uint64 // in ticks since boot; identifies the process together with pid
	cpu                  time.Duration
	rss                  uint64
}

// exists reports whether p still runs.
func (p process) exists() bool {
	exists, _ := p.check()
	return exists
}

// check is exists that reports why a process cannot be read.
func (p process) check() (exists bool, err error) {
	now, isRunning, err := readStat(p.pid)
	return isRunning && now.start == p.start, err
}

// readProcess reads a process, and whether it is running.
func readProcess(pid int) (process, bool) {
	p, isRunning, _ := readStat(pid)
	return p, isRunning
}

// readStat is readProcess that reports why a process cannot be read.
func readStat(pid int) (process, bool, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return process{}, false, err
	}
	p, isRunning := parseStat(pid, b)
	return p, isRunning, nil
}

// parseStat parses /proc/PID/stat, and whether the process is running: a zombie is not. CPU
// time includes that of reaped children. The zero process is that of what is no stat.
func parseStat(pid int, b []byte) (process, bool) {
	i := bytes.LastIndexByte(b, ')') // the name may have any characters
	if i < 0 {
		return process{}, false
	}
	f := bytes.Fields(b[i+1:])
	if len(f) < 22 {
		return process{}, false
	}
	num := func(n int) uint64 {
		v, _ := strconv.ParseUint(string(f[n]), 10, 64)
		return v
	}
	// Of a zombie with more than one thread only the first thread has exited.
	state := f[0][0]
	isRunning := state != 'Z' && state != 'X' || num(17) >= 2
	ticks := num(11) + num(12) + num(13) + num(14)
	return process{
		pid: pid, parent: int(num(1)), session: int(num(3)), start: num(19),
		cpu: time.Duration(ticks) * (time.Second / 100), // USER_HZ is 100 on Linux
		rss: num(21) * uint64(os.Getpagesize()),
	}, isRunning
}

// maxRounds bounds how often processes are listed, where they are started faster than listed.
const maxRounds = 20

// eachNew calls f for all that list returns, and lists again until there is nothing new: a
// process that was listed may have started another one, and have exited before f. One that is
// there at the end and that f has not got was started by one that f has got, and that still ran
// after f.
func eachNew(list func() []int, f func(int)) {
	listed := map[int]bool{}
	for range maxRounds {
		isNew := false
		for _, pid := range list() {
			if !listed[pid] {
				listed[pid], isNew = true, true
				f(pid)
			}
		}
		if !isNew {
			return
		}
	}
}

// pids returns the numbers of all processes.
func pids() []int {
	all, _ := listPIDs()
	return all
}

func listPIDs() (all []int, err error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }() // only read
	names, err := dir.Readdirnames(-1)
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil {
			all = append(all, pid)
		}
	}
	return all, err
}

// procTable is a snapshot of all processes, shared by measurements within maxAge.
type procTable struct {
	mu      sync.Mutex // guards the rest
	at      time.Time
	tagged  map[tag]embedded.Usage
	session map[int]embedded.Usage // of those without a tag
}

// maxAge is the maximum age of a snapshot.
const maxAge = 250 * time.Millisecond

// of returns the usage of the processes with a tag, and of those without one in a
// session, and when they were read.
func (t *procTable) of(session int, of tag) (embedded.Usage, time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.at) > maxAge {
		t.read()
		t.at = time.Now()
	}
	u := t.session[session]
	if of != 0 {
		u = sum(u, t.tagged[of])
	}
	return u, t.at
}

// read reads the usage of all processes. A zombie has its time until its parent takes it over.
func (t *procTable) read() {
	t.tagged, t.session = map[tag]embedded.Usage{}, map[int]embedded.Usage{}
	eachNew(pids, func(pid int) {
		p, isRunning := readProcess(pid)
		if p.pid == 0 {
			return
		}
		u := embedded.Usage{CPU: p.cpu, RSS: p.rss, WorkingSet: p.rss}
		if isRunning {
			u.Processes = 1
		}
		if tag := tagOf(p.pid); tag != 0 {
			t.tagged[tag] = sum(t.tagged[tag], u)
		} else {
			t.session[p.session] = sum(t.session[p.session], u)
		}
	})
}

// sum returns the sum of two usages.
func sum(u, more embedded.Usage) embedded.Usage {
	u.CPU += more.CPU
	u.RSS += more.RSS
	u.WorkingSet += more.WorkingSet
	u.Processes += more.Processes
	return u
}
