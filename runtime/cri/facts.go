package cri

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// sandboxFresh is how long the addresses of a ready sandbox are taken as known.
// They do not change while it lives; the bound is for runtimes that lose them.
const sandboxFresh = time.Minute

// facts remembers what cannot change any more, so that an inspection costs only
// the calls whose answers can be new.
type facts struct {
	mu   sync.Mutex // guards pods
	pods map[types.UID]podFacts
}

// podFacts is what is known of one pod. It is replaced, never changed.
type podFacts struct {
	sandboxes  []sandboxFact
	containers []runtime.Container // with all that their status told
}

type sandboxFact struct {
	runtime.Sandbox
	asked time.Time
}

func (f *facts) of(uid types.UID) podFacts {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.pods[uid]
}

func (f *facts) put(uid types.UID, k podFacts) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(k.sandboxes) == 0 && len(k.containers) == 0 {
		delete(f.pods, uid)
		return
	}
	if f.pods == nil {
		f.pods = make(map[types.UID]podFacts)
	}
	f.pods[uid] = k
}

// set remembers what an inspection found.
func (f *facts) set(p runtime.Pod) {
	old := f.of(p.UID)
	k := podFacts{containers: p.Containers}
	for _, s := range p.Sandboxes {
		asked := p.ObservedAt
		if was := old.sandbox(s.ID); was != nil && slices.Equal(was.IPs, s.IPs) && p.ObservedAt.Sub(was.asked) < sandboxFresh {
			asked = was.asked
		}
		k.sandboxes = append(k.sandboxes, sandboxFact{s, asked})
	}
	f.put(p.UID, k)
}

// addSandbox remembers the status of a sandbox that was just made.
func (f *facts) addSandbox(uid types.UID, s runtime.Sandbox, now time.Time) {
	k := f.of(uid)
	k.sandboxes = append([]sandboxFact{{s, now}}, k.sandboxes...)
	f.put(uid, k)
}

// forgetContainer makes the next inspection ask for that container's status.
func (f *facts) forgetContainer(uid types.UID, id string) {
	k := f.of(uid)
	k.containers = without(k.containers, func(c runtime.Container) bool { return c.ID == id })
	f.put(uid, k)
}

// keep forgets every pod that is not in a full listing.
func (f *facts) keep(listed map[types.UID]int) {
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
	fresh := now.Sub(was.asked) < sandboxFresh && (was.HostNetwork || len(was.IPs) > 0)
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
