package runtimetest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// listener records the events of a case's pods.
type listener struct {
	c      *CaseT
	mu     sync.Mutex                   // guards the rest
	events []*v1.ContainerEventResponse // those of the case, and those that name no pod
	err    error
}

// listen subscribes to events until the case ends.
func (c *CaseT) listen() *listener { return c.listenBy("probe") }

// listenBy is listen with a name for its pod. Some runtimes send headers only with the first
// event, so that the events of a pod show when the stream is open.
func (c *CaseT) listenBy(name string) *listener {
	s, err := c.rs.GetContainerEvents(c.ctx, &v1.GetEventsRequest{})
	c.implemented(err, "GetContainerEvents")
	l := &listener{c: c}
	go func() { // ends with the case's context
		for {
			e, err := s.Recv()
			l.mu.Lock()
			if err != nil {
				l.err = err
				l.mu.Unlock()
				return
			}
			if m := e.GetPodSandboxStatus().GetMetadata(); m == nil || m.GetNamespace() == c.ns {
				l.events = append(l.events, e)
			}
			l.mu.Unlock()
		}
	}()
	probe := c.pod(name)
	c.until(10*time.Second, "the first event of the stream", func() bool {
		if err := l.streamErr(); err != nil && !errors.Is(err, context.Canceled) {
			c.implemented(err, "GetContainerEvents")
		}
		if len(l.of(probe.id)) > 0 {
			return true
		}
		c.wait(100 * time.Millisecond)
		if probe.create("ping", sh(longRunTime), withAttempt(uint32(len(c.containers(&v1.ContainerFilter{PodSandboxId: probe.id}))))) == "" {
			return false
		}
		return l.any()
	})
	return l
}

func (l *listener) streamErr() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

func (l *listener) any() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.events, func(e *v1.ContainerEventResponse) bool { return e.GetPodSandboxStatus().GetMetadata() != nil })
}

// of returns the events about a container or sandbox.
func (l *listener) of(id string) []*v1.ContainerEventResponse {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []*v1.ContainerEventResponse
	for _, e := range l.events {
		if e.GetContainerId() == id {
			out = append(out, e)
		}
	}
	return out
}

// await waits for an event of a type, or ends the case.
func (l *listener) await(id string, kind v1.ContainerEventType) *v1.ContainerEventResponse {
	var found *v1.ContainerEventResponse
	l.c.received(5*time.Second, "the event "+kind.String(), func() bool {
		for _, e := range l.of(id) {
			if e.GetContainerEventType() == kind {
				found = e
			}
		}
		return found != nil
	})
	if found.GetPodSandboxStatus().GetMetadata() == nil {
		l.c.fatal("the event %s of %s has no pod_sandbox_status.metadata; kubelets ignore such an event", kind, id)
	}
	return found
}

const (
	evCreated = v1.ContainerEventType_CONTAINER_CREATED_EVENT
	evStarted = v1.ContainerEventType_CONTAINER_STARTED_EVENT
	evStopped = v1.ContainerEventType_CONTAINER_STOPPED_EVENT
	evDeleted = v1.ContainerEventType_CONTAINER_DELETED_EVENT
)

