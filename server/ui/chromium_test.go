package ui_test

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/internal/browsertest"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
	"github.com/sublet-dev/agent/server"
	"github.com/sublet-dev/agent/timeline"
)

var update = flag.Bool("update", false, "write the screenshots of docs")

// serve serves the page of a history and returns its URL.
func serve(t *testing.T, h *timeline.History) string {
	t.Helper()
	const addr = "127.0.0.1:0"
	srv, err := server.New(server.Config{Addr: addr, UI: newPage(t, h)})
	require.NoError(t, err)
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", addr)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, l) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-done) })
	return "http://" + l.Addr().String() + "/ui/"
}

// requireClean checks that nothing went wrong in the page, and that it has requested
// nothing but what its own server has.
func requireClean(t *testing.T, p *browsertest.Page, url string) {
	t.Helper()
	require.Empty(t, p.Problems())
	for _, request := range p.Requests() {
		require.True(t, strings.HasPrefix(request, url) || strings.HasPrefix(request, "data:"), request)
	}
}

// recorder keeps the time of the first event of each pod and reason.
type recorder struct {
	mu    sync.Mutex
	first map[string]time.Time
}

func (r *recorder) Record(e *corev1.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := e.InvolvedObject.Name + " " + e.Reason
	if _, ok := r.first[key]; !ok {
		r.first[key] = e.FirstTimestamp.Time
	}
}

func (r *recorder) at(t *testing.T, pod, reason string) time.Time {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ok := r.first[pod+" "+reason]
	require.True(t, ok, "no event %s of %s in %v", reason, pod, r.first)
	return at
}

// runAgent runs an agent on a simulated runtime until the test ends.
func runAgent(t *testing.T, h *timeline.History, memory *podsource.Memory, r *recorder) {
	t.Helper()
	a, err := agent.New(
		agent.WithSource("memory", memory), agent.WithNode(node.Config{DisableCgroups: true}), agent.WithRootDir(t.TempDir()), agent.WithSimulatedRuntime(),
		agent.WithRecorder(r), agent.WithHooks(agent.Hooks{
			PodManager: h.PodManager(), PodWorkers: h.PodWorkers(), PodSync: h.PodSync(), Status: h.Status(), Housekeeper: h.Housekeeper(), CRI: h.CRI(),
		}))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-done) })
}

func scriptedPod(name string, script ...string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Annotations: map[string]string{}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "registry.example/" + name + ":1"}}},
	}
	for _, s := range script {
		key, value, _ := strings.Cut(s, "=")
		pod.Annotations[simulated.ScriptPrefix+key] = value
	}
	return pod
}

// row is an expression for the row of a pod.
func row(name string) string {
	return fmt.Sprintf("[...document.querySelectorAll('#list li')].find(li => li.querySelector('.name').textContent === %q)", "default/"+name)
}

// bar is a bar or a mark of the waterfall: its times, and where they are drawn in ms since
// 1970.
type bar struct {
	Kind                 string
	Start, End           time.Time
	DrawnStart, DrawnEnd float64
}

const bars = `[...document.querySelectorAll('.waterfall .span[data-kind], .waterfall .mark')].map(s => {
	const w = s.closest('.waterfall'), from = +w.dataset.from, to = +w.dataset.to;
	const time = percent => from + parseFloat(percent) / 100 * (to - from), start = time(s.style.left);
	return {kind: s.dataset.kind, start: s.dataset.start, end: s.dataset.end || s.dataset.start, drawnStart: start, drawnEnd: start + time(s.style.width || '0%') - from};
})`

