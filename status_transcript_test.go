package agent_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// transcript is a sink that records all statuses in a readable form.
type transcript struct {
	w     *harness
	began time.Time

	mu      sync.Mutex // guards the rest
	entries []transcriptEntry
	closed  bool
	ids     map[string]string // names of containers
}

// transcriptEntry is a status or a command of the script.
type transcriptEntry struct {
	at     time.Duration
	script string // the command
	uid    types.UID
	pod    string
	status *corev1.PodStatus // nil: deleted
}

func newTranscript(w *harness) *transcript {
	return &transcript{w: w, began: time.Now(), ids: map[string]string{}}
}

// close ends the transcript.
func (b *transcript) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
}

func (b *transcript) note(script string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.entries = append(b.entries, transcriptEntry{at: b.since(time.Now()), script: script})
}

func (b *transcript) add(pod *corev1.Pod, st *corev1.PodStatus) {
	b.w.mu.Lock()
	l := b.w.current
	b.w.mu.Unlock()
	if l == nil || l.tap.isDead() {
		return // a killed agent
	}
	label := b.w.trace.label(pod.UID, pod.Name)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	b.entries = append(b.entries, transcriptEntry{at: b.since(time.Now()), uid: pod.UID, pod: label, status: st})
}

func (b *transcript) since(t time.Time) time.Duration {
	return t.Sub(b.began).Truncate(time.Millisecond)
}

// String returns, for each time, the commands of the script and then the last status of
// each pod.
func (b *transcript) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out strings.Builder
	previous := map[types.UID]*corev1.PodStatus{}
	for i := 0; i < len(b.entries); {
		at := b.entries[i].at
		last := map[string][]transcriptEntry{} // by pod: its last status and its deletion
		var lines string
		for ; i < len(b.entries) && b.entries[i].at == at; i++ {
			if p := b.entries[i]; p.script != "" {
				lines += "  > " + p.script + "\n"
			} else {
				kept := last[p.pod]
				if n := len(kept); n > 0 && p.status != nil && kept[n-1].status != nil {
					kept = kept[:n-1]
				}
				last[p.pod] = append(kept, p)
			}
		}
		for _, pod := range slices.Sorted(maps.Keys(last)) {
			for _, p := range last[pod] {
				lines += b.changes(previous[p.uid], p)
				previous[p.uid] = p.status
			}
		}
		if lines != "" {
			fmt.Fprintf(&out, "%s\n%s", short(at), mask(lines))
		}
	}
	return out.String()
}

// changes returns the differences between a status and the previous one.
func (b *transcript) changes(previous *corev1.PodStatus, p transcriptEntry) string {
	now := p.status
	if now == nil {
		return "  " + p.pod + " is gone\n"
	}
	first := previous == nil
	if first {
		previous = &corev1.PodStatus{}
	}
	var lines []string
	for i := range now.Conditions {
		c := &now.Conditions[i]
		if was := condition(previous.Conditions, c.Type); was == nil || b.condition(was) != b.condition(c) {
			lines = append(lines, b.condition(c))
		}
	}
	for i := range previous.Conditions {
		if c := &previous.Conditions[i]; condition(now.Conditions, c.Type) == nil {
			lines = append(lines, string(c.Type)+" is removed")
		}
	}
	for _, lists := range [][2][]corev1.ContainerStatus{
		{previous.InitContainerStatuses, now.InitContainerStatuses},
		{previous.ContainerStatuses, now.ContainerStatuses},
		{previous.EphemeralContainerStatuses, now.EphemeralContainerStatuses},
	} {
		for i := range lists[1] {
			c := &lists[1][i]
			j := slices.IndexFunc(lists[0], func(o corev1.ContainerStatus) bool { return o.Name == c.Name })
			if j < 0 || b.container(&lists[0][j]) != b.container(c) {
				lines = append(lines, b.container(c))
			}
		}
	}
	head := b.head(now)
	if !first && len(lines) == 0 && head == b.head(previous) {
		return ""
	}
	text := fmt.Sprintf("  %s  %s\n", p.pod, head)
	for _, l := range lines {
		text += "      " + l + "\n"
	}
	return text
}

func condition(list []corev1.PodCondition, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range list {
		if list[i].Type == t {
			return &list[i]
		}
	}
	return nil
}

