package embedded

import (
	"bytes"
	"os"
	"strconv"
	"sync"
	"time"
)

// process is one that lives, as it was when it was looked at.
type process struct {
	pid, parent, session int
	start                uint64 // in ticks since boot: with pid, who it is
	cpu                  time.Duration
	rss                  uint64
}

// there reports whether p still lives.
func (p process) there() bool {
	now, ok := lookAt(p.pid)
	return ok && now.start == p.start
}

// lookAt reads what there is to know of a living process.
func lookAt(pid int) (process, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return process{}, false
	}
	return parseStat(pid, b)
}

// parseStat reads /proc/PID/stat. CPU time is with that of children that were waited
// for. A zombie does not live.
func parseStat(pid int, b []byte) (process, bool) {
	i := bytes.LastIndexByte(b, ')') // the name may hold anything
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
	// Of a zombie with more than one thread only the first thread has ended.
	if state := f[0][0]; (state == 'Z' || state == 'X') && num(17) < 2 {
		return process{}, false
	}
	ticks := num(11) + num(12) + num(13) + num(14)
	return process{
		pid: pid, parent: int(num(1)), session: int(num(3)), start: num(19),
		cpu: time.Duration(ticks) * (time.Second / 100), // USER_HZ is 100 on Linux
		rss: num(21) * uint64(os.Getpagesize()),
	}, true
}

// processes are all that live on this machine.
func processes() []process {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer func() { _ = dir.Close() }() // only read
	names, _ := dir.Readdirnames(-1)
	all := make([]process, 0, len(names))
	for _, n := range names {
		pid, err := strconv.Atoi(n)
		if err != nil {
			continue
		}
		if p, ok := lookAt(pid); ok {
			all = append(all, p)
		}
	}
	return all
}

// procTable is a look at all processes, shared by measurements that come close
// together.
type procTable struct {
	mu      sync.Mutex // guards the rest
	at      time.Time
	tagged  map[tag]Usage
	session map[int]Usage // of those without a tag
}

// maxAge is how old a look may be.
const maxAge = 250 * time.Millisecond

// of sums up the processes with a tag, and those without one that are of a session.
func (t *procTable) of(session int, of tag) Usage {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.at) > maxAge {
		t.look()
		t.at = time.Now()
	}
	u := t.session[session]
	if of != 0 {
		u = u.and(t.tagged[of])
	}
	return u
}

// look reads what all processes use.
func (t *procTable) look() {
	t.tagged, t.session = map[tag]Usage{}, map[int]Usage{}
	for _, p := range processes() {
		u := Usage{CPU: p.cpu, RSS: p.rss, WorkingSet: p.rss, Processes: 1}
		if of := tagOf(p.pid); of != 0 {
			t.tagged[of] = t.tagged[of].and(u)
		} else {
			t.session[p.session] = t.session[p.session].and(u)
		}
	}
}

// and adds what processes use.
func (u Usage) and(more Usage) Usage {
	u.CPU += more.CPU
	u.RSS += more.RSS
	u.WorkingSet += more.WorkingSet
	u.Processes += more.Processes
	return u
}
