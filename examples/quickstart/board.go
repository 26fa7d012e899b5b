package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/status"
)

// board is the status sink of the quickstart. It keeps the last status of each pod
// and shows it: as a table on a terminal, and as one line per change elsewhere.
type board struct {
	out   io.Writer
	table bool
	start time.Time

	mu      sync.Mutex // guards the rest
	pods    map[string]*row
	notes   []string
	results []error // by expectation
	drawn   int     // lines of the table on the screen
}

var _ status.Deleter = (*board)(nil)

// row is one pod, by UID.
type row struct {
	name, phase, detail string
	pod                 *corev1.Pod
	status              corev1.PodStatus
	reportedAt          time.Time
	deleted             bool
	history             []string // phases and container states, in the order reported
}

func newBoard(out *os.File) *board {
	_, err := unix.IoctlGetTermios(int(out.Fd()), getTermios)
	return &board{out: out, table: err == nil, start: time.Now(), pods: map[string]*row{}}
}

// SetStatus implements status.Sink.
func (b *board) SetStatus(_ context.Context, pod *corev1.Pod, st corev1.PodStatus) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.pods[string(pod.UID)]
	if r == nil {
		r = &row{name: pod.Name}
		b.pods[string(pod.UID)] = r
	}
	phase, detail := describe(pod, st)
	changed := phase != r.phase || detail != r.detail
	r.pod, r.status, r.phase, r.detail, r.reportedAt = pod, st, phase, detail, time.Now()
	if changed {
		r.history = append(r.history, phase+" "+detail)
		b.change(r)
	}
	return nil
}

// DeleteStatus implements status.Deleter: all resources of the pod are released.
func (b *board) DeleteStatus(_ context.Context, pod *corev1.Pod) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r := b.pods[string(pod.UID)]; r != nil && !r.deleted {
		r.deleted, r.phase, r.reportedAt = true, "Gone", time.Now()
		r.history = append(r.history, "Gone")
		b.change(r)
	}
	return nil
}

// Record implements agent.Recorder. It shows warnings.
func (b *board) Record(e *corev1.Event) {
	if e.Type != corev1.EventTypeWarning {
		return
	}
	b.note(fmt.Sprintf("%s %s: %s", e.InvolvedObject.Name, e.Reason, e.Message))
}

// checkExpectations compares the statuses with the expectations, before the pods
// are terminated.
func (b *board) checkExpectations() {
	b.mu.Lock()
	b.results = make([]error, len(expectations))
	for i, e := range expectations {
		b.results[i] = e.check(b.named(e.pod))
	}
	b.mu.Unlock()
	b.note("terminating the pods, each within its grace period")
}

// note shows a line of text.
func (b *board) note(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	text = strings.Join(strings.Fields(text), " ")
	if b.table {
		b.notes = append(b.notes, b.stamp()+" "+text)
		b.notes = b.notes[max(0, len(b.notes)-6):]
		b.draw()
		return
	}
	fmt.Fprintf(b.out, "%s  note       %s\n", b.stamp(), text)
}

func (b *board) change(r *row) {
	if b.table {
		b.draw()
		return
	}
	fmt.Fprintf(b.out, "%s  %-10s %-26s %s\n", b.stamp(), r.phase, r.name, r.detail)
}

func (b *board) stamp() string { return fmt.Sprintf("%6.2fs", time.Since(b.start).Seconds()) }

// draw overwrites the previous table.
func (b *board) draw() {
	var s strings.Builder
	if b.drawn > 0 {
		fmt.Fprintf(&s, "\x1b[%dA", b.drawn)
	}
	lines := []string{
		fmt.Sprintf("\x1b[1msublet quickstart\x1b[0m  %s  pods run as local processes; ctrl-c terminates them", b.stamp()),
		fmt.Sprintf("\x1b[2m%-26s %-10s %-5s %-8s %s\x1b[0m", "POD", "PHASE", "READY", "RESTARTS", "CONTAINERS"),
	}
	for _, r := range b.rows() {
		lines = append(lines, fmt.Sprintf("%-26s %s%-10s\x1b[0m %-5s %-8d %s", r.name, colour(r.phase), r.phase, readiness(r.status), restarts(r.status), r.detail))
	}
	lines = append(lines, b.notes...)
	for _, l := range lines {
		s.WriteString("\x1b[2K" + clip(l, 150) + "\n")
	}
	for range b.drawn - len(lines) {
		s.WriteString("\x1b[2K\n")
	}
	b.drawn = max(b.drawn, len(lines))
	_, _ = io.WriteString(b.out, s.String()) // a closed terminal is no reason to stop
}

// rows returns the pods by name, the last reported UID last.
func (b *board) rows() []*row {
	return slices.SortedFunc(maps.Values(b.pods), func(x, y *row) int {
		if c := strings.Compare(x.name, y.name); c != 0 {
			return c
		}
		return x.reportedAt.Compare(y.reportedAt)
	})
}

func colour(phase string) string {
	switch phase {
	case string(corev1.PodRunning):
		return "\x1b[32m"
	case string(corev1.PodSucceeded), "Gone":
		return "\x1b[36m"
	case string(corev1.PodFailed):
		return "\x1b[31m"
	default:
		return "\x1b[33m"
	}
}

// clip shortens a line to n characters, colour codes included.
func clip(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…\x1b[0m"
	}
	return s
}

// describe returns a pod's phase and the states of its containers.
func describe(pod *corev1.Pod, st corev1.PodStatus) (phase, detail string) {
	phase = string(st.Phase)
	if pod.DeletionTimestamp != nil {
		phase = "Terminating"
	}
	var words []string
	for _, c := range slices.Concat(st.InitContainerStatuses, st.ContainerStatuses) {
		words = append(words, c.Name+"="+state(c))
	}
	if st.Reason != "" {
		words = append(words, st.Reason)
	}
	return phase, strings.Join(words, " ")
}

func state(c corev1.ContainerStatus) string {
	var s string
	switch {
	case c.State.Running != nil && c.Ready:
		s = "ready"
	case c.State.Running != nil:
		s = "running"
	case c.State.Terminated != nil:
		s = fmt.Sprintf("exit:%d", c.State.Terminated.ExitCode)
	case c.State.Waiting != nil:
		s = c.State.Waiting.Reason
	}
	if c.RestartCount > 0 {
		s += fmt.Sprintf("(x%d)", c.RestartCount)
	}
	return s
}

func readiness(st corev1.PodStatus) string {
	n := 0
	for _, c := range st.ContainerStatuses {
		if c.Ready {
			n++
		}
	}
	return fmt.Sprintf("%d/%d", n, len(st.ContainerStatuses))
}

func restarts(st corev1.PodStatus) (n int32) {
	for _, c := range slices.Concat(st.InitContainerStatuses, st.ContainerStatuses) {
		n += c.RestartCount
	}
	return n
}
