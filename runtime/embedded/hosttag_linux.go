package embedded

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tag is a number that all processes of a container have as their limit of file
// locks, hard and soft. It is inherited, and only root can raise it again. 0 is none.
type tag uint64

// tagFile is where the tag of a container is kept, for who sweeps after a kill.
const tagFile = "tag"

// Tags lie in a range that nobody else chooses, below what is no limit at all.
const minTag, maxTag = 1 << 40, 1 << 62

// newTag makes up the tag of the container whose directory dir is, and keeps it there.
func newTag(dir string) (tag, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_LOCKS, &limit); err != nil || limit.Max <= minTag {
		return 0, nil //nolint:nilerr // who has such a limit can give no other
	}
	t := tag(minTag + rand.Uint64N(min(limit.Max, maxTag)-minTag))
	path := filepath.Join(dir, tagFile)
	return t, os.WriteFile(path, strconv.AppendUint(nil, uint64(t), 10), 0o600)
}

// readTag is the tag of the container whose directory dir was.
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

// set gives t to a process.
func (t tag) set(pid int) error {
	limit := unix.Rlimit{Cur: uint64(t), Max: uint64(t)}
	return unix.Prlimit(pid, unix.RLIMIT_LOCKS, &limit, nil)
}

// tagOf is the tag of a process; 0 if it has none, or is gone.
func tagOf(pid int) tag {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/limits")
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(b) {
		rest, ok := bytes.CutPrefix(line, []byte("Max file locks"))
		if !ok {
			continue
		}
		fields := bytes.Fields(rest) // soft, hard, unit
		if len(fields) < 2 {
			return 0
		}
		n, err := strconv.ParseUint(string(fields[1]), 10, 64)
		if err != nil || n < minTag || n >= maxTag { // mostly "unlimited"
			return 0
		}
		return tag(n)
	}
	return 0
}

// containerOf is the container that a process says it belongs to, or "".
func containerOf(pid int) string {
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return "" // gone, or nobody that we may know
	}
	for pair := range strings.SplitSeq(string(env), "\x00") {
		if id, ok := strings.CutPrefix(pair, EnvContainerID+"="); ok {
			return id
		}
	}
	return ""
}

// dying is how long killed processes are waited for. One that hangs in the kernel
// goes when that lets it.
const dying = 5 * time.Second

// killAll kills every process with one of the tags or container ids, and all that
// descend from them, and goes round until none is left: they may fork meanwhile.
func killAll(tags map[tag]bool, ids map[string]bool) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(dying); time.Now().Before(deadline); <-tick.C {
		found := members(tags, ids)
		for _, p := range found {
			p.kill()
		}
		if len(found) == 0 {
			return
		}
	}
}

// members are the living processes that have one of the tags or ids, with all their
// descendants.
func members(tags map[tag]bool, ids map[string]bool) []process {
	all := processes()
	in := map[int]process{}
	for _, p := range all {
		if p.pid == os.Getpid() {
			continue
		}
		if (tags[tagOf(p.pid)] || len(ids) > 0 && ids[containerOf(p.pid)]) && p.there() {
			in[p.pid] = p
		}
	}
	for more := true; more; {
		more = false
		for _, p := range all {
			parent, ok := in[p.parent]
			_, known := in[p.pid]
			if !ok || known || p.pid == os.Getpid() || p.start < parent.start { // that one only has the parent's number
				continue
			}
			in[p.pid], more = p, true
		}
	}
	return slices.Collect(maps.Values(in))
}

// kill kills the process, and no other that has its number by now.
func (p process) kill() {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		if errors.Is(err, unix.ENOSYS) && p.there() {
			_ = syscall.Kill(p.pid, syscall.SIGKILL)
		}
		return
	}
	if p.there() { // so it is the one that fd is of
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
	_ = unix.Close(fd)
}
