package scenario

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/embedded"
)

// record is what truly happened: what containers did, as seen from inside the runtime, what the test did, and the
// statuses that were sent. Times count from the start.
type record struct {
	start  time.Time
	killed func() bool // the agent is being killed: what it sends does not count

	mu    sync.Mutex // guards the rest
	lines []string
	runs  []*run // by start
	pods  map[types.UID]*life
}

// run is one run of a container.
type run struct {
	uid            types.UID
	name, image    string
	attempt        int
	sandbox        string
	start, end     time.Duration
	ended          bool
	code           int32
	oom            bool
	outside        bool // the test, and not the agent, has stopped it
	lost           bool // with the machine
	terms, kills   []time.Duration
	preStop, hooks []hook // hooks: postStart
}

// hook is one run of a hook.
type hook struct {
	begin, end time.Duration
	ended      bool
	code       int32
}

// life is a pod, by its UID.
type life struct {
	uid      types.UID
	name     string
	specs    []timedPod    // as desired
	ends     []timedEnd    // requests to end it
	removed  time.Duration // from its source; 0: it is there
	deleted  time.Duration // the agent has reported its deletion; 0: it has not
	statuses []timedStatus
}

type timedPod struct {
	at  time.Duration
	pod *corev1.Pod
}

// timedEnd is a request to end a pod or one of its containers.
type timedEnd struct {
	at        time.Duration
	container string // "": all
	grace     time.Duration
	why       string
}

type timedStatus struct {
	at time.Duration
	st corev1.PodStatus
}

func newRecord() *record { return &record{start: time.Now(), pods: map[types.UID]*life{}} }

func (r *record) now() time.Duration { return time.Since(r.start) }

// note adds a line. r.mu is held.
func (r *record) note(format string, args ...any) {
	r.lines = append(r.lines, fmt.Sprintf("%-12s ", r.now())+fmt.Sprintf(format, args...))
}

// did records an action of the test.
func (r *record) did(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note("> "+format, args...)
}

// String returns the readable history.
func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.lines, "\n")
}

func (r *record) life(uid types.UID, name string) *life {
	l := r.pods[uid]
	if l == nil {
		l = &life{uid: uid, name: name}
		r.pods[uid] = l
	}
	return l
}

// spec returns the pod as it was desired at a time.
func (l *life) spec(at time.Duration) *corev1.Pod {
	pod := l.specs[0].pod
	for _, s := range l.specs {
		if s.at <= at {
			pod = s.pod
		}
	}
	return pod
}

// runsOf returns the runs of a container of a pod, or of all its containers.
func (r *record) runsOf(uid types.UID, name string) (all []*run) {
	for _, c := range r.runs {
		if c.uid == uid && (name == "" || c.name == name) {
			all = append(all, c)
		}
	}
	return all
}

// SetStatus implements status.Sink.
func (r *record) SetStatus(_ context.Context, pod *corev1.Pod, st corev1.PodStatus) error {
	if r.killed() {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.life(pod.UID, pod.Name)
	l.statuses = append(l.statuses, timedStatus{r.now(), st})
	var parts []string
	for _, list := range [][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses, st.EphemeralContainerStatuses} {
		for _, c := range list {
			parts = append(parts, agenttest.ContainerText(c))
		}
	}
	for _, c := range st.Conditions {
		if c.Status == corev1.ConditionTrue && c.Type != corev1.PodScheduled {
			parts = append(parts, string(c.Type))
		}
	}
	r.note("    = %s %s %s | %s", pod.UID, st.Phase, st.Reason, strings.Join(parts, " | "))
	return nil
}

// DeleteStatus implements status.Deleter.
func (r *record) DeleteStatus(_ context.Context, pod *corev1.Pod) error {
	if r.killed() {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.life(pod.UID, pod.Name).deleted = r.now()
	r.note("    = %s gone", pod.UID)
	return nil
}

// observe returns the executor, with all that containers do recorded.
func (r *record) observe(inner embedded.Executor) embedded.Executor {
	return &observedExecutor{inner, r}
}

type observedExecutor struct {
	embedded.Executor
	record *record
}

// Unwrap keeps the capabilities.
func (e *observedExecutor) Unwrap() any { return e.Executor }

func (e *observedExecutor) Start(ctx context.Context, c *embedded.Container, sio embedded.IO, exited func(embedded.Exit)) (embedded.Process, error) {
	r := e.record
	this := &run{
		uid: types.UID(c.Config.GetLabels()[runtime.LabelPodUID]), name: c.Config.GetMetadata().GetName(), attempt: int(c.Config.GetMetadata().GetAttempt()),
		sandbox: c.SandboxID, image: c.Config.GetImage().GetUserSpecifiedImage(),
	}
	begin := sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		this.start = r.now()
		r.runs = append(r.runs, this)
		r.note("%s starts (%s, sandbox %.4s)", this, this.image, this.sandbox)
	})
	p, err := e.Executor.Start(ctx, c, sio, func(x embedded.Exit) {
		begin()
		r.mu.Lock()
		this.end, this.ended, this.code, this.oom = r.now(), true, x.Code, x.Reason == embedded.ReasonOOMKilled
		r.note("%s exits with %d %s", this, x.Code, x.Reason)
		r.mu.Unlock()
		exited(x)
	})
	if err != nil {
		return nil, err
	}
	begin()
	return &observedProcess{p, r, this}, nil
}

func (c *run) String() string { return fmt.Sprintf("%s/%s#%d", c.uid, c.name, c.attempt) }

type observedProcess struct {
	embedded.Process
	record *record
	run    *run
}

// Unwrap keeps the capabilities.
func (p *observedProcess) Unwrap() any { return p.Process }

func (p *observedProcess) Signal(sig syscall.Signal) error {
	r := p.record
	r.mu.Lock()
	if !p.run.ended {
		if sig == syscall.SIGKILL {
			p.run.kills = append(p.run.kills, r.now())
		} else {
			p.run.terms = append(p.run.terms, r.now())
		}
		r.note("%s gets %v", p.run, sig)
	}
	r.mu.Unlock()
	return p.Process.Signal(sig)
}

func (p *observedProcess) Exec(ctx context.Context, e embedded.Exec) (int32, error) {
	text := strings.Join(e.Cmd, " ")
	r := p.record
	r.mu.Lock()
	list := &p.run.preStop
	if strings.Contains(text, "postStart") {
		list = &p.run.hooks
	}
	*list = append(*list, hook{begin: r.now()})
	i := len(*list) - 1
	r.note("%s runs %s", p.run, text)
	r.mu.Unlock()
	code, err := p.Process.Exec(ctx, e)
	r.mu.Lock()
	defer r.mu.Unlock()
	h := &(*list)[i]
	h.end, h.ended, h.code = r.now(), true, code
	if err != nil {
		h.code = 255
	}
	r.note("%s has run %s: %d %v", p.run, text, code, err)
	return code, err
}

// stopped records that the test stops the container of a pod, or with "" all of them.
func (r *record) stopped(uid types.UID, container string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.runsOf(uid, container) {
		c.outside = c.outside || !c.ended
	}
}

func (r *record) uids() (all []types.UID) {
	for uid := range r.pods {
		all = append(all, uid)
	}
	slices.Sort(all)
	return all
}