// head returns the part of a status that concerns the pod.
func (b *transcript) head(st *corev1.PodStatus) string {
	words := []string{cmp.Or(string(st.Phase), "no phase")}
	if st.Reason != "" || st.Message != "" {
		words = append(words, fmt.Sprintf("%s %q", st.Reason, st.Message))
	}
	if st.StartTime != nil {
		words = append(words, "since "+b.time(*st.StartTime))
	}
	words = append(words, string(st.QOSClass))
	if len(st.PodIPs) > 0 {
		var ips []string
		for _, ip := range st.PodIPs {
			ips = append(ips, ip.IP)
		}
		words = append(words, strings.Join(ips, " and ")+" on "+st.HostIP)
	}
	if st.ObservedGeneration != 0 {
		words = append(words, fmt.Sprint("generation ", st.ObservedGeneration))
	}
	return strings.Join(words, ", ")
}

func (b *transcript) condition(c *corev1.PodCondition) string {
	text := fmt.Sprintf("%s %s since %s", c.Type, c.Status, b.time(c.LastTransitionTime))
	if c.Reason != "" {
		text += " " + c.Reason
	}
	if c.Message != "" {
		text += fmt.Sprintf(" %q", c.Message)
	}
	return text
}

func (b *transcript) container(c *corev1.ContainerStatus) string {
	words := []string{c.Name + ": " + b.state(&c.State)}
	if c.Started != nil && *c.Started {
		words = append(words, "started")
	}
	if c.Ready {
		words = append(words, "ready")
	}
	if c.RestartCount > 0 {
		words = append(words, fmt.Sprint("restarts ", c.RestartCount))
	}
	if c.ContainerID != "" {
		words = append(words, b.id(c.ContainerID))
	}
	if c.LastTerminationState != (corev1.ContainerState{}) {
		words = append(words, "last "+b.state(&c.LastTerminationState))
	}
	if len(c.AllocatedResources) > 0 {
		words = append(words, "allocated "+amounts(c.AllocatedResources))
	}
	if r := c.Resources; r != nil && len(r.Requests)+len(r.Limits) > 0 {
		words = append(words, "has "+amounts(r.Requests)+" up to "+amounts(r.Limits))
	}
	return strings.Join(words, ", ")
}

// state returns one state of a container. An invalid one is shown as it is.
func (b *transcript) state(s *corev1.ContainerState) string {
	switch {
	case s.Waiting != nil && s.Running == nil && s.Terminated == nil:
		text := "waits, " + cmp.Or(s.Waiting.Reason, "without a reason")
		if s.Waiting.Message != "" {
			text += fmt.Sprintf(" %q", s.Waiting.Message)
		}
		return text
	case s.Running != nil && s.Waiting == nil && s.Terminated == nil:
		return "runs since " + b.time(s.Running.StartedAt)
	case s.Terminated != nil && s.Waiting == nil && s.Running == nil:
		t := s.Terminated
		text := fmt.Sprintf("%s %d", cmp.Or(t.Reason, "without a reason"), t.ExitCode)
		if t.Signal != 0 {
			text += fmt.Sprintf(" signal %d", t.Signal)
		}
		if t.Message != "" {
			text += fmt.Sprintf(" %q", t.Message)
		}
		return text + fmt.Sprintf(" (%s, %s to %s)", b.id(t.ContainerID), b.time(t.StartedAt), b.time(t.FinishedAt))
	}
	return fmt.Sprintf("%+v", *s)
}

// id returns the name and attempt of a container.
func (b *transcript) id(id string) string {
	kind, id, ok := strings.Cut(id, "://")
	if !ok {
		return "no id"
	}
	if b.ids[id] == "" {
		b.ids[id] = b.w.object(id).name
	}
	return kind + "://" + b.ids[id]
}

func (b *transcript) time(t metav1.Time) string {
	if t.IsZero() {
		return "never"
	}
	return short(t.Sub(b.began))
}

func amounts(list corev1.ResourceList) string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(list)) {
		q := list[name]
		words = append(words, fmt.Sprintf("%s %s", name, q.String()))
	}
	if words == nil {
		return "anything"
	}
	return strings.Join(words, " ")
}
