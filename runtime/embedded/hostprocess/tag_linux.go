package hostprocess

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tag is the limit of file locks, hard and soft, of all processes of a container. It is
// inherited, and only root can raise it. 0 is none.
type tag uint64

// tagFile has the tag of a container, for the cleanup after the agent was killed.
const tagFile = "tag"

// Tags are in a range that no other program uses, below the value of no limit.
const minTag, maxTag = 1 << 40, 1 << 62

// newTag returns a new tag for the container with the directory dir, and saves it there.
func newTag(dir string) (tag, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_LOCKS, &limit); err != nil || limit.Max <= minTag {
		return 0, nil //nolint:nilerr // a process with such a limit cannot set another
	}
	t := tag(minTag + rand.Uint64N(min(limit.Max, maxTag)-minTag))
	path := filepath.Join(dir, tagFile)
	return t, os.WriteFile(path, strconv.AppendUint(nil, uint64(t), 10), 0o600)
}

// readTag returns the saved tag of the container with the directory dir.
func readTag(dir string) tag {
	b, err := os.ReadFile(filepath.Join(dir, tagFile))
	if err != nil {
		return 0
	}
	n, err := strconv.ParseUint(string(b), 10, 64)
	if err != nil || n < minTag || n >= maxTag {
		return 0
	}
	return tag(n)
}

// set sets the tag of a process.
func (t tag) set(pid int) error {
	limit := unix.Rlimit{Cur: uint64(t), Max: uint64(t)}
	return unix.Prlimit(pid, unix.RLIMIT_LOCKS, &limit, nil)
}

// tagOf returns the tag of a process; 0 if it has none or does not exist.
func tagOf(pid int) tag {
	t, _ := readTagOf(pid)
	return t
}

// readTagOf is tagOf that reports why a process cannot be read.
func readTagOf(pid int) (tag, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/limits")
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(b) {
		rest, ok := bytes.CutPrefix(line, []byte("Max file locks"))
		if !ok {
			continue
		}
		fields := bytes.Fields(rest) // soft, hard, unit
		if len(fields) < 2 {
			return 0, nil
		}
		n, err := strconv.ParseUint(string(fields[1]), 10, 64)
		if err != nil || n < minTag || n >= maxTag { // mostly "unlimited"
			return 0, nil
		}
		return tag(n), nil
	}
	return 0, nil
}

// Limits of the kernel for the environment of a program, and for one variable in it. A
// process can claim any of its memory as its environment later.
const maxEnviron, maxVariable = 6 << 20, 128 << 10

// containerOf returns the container id in the environment of a process, or "".
func containerOf(pid int) string {
	f, err := os.Open(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return "" // it has exited, or may not be read
	}
	defer func() { _ = f.Close() }() // only read
	return containerIn(f)
}

// containerIn returns the container id in an environment, or "".
func containerIn(environ io.Reader) string {
	pairs := bufio.NewScanner(io.LimitReader(environ, maxEnviron))
	pairs.Buffer(nil, maxVariable)
	pairs.Split(splitNul)
	for pairs.Scan() {
		if id, ok := bytes.CutPrefix(pairs.Bytes(), []byte(EnvContainerID+"=")); ok {
			return string(id)
		}
	}
	return ""
}

// splitNul is a bufio.SplitFunc for strings that end with a NUL byte.
func splitNul(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if i := bytes.IndexByte(data, 0); i >= 0 {
		return i + 1, data[:i], nil
	}
	if atEOF {
		return len(data), data, bufio.ErrFinalToken
	}
	return 0, nil, nil
}

// killTimeout bounds the wait for killed processes. One that hangs in the kernel exits
// later.
const killTimeout = 5 * time.Second

// killAll kills every process with one of the tags or container ids, and their
// descendants, and repeats until none is left: they may fork meanwhile. It reports whether it
// has seen all processes, for which it needs descriptors.
func killAll(tags map[tag]bool, ids map[string]bool) (complete bool) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(killTimeout); time.Now().Before(deadline); <-tick.C {
		found, err := members(tags, ids)
		for _, p := range found {
			err = errors.Join(err, p.kill())
		}
		if complete = !isScarcity(err); complete && len(found) == 0 {
			return true
		}
	}
	return complete
}

// isScarcity reports whether err may hide a process that exists.
func isScarcity(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM)
}

// members returns the running processes with one of the tags or ids, and their
// descendants, and what kept it from reading some.
func members(tags map[tag]bool, ids map[string]bool) ([]process, error) {
	var all []process
	var scarcity error
	note := func(err error) {
		if isScarcity(err) {
			scarcity = err
		}
	}
	in := map[int]process{}
	list := func() []int {
		all, err := listPIDs()
		note(err)
		return all
	}
	eachNew(list, func(pid int) {
		p, isRunning, err := readStat(pid)
		note(err)
		if !isRunning || pid == os.Getpid() {
			return
		}
		all = append(all, p)
		t, err := readTagOf(pid)
		note(err)
		if !tags[t] && (len(ids) == 0 || !ids[containerOf(pid)]) {
			return
		}
		exists, err := p.check()
		note(err)
		if exists {
			in[pid] = p
		}
	})
	for more := true; more; {
		more = false
		for _, p := range all {
			parent, ok := in[p.parent]
			_, known := in[p.pid]
			if !ok || known || p.start < parent.start { // its parent exited, and the PID was reused
				continue
			}
			in[p.pid], more = p, true
		}
	}
	return slices.Collect(maps.Values(in)), scarcity
}

// kill kills the process, and no other with a reused PID.
func (p process) kill() error {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		if errors.Is(err, unix.ENOSYS) && p.exists() {
			_ = syscall.Kill(p.pid, syscall.SIGKILL)
		}
		return err
	}
	if exists, errRead := p.check(); exists { // so that fd is of this process
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	} else {
		err = errRead
	}
	return errors.Join(err, unix.Close(fd))
}