// A pod comes, crashes, backs off and goes, and the waterfall has each step at the time of
// its event.
func TestPage_PodLifeInChromium(t *testing.T) {
	h, memory, recorded := timeline.New(timeline.Config{}), podsource.NewMemory(), &recorder{first: map[string]time.Time{}}
	url := serve(t, h)
	p := browsertest.Open(t, url, browsertest.Options{})
	p.Wait("document.querySelector('#live').textContent === 'Live'")
	p.Wait("document.querySelector('#none').textContent.includes('no pods')")
	runAgent(t, h, memory, recorded)
	memory.Put(scriptedPod("crash", "sandbox-delay=300ms", "run-for=1s", "exit-code=3"), scriptedPod("steady", "start-delay=200ms", "stop-after=1s"))

	p.Wait(row("steady") + "?.dataset.health === 'healthy'")
	p.Wait(row("crash") + "?.querySelector('.state').textContent === 'CrashLoopBackOff'")
	p.Wait(row("crash") + " === document.querySelector('#list li')") // the unhealthy first
	p.Wait("document.title.startsWith('(1 failing) Node node-1')")
	p.Wait(row("crash") + ".textContent.includes('1 restart') && " + row("crash") + ".textContent.includes('back-off 10s')")

	p.Eval(row("crash")+".querySelector('button').click()", nil)
	p.Wait("document.querySelector('.waterfall [data-kind=back-off]')")
	requireAgrees(t, p, map[string]time.Time{
		"pull": recorded.at(t, "crash", "Pulling"), "create": recorded.at(t, "crash", "Created"), "run": recorded.at(t, "crash", "Started"),
		"back-off": recorded.at(t, "crash", "BackOff"),
	})
	p.Wait("document.querySelector('tr[data-kind=run]').textContent.includes('exit code 3')")

	p.Eval("location.hash = '#/'", nil)
	p.Eval(row("steady")+".querySelector('button').click()", nil)
	p.Wait("document.querySelector('.waterfall [data-kind=ready]')")
	memory.Delete("default", "steady")
	memory.Delete("default", "crash")
	p.Wait(row("crash") + "?.dataset.health === 'gone'")
	p.Wait(row("steady") + "?.dataset.health === 'gone'")
	p.Wait("document.querySelector('.waterfall [data-kind=gone]')")
	requireAgrees(t, p, map[string]time.Time{
		"create": recorded.at(t, "steady", "Created"), "run": recorded.at(t, "steady", "Started"), "kill": recorded.at(t, "steady", "Killing"),
	})
	requireClean(t, p, url)
}

// A request that fails, because the node is busy or an interface of the machine changes, does not leave the
// page without the pod until something happens to it.
func TestPage_RetriesInChromium(t *testing.T) {
	h, memory, recorded := timeline.New(timeline.Config{}), podsource.NewMemory(), &recorder{first: map[string]time.Time{}}
	p := browsertest.Open(t, serve(t, h), browsertest.Options{})
	runAgent(t, h, memory, recorded)
	memory.Put(scriptedPod("steady"))
	p.Wait(row("steady") + "?.dataset.health === 'healthy'")
	p.Eval(`{
		const real = window.fetch, failures = [() => Promise.reject(new TypeError('no network')), () => Promise.resolve(new Response('', {status: 503}))];
		window.shown = [];
		new MutationObserver(() => window.shown.push(document.querySelector('#detail').textContent)).observe(document.querySelector('#detail'), {childList: true});
		window.fetch = (url, options) => String(url).startsWith('pods/') && failures.length ? failures.shift()() : real(url, options);
	}`, nil)
	p.Eval(row("steady")+".querySelector('button').click()", nil)
	p.Wait("document.querySelector('.waterfall [data-kind=ready]')")
	p.Wait("window.shown[0].includes('The node does not respond.') && window.shown[1].includes('The node responded with status 503.')")
	require.Empty(t, p.Problems())
}

// requireAgrees compares the first bar of each kind with the time of its event. The event of
// a container that was created follows that; the others are at the start of what they tell.
func requireAgrees(t *testing.T, p *browsertest.Page, events map[string]time.Time) {
	t.Helper()
	var drawn []bar
	p.Eval("document.querySelector('.ranges [data-key=all]').click()", nil)
	p.Eval(bars, &drawn)
	for kind, at := range events {
		i := 0
		for i < len(drawn) && drawn[i].Kind != kind {
			i++
		}
		require.Less(t, i, len(drawn), "no %s in %v", kind, drawn)
		entry, position := drawn[i].Start, drawn[i].DrawnStart
		if kind == "create" {
			entry, position = drawn[i].End, drawn[i].DrawnEnd
		}
		require.WithinDuration(t, at, entry, 10*time.Second, kind) // the two are taken one after the other, on a machine that may be busy
		require.WithinDuration(t, entry, time.UnixMicro(int64(position*1000)), 50*time.Millisecond, "where %s is drawn", kind)
	}
}

