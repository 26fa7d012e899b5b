package probe

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/sleep"
	"github.com/sublet-dev/agent/runtime"
)

// fakeNode has pods, commands and ports in memory.
type fakeNode struct {
	mu       sync.Mutex
	pods     map[types.UID]runtime.Pod
	run      func(ctx context.Context, id string, cmd []string) (out string, code int, err error)
	ports    map[string]func(net.Conn)
	execs    []exec
	stall    time.Duration // until a command starts
	now      int           // commands that run
	max      int
	recorded []*corev1.Event
}

type exec struct {
	at  time.Time
	id  string
	cmd []string
}

func newNode() *fakeNode {
	return &fakeNode{pods: map[types.UID]runtime.Pod{}, ports: map[string]func(net.Conn){}}
}

func (n *fakeNode) Get(uid types.UID) (runtime.Pod, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p, ok := n.pods[uid]
	return p, ok
}

func (n *fakeNode) Exec(ctx context.Context, id string, cmd []string, timeout time.Duration, _ int) ([]byte, int, error) {
	n.mu.Lock()
	stall := n.stall
	n.mu.Unlock()
	if err := sleep.For(ctx, stall); err != nil {
		return nil, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	n.mu.Lock()
	n.execs = append(n.execs, exec{time.Now(), id, cmd})
	n.now++
	n.max = max(n.max, n.now)
	run := n.run
	n.mu.Unlock()
	defer n.with(func() { n.now-- })
	if run == nil {
		return nil, 0, nil
	}
	out, code, err := run(ctx, id, cmd)
	return []byte(out), code, err
}

func (n *fakeNode) dial(ctx context.Context, _, address string) (net.Conn, error) {
	n.mu.Lock()
	serve := n.ports[address]
	n.mu.Unlock()
	if serve == nil {
		return nil, fmt.Errorf("dial %s: connection refused", address)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	mine, theirs := net.Pipe()
	go serve(theirs)
	return mine, nil
}

func (n *fakeNode) Record(e *corev1.Event) { n.with(func() { n.recorded = append(n.recorded, e) }) }

func (n *fakeNode) with(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

// exit makes all commands exit with code.
func (n *fakeNode) exit(code int) {
	n.with(func() {
		n.run = func(context.Context, string, []string) (string, int, error) { return "out", code, nil }
	})
}

// set makes container "a" of the pod have that id and state, started now.
func (n *fakeNode) set(uid types.UID, id string, s runtime.ContainerState) {
	n.with(func() {
		p := n.pods[uid]
		p.UID = uid
		p.Sandboxes = []runtime.Sandbox{{ID: "s", State: runtime.SandboxReady, IPs: []string{"10.0.0.1"}}}
		p.Containers = []runtime.Container{{ID: id, Name: "a", SandboxID: "s", State: s, Started: time.Now()}}
		n.pods[uid] = p
	})
}

// runs returns the commands so far.
func (n *fakeNode) runs() []exec {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.execs)
}

// events returns the emitted events so far.
func (n *fakeNode) events() []*corev1.Event {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.recorded)
}

// ran returns the number of commands so far.
func (n *fakeNode) ran() int { return len(n.runs()) }

func command(word string) corev1.ProbeHandler {
	return corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{word}}}
}

// podOf returns a pod with one container "a" and the given probes.
func podOf(uid types.UID, startup, readiness, liveness *corev1.Probe) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: uid, Name: "web", Namespace: "default"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "a", StartupProbe: startup, ReadinessProbe: readiness, LivenessProbe: liveness,
		}}},
	}
}

// bench is a Manager that runs in a bubble.
type bench struct {
	*Manager
	n *fakeNode
	t *testing.T
}

// inBubble runs f and the Run of a Manager in a bubble, and checks that both return.
func inBubble(t *testing.T, f func(*bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := newNode()
		m, err := New(Config{PodCache: n, Execer: n, Dial: n.dial, Recorder: n})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- m.Run(ctx) }()
		synctest.Wait()
		f(&bench{m, n, t})
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// after waits for d, and until all goroutines are blocked.
func (b *bench) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// changes drains, and returns the changes in a short form.
func (b *bench) changes() []string {
	var cs []string
	for _, c := range b.Drain() {
		result := map[runtime.ProbeResult]string{runtime.ProbeSuccess: "passed", runtime.ProbeFailure: "failed"}[c.Result]
		cs = append(cs, fmt.Sprint(c.Type, " ", c.ContainerID, " ", result))
	}
	return cs
}
