package embedded

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// killMarked kills every process that carries the mark of a container. It goes
// round until none is left, since they may fork meanwhile.
func killMarked(id string) {
	mark := []byte(EnvContainerID + "=" + id + "\x00")
	for range 20 {
		found := false
		for _, pid := range pids() {
			if pid == os.Getpid() || !carries(pid, mark) {
				continue
			}
			found = true
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if !found {
			return
		}
	}
}

// carries reports whether a living process has mark in its environment. Those
// that we may not read are not ours.
func carries(pid int, mark []byte) bool {
	env, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
	if err != nil || len(env) == 0 { // a zombie has none
		return false
	}
	return bytes.Contains(append([]byte{0}, append(env, 0)...), append([]byte{0}, mark...))
}

// pids are the numbers of all processes.
func pids() []int {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer func() { _ = dir.Close() }()
	names, _ := dir.Readdirnames(-1)
	var out []int
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil {
			out = append(out, pid)
		}
	}
	return out
}

// procTable is a look at all processes, shared by measurements that come close
// together.
type procTable struct {
	mu      sync.Mutex // guards the rest
	at      time.Time
	session map[int]Usage
}

// maxAge is how old a look may be.
const maxAge = 250 * time.Millisecond

// of sums up the processes of a session.
func (t *procTable) of(session int) Usage {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.at) > maxAge {
		t.session, t.at = sessions(), time.Now()
	}
	return t.session[session]
}

// sessions reads what every session of this machine uses.
func sessions() map[int]Usage {
	page := uint64(os.Getpagesize())
	out := map[int]Usage{}
	for _, pid := range pids() {
		b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		if err != nil {
			continue
		}
		session, ticks, rss, ok := parseStat(b)
		if !ok {
			continue
		}
		u := out[session]
		u.CPU += time.Duration(ticks) * (time.Second / 100) // USER_HZ is 100 on Linux
		u.RSS += rss * page
		u.WorkingSet += rss * page
		u.Processes++
		out[session] = u
	}
	return out
}

// parseStat reads /proc/PID/stat: session, CPU ticks with those of children
// that were waited for, and resident pages.
func parseStat(b []byte) (session int, ticks, rss uint64, ok bool) {
	i := bytes.LastIndexByte(b, ')') // the name may hold anything
	if i < 0 {
		return 0, 0, 0, false
	}
	f := bytes.Fields(b[i+1:])
	if len(f) < 22 {
		return 0, 0, 0, false
	}
	num := func(n int) uint64 {
		v, _ := strconv.ParseUint(string(f[n]), 10, 64)
		return v
	}
	return int(num(3)), num(11) + num(12) + num(13) + num(14), num(21), true
}

// Usage implements Process.
func (p *hostProcess) Usage() Usage {
	u := p.h.table.of(p.pid)
	_ = filepath.WalkDir(filepath.Join(p.scratch, "work"), func(_ string, d os.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // files come and go under a measurement
		}
		if st, err := d.Info(); err == nil {
			u.Disk += uint64(max(0, st.Size()))
			u.Inodes++
		}
		return nil
	})
	return u
}