// Nothing that a pod or a node brings becomes HTML or code.
func TestPage_HostileTextInChromium(t *testing.T) {
	h := timeline.New(timeline.Config{})
	const hostile = `"><img src=x onerror=window.hacked=1><script>window.hacked=2</script><svg onload=window.hacked=3>{{7*7}}javascript:alert(1)`
	pod := newPod(hostile)
	pod.Namespace, pod.Spec.Containers = hostile, []corev1.Container{{Name: hostile}}
	pod.Annotations = map[string]string{"kubernetes.io/config.source": hostile}
	h.PodManager().Rejected(pod, hostile, hostile)
	h.Status().Changed(pod, corev1.PodStatus{}, corev1.PodStatus{Phase: "Failed", Reason: hostile, Message: hostile, ContainerStatuses: []corev1.ContainerStatus{
		{Name: hostile, Image: hostile, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: hostile, Message: hostile}}},
	}})
	h.PodSync().BackOffStarted(pod, hostile, runtime.Failure{Reason: hostile, Message: hostile, Until: time.Now().Add(time.Minute)})
	h.OperationStarted(t.Context(), runtime.Operation{Type: runtime.OperationPullImage, Pod: pod, Image: hostile})
	h.Eviction().ConditionsChanged([]corev1.NodeCondition{{Type: hostile, Status: "True", Reason: hostile, Message: hostile}})
	h.Eviction().Evicting(eviction.Signal(hostile), []eviction.Candidate{{Pod: pod}}, runtime.Termination{Message: hostile})
	h.ImageGC().Collected(imagegc.Result{Removed: []imagegc.Decision{{Image: runtime.Image{Tags: []string{hostile}}, Reason: hostile}}}, nil)
	h.AddSample(timeline.Sample{At: time.Now(), MilliCPUs: 1000})

	url := serve(t, h)
	p := browsertest.Open(t, url, browsertest.Options{})
	p.Wait("document.querySelectorAll('#list li').length === 1")
	elements := func() (n int) {
		p.Eval("document.querySelectorAll('img, script:not(:last-of-type), svg[onload], iframe, object').length", &n)
		return n
	}
	p.Eval("document.querySelector('#list button').click()", nil)
	p.Wait("document.querySelector('.waterfall [data-kind=back-off]')")
	assert.Zero(t, elements())
	var text string
	p.Eval("document.querySelector('#detail').textContent", &text)
	assert.GreaterOrEqual(t, strings.Count(text, hostile), 8, "shown as it is")
	for _, view := range []string{"node", "reclaim"} {
		p.Eval("location.hash = '#/"+view+"'", nil)
		p.Wait("!document.querySelector('#view-" + view + "').hidden && document.querySelector('#view-" + view + "').textContent.includes('onerror')")
		assert.Zero(t, elements())
	}
	var hacked any
	p.Eval("window.hacked === undefined ? null : window.hacked", &hacked)
	assert.Nil(t, hacked)
	// A browser would block it even if the page made HTML of text.
	var blocked bool
	p.Eval("(() => { try { document.body.innerHTML = '<b>x</b>'; return false; } catch { return true; } })()", &blocked)
	assert.True(t, blocked)
	for _, problem := range p.Problems() { // that of the line above
		assert.Contains(t, problem, "TrustedHTML")
	}
}

