package scenario

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/agenttest"
)

// transcript is a sink that records all statuses in a readable form.
type transcript struct {
	player *player
	start  time.Time

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

func newTranscript(p *player) *transcript {
	return &transcript{player: p, start: time.Now(), ids: map[string]string{}}
}

// close ends the transcript.
func (tr *transcript) close() {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.closed = true
}

func (tr *transcript) note(script string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.entries = append(tr.entries, transcriptEntry{at: tr.since(time.Now()), script: script})
}

func (tr *transcript) add(pod *corev1.Pod, st *corev1.PodStatus) {
	if tr.player.Killed() {
		return
	}
	label := tr.player.Trace.Label(pod.UID, pod.Name)
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if tr.closed {
		return
	}
	tr.entries = append(tr.entries, transcriptEntry{at: tr.since(time.Now()), uid: pod.UID, pod: label, status: st})
}

// SetStatus implements status.Sink.
func (tr *transcript) SetStatus(_ context.Context, pod *corev1.Pod, st corev1.PodStatus) error {
	tr.add(pod, &st)
	return nil
}

// DeleteStatus implements status.Deleter.
func (tr *transcript) DeleteStatus(_ context.Context, pod *corev1.Pod) error {
	tr.add(pod, nil)
	return nil
}

func (tr *transcript) since(t time.Time) time.Duration {
	return t.Sub(tr.start).Truncate(time.Millisecond)
}

// String returns, for each time, the commands of the script and then the last status of
// each pod.
func (tr *transcript) String() string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	var out strings.Builder
	previous := map[types.UID]*corev1.PodStatus{}
	for i := 0; i < len(tr.entries); {
		at := tr.entries[i].at
		last := map[string][]transcriptEntry{} // by pod: its last status and its deletion
		var lines string
		for ; i < len(tr.entries) && tr.entries[i].at == at; i++ {
			if p := tr.entries[i]; p.script != "" {
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
				lines += tr.changes(previous[p.uid], p)
				previous[p.uid] = p.status
			}
		}
		if lines != "" {
			fmt.Fprintf(&out, "%s\n%s", agenttest.ShortDuration(at), agenttest.Mask(lines))
		}
	}
	return out.String()
}

// changes returns the differences between a status and the previous one.
func (tr *transcript) changes(previous *corev1.PodStatus, p transcriptEntry) string {
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
		if was := condition(previous.Conditions, c.Type); was == nil || tr.condition(was) != tr.condition(c) {
			lines = append(lines, tr.condition(c))
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
			if j < 0 || tr.container(&lists[0][j]) != tr.container(c) {
				lines = append(lines, tr.container(c))
			}
		}
	}
	head := tr.head(now)
	if !first && len(lines) == 0 && head == tr.head(previous) {
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
func (tr *transcript) head(st *corev1.PodStatus) string {
	words := []string{cmp.Or(string(st.Phase), "no phase")}
	if st.Reason != "" || st.Message != "" {
		words = append(words, fmt.Sprintf("%s %q", st.Reason, st.Message))
	}
	if st.StartTime != nil {
		words = append(words, "since "+tr.time(*st.StartTime))
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

func (tr *transcript) condition(c *corev1.PodCondition) string {
	text := fmt.Sprintf("%s %s since %s", c.Type, c.Status, tr.time(c.LastTransitionTime))
	if c.Reason != "" {
		text += " " + c.Reason
	}
	if c.Message != "" {
		text += fmt.Sprintf(" %q", c.Message)
	}
	return text
}

func (tr *transcript) container(c *corev1.ContainerStatus) string {
	words := []string{c.Name + ": " + tr.state(&c.State)}
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
		words = append(words, tr.id(c.ContainerID))
	}
	if c.LastTerminationState != (corev1.ContainerState{}) {
		words = append(words, "last "+tr.state(&c.LastTerminationState))
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
func (tr *transcript) state(s *corev1.ContainerState) string {
	switch {
	case s.Waiting != nil && s.Running == nil && s.Terminated == nil:
		text := "waits, " + cmp.Or(s.Waiting.Reason, "without a reason")
		if s.Waiting.Message != "" {
			text += fmt.Sprintf(" %q", s.Waiting.Message)
		}
		return text
	case s.Running != nil && s.Waiting == nil && s.Terminated == nil:
		return "runs since " + tr.time(s.Running.StartedAt)
	case s.Terminated != nil && s.Waiting == nil && s.Running == nil:
		t := s.Terminated
		text := fmt.Sprintf("%s %d", cmp.Or(t.Reason, "without a reason"), t.ExitCode)
		if t.Signal != 0 {
			text += fmt.Sprintf(" signal %d", t.Signal)
		}
		if t.Message != "" {
			text += fmt.Sprintf(" %q", t.Message)
		}
		return text + fmt.Sprintf(" (%s, %s to %s)", tr.id(t.ContainerID), tr.time(t.StartedAt), tr.time(t.FinishedAt))
	}
	return fmt.Sprintf("%+v", *s)
}

// id returns the name and attempt of a container.
func (tr *transcript) id(id string) string {
	kind, id, ok := strings.Cut(id, "://")
	if !ok {
		return "no id"
	}
	if tr.ids[id] == "" {
		tr.ids[id] = tr.player.ContainerName(id)
	}
	return kind + "://" + tr.ids[id]
}

func (tr *transcript) time(t metav1.Time) string {
	if t.IsZero() {
		return "never"
	}
	return agenttest.ShortDuration(t.Sub(tr.start))
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
