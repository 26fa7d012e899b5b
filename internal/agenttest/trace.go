package agenttest

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
)

// The kinds of lines of a trace, in the order in which lines with the same time and pod
// are shown.
const (
	lineScript = iota // a command of the script
	linePull          // an image pull; concurrent with the creation of the sandbox
	lineCall          // a call of the runtime that changes something
	lineEvent         // a warning
	lineStatus        // the last status sent at this time
)

// Trace records the actions of an agent. Lines with the same time are in an order that
// does not depend on the scheduler: by pod, then by kind; concurrent calls are sorted.
// Of several statuses of a pod at one time the last is kept, because the others may or
// may not have been merged into it.
type Trace struct {
	grain time.Duration     // times are truncated to it
	hide  *strings.Replacer // of directories
	start time.Time

	mu    sync.Mutex // guards the rest
	lines []line
	pods  map[types.UID]string // labels
	names map[string]int
}

// Lines of a trace about the deletion of a status.
const (
	deleted   = "= gone"
	recreated = "= recreated" // not shown
)

type line struct {
	at    time.Duration
	pod   string
	kind  int
	text  string
	group string // lines with the same group are concurrent
}

func newTrace(grain time.Duration, hide *strings.Replacer) *Trace {
	return &Trace{grain: cmp.Or(grain, time.Millisecond), hide: hide, start: time.Now(), pods: map[types.UID]string{}, names: map[string]int{}}
}

// Label returns the name of a pod in the trace: its name, and for later pods of the same
// name a number.
func (t *Trace) Label(uid types.UID, name string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l, ok := t.pods[uid]; ok {
		return l
	}
	t.names[name]++
	l := name
	if n := t.names[name]; n > 1 {
		l = fmt.Sprintf("%s(%d)", name, n)
	}
	t.pods[uid] = l
	return l
}

// Command adds a line about an input of the test.
func (t *Trace) Command(text string) { t.add("", lineScript, "", text) }

func (t *Trace) add(pod string, kind int, group, text string) {
	text = t.hide.Replace(text)
	t.mu.Lock()
	defer t.mu.Unlock()
	at := time.Since(t.start).Truncate(t.grain)
	t.lines = append(t.lines, line{at: at, pod: pod, kind: kind, group: group, text: Mask(text)})
}

// What Mask replaces, compiled once: every line of every trace is masked.
var (
	lostConnection = regexp.MustCompile(`: (connection error: .*connection refused"|error reading from server: EOF)`)
	runtimeID      = regexp.MustCompile(`\b[0-9a-f]{64}\b`)
	podUID         = regexp.MustCompile(`\b[0-9a-f]{32}\b`)
)

// Mask replaces the parts of a text that differ between runs.
func Mask(s string) string {
	s = lostConnection.ReplaceAllString(s, ": connection lost")
	s = runtimeID.ReplaceAllString(s, "ID")
	return podUID.ReplaceAllString(s, "UID")
}

// String returns the trace as in a scenario file.
func (t *Trace) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := slices.Clone(t.lines)
	slices.SortStableFunc(lines, func(a, b line) int {
		switch {
		case a.at != b.at:
			return int(a.at - b.at)
		case (a.kind == lineScript) != (b.kind == lineScript):
			return a.kind - b.kind
		case a.kind == lineScript:
			return 0
		case a.pod != b.pod:
			return strings.Compare(a.pod, b.pod)
		}
		return a.kind - b.kind
	})
	lines = sideBySide(lastStatuses(removals(lines)))
	var b strings.Builder
	at := time.Duration(-1)
	for _, l := range lines {
		if l.at != at {
			at = l.at
			fmt.Fprintf(&b, "%s\n", ShortDuration(at))
		}
		if l.kind == lineScript {
			fmt.Fprintf(&b, "  > %s\n", l.text)
			continue
		}
		fmt.Fprintf(&b, "    %s\n", strings.TrimPrefix(l.pod+"  "+l.text, "  "))
	}
	return b.String()
}