// A thousand pods are a hundred rows, a change of one pod changes one row, and a search
// finds any of them.
func TestPage_ThousandPodsInChromium(t *testing.T) {
	h := timeline.New(timeline.Config{})
	for i := range 1000 {
		addRunning(h, fmt.Sprintf("pod-%03d", i))
	}
	url := serve(t, h)
	p := browsertest.Open(t, url, browsertest.Options{})
	p.Wait("document.querySelectorAll('#list li').length === 100")
	p.Wait("document.querySelector('#more').textContent === 'Show 100 more of 1000'")
	p.Eval(`window.changed = 0; new MutationObserver(all => { for (const m of all) for (const n of [...m.addedNodes]) if (n.nodeName === 'LI') window.changed++; })
		.observe(document.querySelector('#list'), {childList: true})`, nil)
	fail(h, "pod-777")
	p.Wait(row("pod-777") + " === document.querySelector('#list li')")
	var changed int
	p.Eval("window.changed", &changed)
	assert.Equal(t, 1, changed, "rows that were added or moved")

	p.Eval("document.querySelector('#more').click()", nil)
	p.Wait("document.querySelectorAll('#list li').length === 200")
	p.Eval("{ const s = document.querySelector('#search'); s.value = 'POD-99'; s.dispatchEvent(new Event('input')); }", nil)
	p.Wait("document.querySelectorAll('#list li').length === 10")
	p.Eval("document.querySelector('[data-filter=failing]').click()", nil)
	p.Wait("document.querySelector('#none').textContent.startsWith('No pod matches. 1000 are hidden')")
	p.Eval("{ const s = document.querySelector('#search'); s.value = ''; s.dispatchEvent(new Event('input')); }", nil)
	p.Wait("document.querySelectorAll('#list li').length === 1")

	// By keyboard: open the first pod, and go back to its row.
	p.Eval("document.querySelector('#list button').focus(); document.activeElement.click()", nil)
	p.Wait("document.querySelector('.waterfall')")
	p.Eval("document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape', bubbles: true}))", nil)
	p.Wait("document.querySelector('#detail').hidden && document.activeElement.classList.contains('row')")
	requireClean(t, p, url)
}

func addRunning(h *timeline.History, name string) {
	pod := newPod(name)
	pod.Spec.Containers = []corev1.Container{{Name: "main"}}
	h.PodManager().Admitted(pod)
	h.Status().Changed(pod, corev1.PodStatus{}, corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
		Name: "main", Image: "registry.example/app:1", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
	}}})
}

func fail(h *timeline.History, name string) {
	pod := newPod(name)
	pod.Spec.Containers = []corev1.Container{{Name: "main"}}
	h.Status().Changed(pod, corev1.PodStatus{}, corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
		Name: "main", Image: "registry.example/app:1", RestartCount: 4,
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 1m20s restarting failed container"}},
	}}})
}

// The page fits a phone, also in the dark: nothing is wider than the screen. With -update
// the screenshots of docs are written.
func TestPage_ScreenshotsInChromium(t *testing.T) {
	h := demo(t)
	url := serve(t, h)
	for name, o := range map[string]browsertest.Options{"ui-desktop-light.png": {Width: 1200, Height: 760}, "ui-phone-dark.png": {Width: 390, Height: 844, Mobile: true, Dark: true}} {
		p := browsertest.Open(t, url, o)
		p.Wait("document.querySelectorAll('#list li').length > 5")
		for _, view := range []string{"#/", "#/node", "#/reclaim", "#/pod/uid-checkout-7d9f"} {
			p.Eval(fmt.Sprintf("location.hash = %q", view), nil)
			p.Wait("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(true))))")
			var width int
			p.Eval("document.documentElement.scrollWidth", &width)
			assert.LessOrEqual(t, width, o.Width, "%s in %s", view, name)
		}
		p.Wait("document.querySelector('.waterfall [data-kind=back-off]')")
		png := p.Screenshot()
		assert.Less(t, len(png), 150<<10, name)
		if *update {
			require.NoError(t, os.WriteFile(filepath.Join("..", "..", "docs", name), png, 0o644)) //nolint:gosec // a picture
		}
		requireClean(t, p, url)
	}
}

