package oomwatch

import (
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

// Kill is one process that the kernel has killed for want of memory.
type Kill struct {
	Process string // its name, printable and of at most maxName bytes; chosen by the process itself
	PID     int
	Cgroup  string // of the process; "" if the record is ambiguous
	Global  bool   // the machine ran out of memory, not only a cgroup
}

const (
	// maxName is the length of a process name in the kernel, with room for the escapes of the log.
	maxName = 64
	// commBytes is the longest name of a process in the kernel, whose bytes may have the form \xNN in the log.
	commBytes = 15

	begin      = "oom-kill:constraint="
	memcgField = ",task_memcg="
	taskField  = ",task="
)

// tail matches the end of a record, which the kernel writes after everything that a container chooses.
var tail = regexp.MustCompile(`,pid=([0-9]{1,10}),uid=[0-9]{1,10}$`)

// Parse reads a record of /dev/kmsg. ok is false for all but those of the kernel about a process that it kills.
func Parse(record string) (k Kill, ok bool) {
	header, message, found := strings.Cut(record, ";")
	if !found || !fromKernel(header) {
		return k, false
	}
	message, _, _ = strings.Cut(message, "\n") // properties follow
	message, found = strings.CutPrefix(message, begin)
	match := tail.FindStringSubmatchIndex(message)
	if !found || match == nil {
		return k, false
	}
	pid, err := strconv.Atoi(message[match[2]:match[3]])
	if err != nil {
		return k, false
	}
	rest := message[:match[0]]
	i := taskIndex(rest)
	if i < 0 {
		return k, false
	}
	k = Kill{Process: printable(rest[i+len(taskField):]), PID: pid, Global: !strings.HasPrefix(message, "CONSTRAINT_MEMCG,")}
	if rest = rest[:i]; strings.Count(rest, memcgField) == 1 {
		_, k.Cgroup, _ = strings.Cut(rest, memcgField)
	}
	return k, true
}

// fromKernel reports whether the facility of a record is the kernel's: a record that a process writes has another.
func fromKernel(header string) bool {
	priority, _, _ := strings.Cut(header, ",")
	n, err := strconv.Atoi(priority)
	return err == nil && n >= 0 && n < 8
}

// taskIndex returns where the name of the process begins: at the first of the fields that may be it, because a name is short. A name
// that contains the field itself is read as a whole.
func taskIndex(rest string) int {
	from := max(0, len(rest)-len(taskField)-commBytes*len(`\xNN`))
	last := strings.LastIndex(rest, taskField)
	for i := from; i < last; i++ {
		if strings.HasPrefix(rest[i:], taskField) && unescapedLen(rest[i+len(taskField):]) <= commBytes {
			return i
		}
	}
	return last
}

// unescapedLen returns the length of a name before the log escaped it.
func unescapedLen(s string) int { return len(s) - len(`xNN`)*strings.Count(s, `\x`) }

func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return '?'
		}
		return r
	}, s)
	return strings.ToValidUTF8(s[:min(len(s), maxName)], "")
}