func eventCases() []testCase {
	return []testCase{
		{"container events arrive in order", "it would see a container die before it started", 0, func(c *CaseT) {
			l := c.listen()
			p := c.pod("p")
			id := p.start("c", "exit 0")
			c.exited(id)
			c.ok(c.remove(id), "remove container")
			l.await(id, evDeleted)
			var kinds []v1.ContainerEventType
			for _, e := range l.of(id) {
				kinds = append(kinds, e.GetContainerEventType())
			}
			want := []v1.ContainerEventType{evCreated, evStarted, evStopped, evDeleted}
			c.check(slices.Equal(want, kinds), "events are %v, want %v", kinds, want)
		}},
		{"a crash is reported at once", "it would notice a crash only by asking all pods again", 0, func(c *CaseT) {
			l := c.listen()
			p := c.pod("p")
			shortest := time.Hour
			for i := uint32(0); i < 3 && shortest >= c.allow(2*time.Second); i++ { // a busy machine is slow at times, a runtime always
				id := p.start("c", "sleep 0.3; exit 1", withAttempt(i))
				l.await(id, evStopped)
				shortest = min(shortest, time.Since(time.Unix(0, c.status(id).GetFinishedAt())))
			}
			c.check(shortest < c.allow(2*time.Second), "the exit was reported late, after %s", shortest)
		}},
		{"the status agrees with the event just received", "it would look before the change is visible, and not look again", 0, func(c *CaseT) {
			l := c.listen()
			p := c.pod("p")
			id := p.start("c", "sleep 0.2; exit 4")
			l.await(id, evStopped)
			st := c.status(id)
			same(c, exited, st.GetState(), "state right after the event")
			same(c, 4, st.GetExitCode(), "exit code right after the event")
		}},
		{"an event carries its pod", "it could not assign the event to a pod", 0, func(c *CaseT) {
			l := c.listen()
			before := time.Now()
			p := c.pod("p")
			id := p.start("c", longRunTime)
			e := l.await(id, evStarted)
			same(c, p.id, e.GetPodSandboxStatus().GetId(), "sandbox id")
			same(c, p.cfg.GetMetadata().GetUid(), e.GetPodSandboxStatus().GetMetadata().GetUid(), "uid")
			c.isNow(before, e.GetCreatedAt(), "created_at of the event")
			same(c, p.status().GetNetwork().GetIp(), e.GetPodSandboxStatus().GetNetwork().GetIp(), "address of the pod in the event")
		}},
		{"an event carries the statuses of the pod's containers", "it takes the pod's state from the event; it would start or kill the wrong containers", 0, func(c *CaseT) {
			l := c.listen()
			p := c.pod("p")
			other := p.start("other", longRunTime)
			id := p.up("c", "trap 'exit 4' TERM")
			e := l.await(id, evStarted)
			c.statuses(e.GetContainersStatuses(), "the event of a start", map[string]v1.ContainerState{other: running, id: running})
			c.ok(c.stop(id, stopGrace), "stop container")
			e = l.await(id, evStopped)
			c.statuses(e.GetContainersStatuses(), "the event of an exit", map[string]v1.ContainerState{other: running, id: exited})
			for _, st := range e.GetContainersStatuses() {
				if st.GetId() == id {
					same(c, 4, st.GetExitCode(), "exit code in the event of an exit")
				}
			}
		}},
		{"sandbox events arrive in order", "a sandbox that died would be noticed late", 0, func(c *CaseT) {
			l := c.listen()
			p := c.pod("p")
			l.await(p.id, evCreated)
			l.await(p.id, evStarted)
			c.ok(p.stop(), "stop pod")
			l.await(p.id, evStopped)
			c.ok(p.remove(), "remove pod")
			l.await(p.id, evDeleted)
		}},
		{"events of many pods all arrive", "pods that start together would be lost", 0, func(c *CaseT) {
			l := c.listen()
			var wg sync.WaitGroup
			started := make(chan string, 6)
			for _, n := range []string{"a", "b", "d", "e", "f", "g"} {
				wg.Go(func() { started <- c.pod(n).start("c", longRunTime) })
			}
			wg.Wait()
			close(started)
			n := 0
			for id := range started {
				l.await(id, evStarted)
				n++
			}
			same(c, 6, n, "containers")
		}},
		{"two readers receive the same events", "a second tool on the node would take the kubelet's events", 0, func(c *CaseT) {
			a, b := c.listenBy("probe"), c.listenBy("probe2")
			id := c.pod("p").start("c", longRunTime)
			a.await(id, evStarted)
			b.await(id, evStarted)
		}},
		{"a reader that does not read blocks no client", "a hung tool would stop all pods from starting", alone, func(c *CaseT) {
			p := c.pod("p")
			bound := c.allow(time.Minute)
			ctx, cancel := context.WithTimeout(c.ctx, bound+5*time.Second)
			defer cancel() // so that a runtime that is held up can go on
			_, err := c.rs.GetContainerEvents(ctx, &v1.GetEventsRequest{})
			c.implemented(err, "GetContainerEvents")
			duration := timed(func() {
				for i := range uint32(8) {
					c.ok(c.remove(p.start("c", longRunTime, withAttempt(i))), "remove container")
				}
			})
			c.check(duration < bound, "eight containers took %s beside a stream that is not read", duration)
		}},
	}
}
