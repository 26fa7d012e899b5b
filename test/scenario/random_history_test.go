package scenario

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/runtime/runtimetest"
)

// TestRandomPods plays random histories of random pods, half of them with random faults between agent and runtime, and
// checks what has happened against rules that follow from the API and not from the code: in which order containers start
// and stop, when they are restarted, how they are stopped, when pods end, and that each status says what is so.
// RT-4, RT-5, RT-6, RT-8, RT-9, PW-4, PS-5, ST-2, ST-3, ST-5, AG-4
//
// SUBLET_RANDOM_SEEDS=1000 go test -run TestRandomPods ./test/scenario plays more seeds, and with -run 'TestRandomPods/17$'
// repeats one of them.
func TestRandomPods(t *testing.T) {
	for seed := range seeds(t, "SUBLET_RANDOM_SEEDS", 8) {
		seed += firstSeed
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			var faults *agenttest.FaultPlan
			if seed%2 == 1 {
				faults = agenttest.DrawFaults(uint64(seed), seed/2, 20*time.Minute)
			}
			synctest.Test(t, func(t *testing.T) { playRandom(t, uint64(seed), faults) })
		})
	}
}

// firstSeed begins a row of seeds that finds, among others, back-offs that do not grow, sidecars that are not waited for or
// stopped too early, and missing hooks.
const firstSeed = 8

// history plays a random history of random pods.
type history struct {
	*agenttest.Harness
	t       *testing.T
	g       *podGenerator
	record  *record
	faults  *agenttest.FaultPlan
	desired map[string]*corev1.Pod
	away    []away
	reboots []time.Duration
	ctx     context.Context

	faultsEnd time.Duration
}

// away is a time without an agent; to is 0 while it lasts.
type away struct{ from, to time.Duration }

func playRandom(t *testing.T, seed uint64, plan *agenttest.FaultPlan) {
	r := newRecord()
	h := &history{t: t, record: r, faults: plan, g: &podGenerator{Rand: rand.New(rand.NewPCG(seed, 50))}, desired: map[string]*corev1.Pod{}}
	ctx, cancel := context.WithCancel(context.Background())
	h.ctx = ctx
	r.killed = func() bool { return h.Killed() }
	h.Harness = agenttest.New(t, agenttest.Config{
		Images: randomImages(), NotStatic: true, Faults: plan, Executor: r.observe,
		Options: []agent.Option{agent.WithStatusSink(r)},
	})
	defer func() {
		if t.Failed() {
			if plan != nil {
				r.did("%s", plan)
			}
			t.Logf("seed %d\n%s", seed, r)
		}
	}()
	h.start()
	h.put()
	for range 3 + h.g.IntN(10) {
		h.sleep(h.pause())
		h.act()
	}
	if h.Agent() == nil {
		h.start()
	}
	if plan != nil {
		h.record.did("faults end")
		h.faultsEnd = h.record.now()
		h.EndFaults()
		if plan.Strikes(runtimetest.Hang, "GetContainerEvents") { // an open stream stays silent, and exits are found by relists
			h.Down()
			h.Up()
		}
		h.sleep(10 * time.Minute)
	}
	h.sleep(20 * time.Minute)
	h.settled("at rest")
	still := h.still()
	h.restart()
	h.unchanged(still)
	h.settled("after a restart of the agent")
	for _, name := range h.names() {
		h.mark(name, time.Duration(1+h.g.IntN(30))*time.Second)
	}
	h.sleep(5 * time.Minute)
	h.checkRules()
	assert.Equal(t, agenttest.Empty, h.Left())
	cancel()
	h.Stop()
	h.ShutDown()
}

// pause returns the time between two actions: anything from milliseconds to minutes.
func (h *history) pause() time.Duration {
	d := oneOf(h.g, 10*time.Millisecond, time.Second, 10*time.Second, time.Minute, 10*time.Minute, 20*time.Minute)
	return 7*time.Microsecond + time.Duration(h.g.Int64N(int64(d)))
}

