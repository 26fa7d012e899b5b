package cri

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri/internal/translate"
)

// sandboxFresh is how long the addresses of a ready sandbox are taken as known.
// They do not change while it lives; the bound is for runtimes that lose them.
const sandboxFresh = time.Minute

// statusCache remembers what cannot change any more, so that an inspection costs only
// the calls whose answers can be new.
type statusCache struct {
	mu    sync.Mutex // guards the rest
	pods  map[types.UID]podFacts
	stamp uint64 // of the latest change that was not seen but made
}

// podFacts is what is known of one pod. It is replaced, never changed.
type podFacts struct {
	sandboxes  []sandboxFact
	containers []runtime.Container // with the results of their status calls
	// stamp changes with everything that this Client changed itself: what an
	// inspection saw that began before is not taken for a fact.
	stamp      uint64
	changedAt  time.Time    // with stamp; zero: never
	observedAt time.Time    // when the latest recorded inspection began; zero: there is none
	event      *podEvent    // the latest start that is not known to be older than that; nil: none
	started    *startedPod  // by the latest Apply, if nothing was inspected or changed since; nil: it was not
	needsLists bool         // something has happened since the latest inspection that was not a start
	killing    *runtime.Pod // what a Kill under way stops; nil: there is none
	removed    bool         // this Client has removed all of it a moment ago
}

// podEvent is what came with the event of the start of a container or a sandbox.
type podEvent struct {
	received   time.Time
	happened   time.Time // by the runtime, without a monotonic reading; zero: not known
	sandbox    *v1.PodSandboxStatus
	containers []*v1.ContainerStatus
}

// after reports whether it happened after t. The time of the receipt keeps a clock that was
// set back from making it new for a long time.
func (e *podEvent) after(t time.Time) bool { return e.received.After(t) && e.happened.After(t) }

type sandboxFact struct {
	runtime.Sandbox
	asked time.Time
}

func (f *statusCache) of(uid types.UID) podFacts {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.pods[uid]
}

// recordList remembers what an inspection found. before is what was known when it
// began.
func (f *statusCache) recordList(p runtime.Pod, before podFacts) {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.pods[p.UID]
	if old.stamp != before.stamp {
		return
	}
	k := podFacts{containers: p.Containers, stamp: old.stamp, changedAt: old.changedAt, observedAt: p.ObservedAt, killing: old.killing}
	if old.event != nil && old.event.after(p.ObservedAt) {
		k.event = old.event
	}
	for _, s := range p.Sandboxes {
		asked := p.ObservedAt
		if was := old.sandbox(s.ID); was != nil && slices.Equal(was.IPs, s.IPs) && p.ObservedAt.Sub(was.asked) < sandboxFresh {
			asked = was.asked
		}
		k.sandboxes = append(k.sandboxes, sandboxFact{s, asked})
	}
	if len(k.sandboxes) == 0 && len(k.containers) == 0 && k.event == nil {
		delete(f.pods, p.UID)
		return
	}
	f.put(p.UID, k)
}

// put replaces what is known. f.mu is held.
func (f *statusCache) put(uid types.UID, k podFacts) {
	if f.pods == nil {
		f.pods = make(map[types.UID]podFacts)
	}
	f.pods[uid] = k
}

// change replaces what is known after something was changed.
func (f *statusCache) change(uid types.UID, by func(podFacts) podFacts) {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := by(f.pods[uid])
	f.stamp++
	k.stamp, k.changedAt, k.started, k.removed = f.stamp, time.Now(), nil, false
	f.put(uid, k)
}

// addEvent remembers the statuses that came with an event, which spares the next inspection
// the calls for them. One that is older than an inspection may have no other after it.
func (f *statusCache) addEvent(uid types.UID, e podEvent) {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := f.pods[uid]
	if !e.happened.IsZero() && !e.happened.After(k.observedAt) {
		return
	}
	k.event = &e
	f.put(uid, k)
}

// addSandbox remembers the status of a sandbox that was just made.
func (f *statusCache) addSandbox(uid types.UID, s runtime.Sandbox, now time.Time) {
	f.change(uid, func(k podFacts) podFacts {
		k.sandboxes = append([]sandboxFact{{s, now}}, k.sandboxes...)
		return k
	})
}

// forgetContainer makes the next inspection ask for that container's status.
func (f *statusCache) forgetContainer(uid types.UID, id string) {
	f.change(uid, func(k podFacts) podFacts {
		k.containers = without(k.containers, func(c runtime.Container) bool { return c.ID == id })
		return k
	})
}

// keep forgets every pod that is not in a full listing.
func (f *statusCache) keep(listed map[types.UID]int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for uid := range f.pods {
		if _, ok := listed[uid]; !ok {
			delete(f.pods, uid)
		}
	}
}

func (k podFacts) sandbox(id string) *sandboxFact {
	for i := range k.sandboxes {
		if k.sandboxes[i].ID == id {
			return &k.sandboxes[i]
		}
	}
	return nil
}

// fillSandbox completes a listed sandbox and reports whether that was possible.
// A sandbox that is not ready stays so and its addresses no longer matter.
func (k podFacts) fillSandbox(s *runtime.Sandbox, now time.Time) bool {
	was := k.sandbox(s.ID)
	if was == nil {
		return false
	}
	fresh := now.Sub(was.asked) < sandboxFresh && hasAddress(&was.Sandbox)
	if s.State == runtime.SandboxReady && (!fresh || was.State != runtime.SandboxReady) {
		return false
	}
	s.IPs, s.HostNetwork = was.IPs, was.HostNetwork
	return true
}

// fillContainer completes a listed container and reports whether that was
// possible: its state is one that was inspected before, and what a status tells
// in that state does not change but by calls of this Client.
func (k podFacts) fillContainer(c *runtime.Container) bool {
	for i := range k.containers {
		was := &k.containers[i]
		if was.ID != c.ID {
			continue
		}
		settled := was.State == runtime.Running && !was.Started.IsZero() ||
			was.State == runtime.Exited && !was.Finished.IsZero()
		if was.State != c.State || !settled {
			return false
		}
		*c = *was
		return true
	}
	return false
}

// hasAddress reports whether nothing is missing for the addresses of the pod.
func hasAddress(s *runtime.Sandbox) bool { return s.HostNetwork || len(s.IPs) > 0 }

// readyStatus returns the status of a sandbox that was just made, if the event of its start
// had all of it; nil else.
func (k podFacts) readyStatus(id string) *v1.PodSandboxStatus {
	if k.event == nil || k.event.sandbox.GetId() != id {
		return nil
	}
	s := translate.AddSandboxStatus(runtime.Sandbox{State: runtime.SandboxReady}, k.event.sandbox)
	if s.State != runtime.SandboxReady || !hasAddress(&s) {
		return nil
	}
	return k.event.sandbox
}

// runningStatus returns the status of a container that is listed as running, if an event had
// it and this Client has changed nothing of the pod since; nil else. Other states are asked
// for: why a container ended may be known only after the event of its end.
func (k podFacts) runningStatus(c *runtime.Container) *v1.ContainerStatus {
	if k.event == nil || c.State != runtime.Running || !k.event.after(k.changedAt) {
		return nil
	}
	for _, st := range k.event.containers {
		if st.GetId() == c.ID && st.GetState() == v1.ContainerState_CONTAINER_RUNNING && st.GetStartedAt() > 0 {
			return st
		}
	}
	return nil
}