// removals drops removals of containers that are removed with their sandbox at the same
// time: the cleanup of the pod and the container garbage collection both can do that.
func removals(lines []line) []line {
	type key struct {
		at   time.Duration
		pod  string
		text string
	}
	boxes, removed := map[key]bool{}, map[key]bool{}
	for _, l := range lines {
		if strings.HasPrefix(l.text, "RemovePodSandbox") {
			boxes[key{l.at, l.pod, ""}] = true
		}
	}
	return slices.DeleteFunc(lines, func(l line) bool {
		switch k := (key{l.at, l.pod, l.text}); {
		case strings.HasPrefix(l.text, "RemovePodSandbox"):
			repeated := removed[k]
			removed[k] = true
			return repeated
		case strings.HasPrefix(l.text, "RemoveContainer"):
			return boxes[key{l.at, l.pod, ""}]
		}
		return false
	})
}

// ShortDuration returns a duration without zero minutes and seconds, such as 1h.
func ShortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// lastStatuses drops repeated warnings, each status that is followed by another one at the
// same time, and each whose text equals the previous one.
func lastStatuses(lines []line) []line {
	var out []line
	previous := map[string]string{}
	for i, l := range lines {
		if l.kind == lineEvent && i > 0 && lines[i-1] == l {
			continue
		}
		if l.kind == lineStatus {
			if l.text == recreated {
				previous[l.pod] = ""
				continue
			}
			if i+1 < len(lines) && lines[i+1].kind == lineStatus && lines[i+1].pod == l.pod && lines[i+1].at == l.at {
				if l.text == deleted {
					previous[l.pod] = ""
				}
				continue
			}
			if previous[l.pod] == l.text {
				continue
			}
			previous[l.pod] = l.text
		}
		out = append(out, l)
	}
	return out
}

// sideBySide sorts concurrent calls.
func sideBySide(lines []line) []line {
	for i := 0; i < len(lines); {
		j := i + 1
		for j < len(lines) && lines[i].group != "" && lines[j].group == lines[i].group && lines[j].pod == lines[i].pod && lines[j].at == lines[i].at {
			j++
		}
		slices.SortStableFunc(lines[i:j], func(a, b line) int { return strings.Compare(a.text, b.text) })
		i = j
	}
	return lines
}

// statusText returns a status in one line.
func statusText(pod *corev1.Pod, st corev1.PodStatus) string {
	var b strings.Builder
	fmt.Fprintf(&b, "= %s", st.Phase)
	for _, c := range st.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			b.WriteString(" Ready")
		}
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			b.WriteString(" DisruptionTarget")
		}
	}
	if st.Reason != "" {
		fmt.Fprintf(&b, " %s %q", st.Reason, st.Message)
	}
	for c := range podspec.ContainerStatuses(&st) {
		fmt.Fprintf(&b, " | %s", ContainerText(*c))
	}
	if pod.DeletionTimestamp != nil {
		b.WriteString(" (deleted)")
	}
	return b.String()
}

// ContainerText returns the status of a container in one line.
func ContainerText(c corev1.ContainerStatus) string {
	text := c.Name
	switch s := c.State; {
	case s.Running != nil:
		text += " running"
		if c.Ready {
			text += " ready"
		}
	case s.Terminated != nil:
		text += fmt.Sprintf(" ended %d %s", s.Terminated.ExitCode, s.Terminated.Reason)
		if s.Terminated.Message != "" {
			text += fmt.Sprintf(" %q", s.Terminated.Message)
		}
	case s.Waiting != nil:
		text += " " + s.Waiting.Reason
	}
	if c.RestartCount > 0 {
		text += fmt.Sprintf(", restart %d", c.RestartCount)
	}
	if l := c.LastTerminationState.Terminated; l != nil {
		text += fmt.Sprintf(", last %d %s", l.ExitCode, l.Reason)
	}
	return text
}