// sleep lets time pass, in which the API server removes the pods whose end was reported.
func (h *history) sleep(d time.Duration) {
	end := time.Now().Add(d)
	for {
		synctest.Wait()
		for name, pod := range h.desired {
			h.record.mu.Lock()
			deleted := h.record.life(pod.UID, name).deleted > 0 && pod.DeletionTimestamp != nil
			h.record.mu.Unlock()
			if deleted {
				delete(h.desired, name)
				h.Memory.Delete("default", name)
			}
		}
		left := time.Until(end)
		if left <= 0 {
			return
		}
		time.Sleep(min(left, time.Second))
	}
}

func (h *history) start() {
	h.record.did("agent starts")
	if n := len(h.away); n > 0 {
		h.away[n-1].to = h.record.now()
	}
	h.Start()
}

func (h *history) stop() {
	h.away = append(h.away, away{from: h.record.now()})
	if h.g.chance(50) {
		h.record.did("agent stops")
		h.Stop()
	} else {
		h.record.did("agent is killed")
		h.Kill()
	}
}

// reboot restarts the machine.
func (h *history) reboot() {
	if h.Agent() != nil {
		h.stop()
	}
	h.record.did("reboot")
	h.reboots = append(h.reboots, h.record.now())
	for uid := range h.record.pods {
		h.record.stopped(uid, "")
	}
	h.ShutDown()
	h.record.mu.Lock()
	for _, c := range h.record.runs {
		if c.end >= h.away[len(h.away)-1].from { // how it ended cannot be known, so it is reported as 137 ContainerStatusUnknown
			c.lost, c.code, c.oom = true, 137, false
		}
	}
	h.record.mu.Unlock()
	h.Boot()
	h.start()
}

// stopOutside stops a container of the pod, or with "" its sandbox, without the agent.
func (h *history) stopOutside(pod *corev1.Pod, container string) {
	h.record.did("stop %s of %s from outside", cmp.Or(container, "the sandbox"), pod.UID)
	h.record.stopped(pod.UID, container)
	h.StopContainer(h.Trace.Label(pod.UID, pod.Name), container) // another pod of the name may be ending
}

// someone returns the name of a pod, or "".
func (h *history) someone() string {
	if len(h.desired) == 0 {
		return ""
	}
	return oneOf(h.g, h.names()...)
}

func (h *history) put() {
	name := fmt.Sprint("p", h.g.IntN(3))
	if h.desired[name] != nil {
		return
	}
	h.putPod(h.g.pod(name))
}

func (h *history) putPod(pod *corev1.Pod) { h.set(pod, "put "+describe(pod)) }

// set makes the pod desired.
func (h *history) set(pod *corev1.Pod, text string) {
	r := h.record
	r.did("%s", text)
	r.mu.Lock()
	l := r.life(pod.UID, pod.Name)
	l.specs = append(l.specs, timedPod{r.now(), pod})
	r.mu.Unlock()
	h.desired[pod.Name] = pod
	h.Memory.Put(pod)
}

// update changes a pod.
func (h *history) update(name string, change func(pod *corev1.Pod) string) {
	pod := h.desired[name].DeepCopy()
	text := change(pod)
	if text == "" {
		return
	}
	pod.Generation++
	h.set(pod, fmt.Sprintf("update %s: %s", pod.UID, text))
}

func (h *history) mark(name string, grace time.Duration) {
	h.update(name, func(pod *corev1.Pod) string {
		if g := pod.DeletionGracePeriodSeconds; g != nil && *g <= int64(grace/time.Second) {
			return ""
		}
		h.request(pod.UID, "", grace, "deletion")
		pod.DeletionTimestamp = new(metav1.NewTime(time.Now().Add(grace)))
		pod.DeletionGracePeriodSeconds = new(int64(grace / time.Second))
		return fmt.Sprint("delete within ", grace)
	})
}

func (h *history) request(uid types.UID, container string, grace time.Duration, why string) {
	r := h.record
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.pods[uid]
	l.ends = append(l.ends, timedEnd{r.now(), container, grace, why})
}

func (h *history) remove(name string) {
	pod := h.desired[name]
	grace := *pod.Spec.TerminationGracePeriodSeconds
	if g := pod.DeletionGracePeriodSeconds; g != nil {
		grace = *g
	}
	h.request(pod.UID, "", time.Duration(grace)*time.Second, "removal")
	h.record.did("remove %s", pod.UID)
	h.record.mu.Lock()
	h.record.pods[pod.UID].removed = h.record.now()
	h.record.mu.Unlock()
	delete(h.desired, name)
	h.Memory.Delete("default", name)
}