// demo is a node with some of everything.
func demo(t *testing.T) *timeline.History {
	t.Helper()
	h := timeline.New(timeline.Config{})
	for _, name := range []string{"sensors", "telemetry", "updater", "web-5c8b", "zigbee2mqtt"} {
		addRunning(h, name)
	}
	evicted := newPod("batch-import")
	evicted.Spec.Containers = []corev1.Container{{Name: "main"}}
	h.PodManager().Admitted(evicted)
	ranked := []eviction.Candidate{{Pod: evicted, Usage: 612 << 20, Request: 128 << 20}, {Pod: newPod("telemetry"), Usage: 301 << 20, Request: 256 << 20}}
	h.Eviction().Evicting(eviction.MemoryAvailable, ranked, runtime.Termination{Message: "The node was low on resource: memory. Threshold quantity: 100Mi, available: 73Mi."})
	h.Eviction().Evicted(eviction.MemoryAvailable, evicted, time.Second, nil)
	h.Status().Changed(evicted, corev1.PodStatus{}, corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "The node was low on resource: memory."})
	h.ImageGC().Collected(imagegc.Result{Removed: []imagegc.Decision{{Image: runtime.Image{Tags: []string{"registry.example/app:0"}, Bytes: 80 << 20}, Reason: imagegc.ReasonDiskUsage}}}, nil)
	h.ContainerGC().Removed(containergc.Removal{Pod: &runtime.Pod{Namespace: "default", Name: "web"}, Container: &runtime.Container{Name: "main"}, Reason: containergc.ReasonReplaced}, 0, nil)
	h.ContainerGC().Collected(containergc.Result{}, nil)
	for i := range 360 {
		h.AddSample(timeline.Sample{
			At: time.Now().Add(time.Duration(i-360) * 10 * time.Second), MilliCPU: uint64(600 + i%90*4), MilliCPUs: 4000, Memory: uint64(900+i) << 20, MemoryCapacity: 2 << 30,
			NodeFS: 9 << 30, NodeFSCapacity: 32 << 30, Pids: 412, PidsMax: 32768, MemoryPressure: float64(i%40) / 10,
		})
	}
	pod := newPod("checkout-7d9f")
	pod.Spec.Containers = []corev1.Container{{Name: "main"}, {Name: "cache"}}
	h.PodManager().Admitted(pod)
	h.PodSync().VolumesMounted(pod, 2, 12*time.Millisecond, nil)
	operation(h, runtime.Operation{Type: runtime.OperationCreateSandbox, Pod: pod}, 60*time.Millisecond)
	operation(h, runtime.Operation{Type: runtime.OperationPullImage, Pod: pod, Image: "registry.example/checkout:2", ImageBytes: 48 << 20}, 300*time.Millisecond)
	for _, name := range []string{"cache", "main"} {
		operation(h, runtime.Operation{Type: runtime.OperationCreateContainer, Pod: pod, Container: name}, 40*time.Millisecond)
		operation(h, runtime.Operation{Type: runtime.OperationStartContainer, Pod: pod, Container: name, ContainerID: name}, 50*time.Millisecond)
	}
	<-time.After(400 * time.Millisecond)
	h.PodSync().ContainerExited(pod, runtime.Container{ID: "main", Name: "main", ExitCode: 1, Reason: "Error"})
	h.PodSync().BackOffStarted(pod, "main", runtime.Failure{Reason: "CrashLoopBackOff", Message: "back-off 10s restarting failed container", Until: time.Now().Add(10 * time.Second)})
	h.Status().Changed(pod, corev1.PodStatus{}, corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{
		{Name: "cache", ContainerID: "cri://cache", Image: "registry.example/checkout:2", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}},
		{Name: "main", Image: "registry.example/checkout:2", RestartCount: 1, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 10s restarting failed container"}}},
	}})
	addRunning(h, "old-web")
	h.PodWorkers().PhaseChanged(types.UID("uid-old-web"), podworkers.Terminated, podworkers.Finished, podworkers.Deleted)
	return h
}

func operation(h *timeline.History, op runtime.Operation, duration time.Duration) {
	ctx := h.OperationStarted(context.Background(), op)
	<-time.After(duration)
	h.OperationEnded(ctx, op, duration, nil)
}