// restart stops the agent and starts another one.
func (h *history) restart() {
	h.stop()
	h.sleep(time.Duration(h.g.IntN(20)) * time.Second)
	h.start()
	h.sleep(3 * time.Minute)
}

// act does something at random.
func (h *history) act() {
	name := h.someone()
	if h.Agent() == nil && h.g.chance(60) {
		h.start()
		return
	}
	n := h.g.IntN(100)
	if name == "" || n < 15 {
		h.put()
		return
	}
	pod := h.desired[name]
	c := pod.Spec.Containers[h.g.IntN(len(pod.Spec.Containers))].Name
	if len(pod.Spec.InitContainers) > 0 && h.g.chance(40) {
		c = pod.Spec.InitContainers[h.g.IntN(len(pod.Spec.InitContainers))].Name
	}
	grace := time.Duration(oneOf(h.g, 1, 2, 5, 20)) * time.Second
	switch {
	case n < 40:
		h.update(name, h.mutation(c))
	case n < 48:
		h.mark(name, grace)
	case n < 52:
		h.remove(name)
	case n < 55:
		h.remove(name)
		h.putPod(h.g.pod(name))
	case n < 65:
		if h.Agent() == nil {
			return
		}
		h.stop()
		if h.g.chance(50) {
			h.sleep(time.Duration(h.g.IntN(3000)) * time.Millisecond)
			h.start()
		}
	case n < 80:
		h.stopOutside(pod, c)
	case n < 87:
		h.stopOutside(pod, "")
	case n < 89:
		h.reboot()
	case n < 91:
		if a := h.Agent(); a != nil {
			h.record.did("evict %s within %v", pod.UID, grace)
			h.request(pod.UID, "", grace, "eviction")
			go func() { _ = a.Evict(h.ctx, "default", name, grace) }()
		}
	case n < 94:
		if a := h.Agent(); a != nil {
			h.record.did("restart %s of %s", c, pod.UID)
			h.request(pod.UID, c, time.Duration(*pod.Spec.TerminationGracePeriodSeconds)*time.Second, "restart")
			go func() { _ = a.Restart(h.ctx, "default", name, c) }()
		}
	default:
		h.put()
	}
}

// mutation returns a change of a mutable field.
func (h *history) mutation(container string) func(pod *corev1.Pod) string {
	return func(pod *corev1.Pod) string {
		c := containerOf(pod, container)
		switch h.g.IntN(5) {
		case 0:
			pod.Labels = map[string]string{"n": fmt.Sprint(h.g.IntN(100))}
			return "label"
		case 1:
			c.Image = oneOf(h.g, "app:1", "app:2", "app:3", "slow:1")
			return "image of " + container + " " + c.Image
		case 2:
			d := int64(h.g.IntN(2000) + 1)
			if old := pod.Spec.ActiveDeadlineSeconds; old != nil && *old <= d {
				return ""
			}
			pod.Spec.ActiveDeadlineSeconds = &d
			return fmt.Sprint("deadline ", d)
		case 3:
			q := resource.MustParse(fmt.Sprintf("%dMi", 5+h.g.IntN(50)))
			if container[0] == 'i' {
				return ""
			}
			c.Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: q}
			return "memory of " + container + " " + q.String()
		default:
			name := fmt.Sprint("e", len(pod.Spec.EphemeralContainers))
			pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers, corev1.EphemeralContainer{
				EphemeralContainerCommon: corev1.EphemeralContainerCommon{
					Name: name, Image: "app:1", ImagePullPolicy: corev1.PullIfNotPresent, TerminationMessagePath: "/dev/termination-log",
					TerminationMessagePolicy: corev1.TerminationMessageReadFile,
				},
			})
			return "ephemeral container " + name
		}
	}
}

// containerOf returns a container of the spec that is not ephemeral, or nil.
func containerOf(pod *corev1.Pod, name string) *corev1.Container {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

func (h *history) names() []string { return slices.Sorted(maps.Keys(h.desired)) }
