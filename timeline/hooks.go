package timeline

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/status"
	"github.com/sublet-dev/agent/syncloop"
)

// update changes the record of a pod.
func (h *History) update(pod *corev1.Pod, change func(r *podRecord, now time.Time)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(h.record(pod.UID, pod.Namespace, pod.Name), time.Now())
}

// moment returns an entry that takes no time.
func moment(kind Kind, now time.Time) Entry { return Entry{Kind: kind, Start: now, End: now} }

// span returns an entry that ends now.
func span(kind Kind, now time.Time, duration time.Duration, err error) Entry {
	return Entry{Kind: kind, Start: now.Add(-duration), End: now, Failed: err != nil, Message: errorText(err)}
}

// errorText returns the text of an error for others than the owner of the pod.
func errorText(err error) string {
	if err == nil {
		return ""
	}
	return logattr.Redact(err)
}

// PodManager returns the hooks of a syncloop.PodManager.
func (h *History) PodManager() syncloop.PodManagerHooks {
	begin := func(pod *corev1.Pod, kind Kind, reason, message string) {
		h.update(pod, func(r *podRecord, now time.Time) {
			r.Source, r.Static = clip(pod.Annotations[podspec.AnnotationSource], maxName), podspec.IsStatic(pod)
			r.terminating, r.DeletedAt = false, time.Time{}
			h.ranks.deletionChanged(r)
			if len(r.entries) == 0 {
				r.ReceivedAt = now
				if at, err := time.Parse(time.RFC3339Nano, pod.Annotations[podspec.AnnotationFirstSeen]); err == nil && at.Before(now) {
					r.ReceivedAt = at
				}
				h.add(r, moment(KindReceived, r.ReceivedAt))
			}
			e := moment(kind, now)
			e.Reason, e.Message, e.Failed = reason, message, kind == KindRejected
			h.add(r, e)
		})
	}
	return syncloop.PodManagerHooks{
		Admitted: func(pod *corev1.Pod) { begin(pod, KindAdmitted, "", "") },
		Adopted:  func(pod *corev1.Pod) { begin(pod, KindAdopted, "", "") },
		Rejected: func(pod *corev1.Pod, reason, message string) { begin(pod, KindRejected, reason, message) },
		Preempted: func(pod, preemptor *corev1.Pod, resource corev1.ResourceName) {
			h.update(pod, func(r *podRecord, now time.Time) {
				e := moment(KindEvicted, now)
				e.Reason, e.Message, e.Failed = podspec.ReasonPreempted, "For pod "+preemptor.Namespace+"/"+preemptor.Name+", which lacked "+string(resource), true
				h.add(r, e)
			})
		},
	}
}

// PodSync returns the hooks of a podsync.Syncer.
func (h *History) PodSync() podsync.Hooks {
	return podsync.Hooks{
		VolumesMounted: func(pod *corev1.Pod, volumes int, duration time.Duration, err error) {
			h.update(pod, func(r *podRecord, now time.Time) {
				e := span(KindVolumes, now, duration, err)
				e.Volumes = volumes
				h.add(r, e)
			})
		},
		ContainerExited: h.containerExited,
		BackOffStarted: func(pod *corev1.Pod, container string, f runtime.Failure) {
			h.update(pod, func(r *podRecord, now time.Time) {
				h.add(r, Entry{Kind: KindBackOff, Container: container, Start: now, End: f.Until, Reason: f.Reason, Message: public(f.Reason, f.Message)})
			})
		},
	}
}

// containerExited ends the run of a container. The runtime's times are those of the wall
// clock, and its message is the container's own.
func (h *History) containerExited(pod *corev1.Pod, c runtime.Container) {
	h.update(pod, func(r *podRecord, now time.Time) {
		end, code := c.Finished, c.ExitCode
		if end.IsZero() {
			end = now
		}
		for i := len(r.entries) - 1; i >= 0; i-- {
			if e := &r.entries[i]; e.Kind == KindRun && e.ContainerID == c.ID {
				e.end(end, code, c.Reason)
				return
			}
		}
		if c.Started.IsZero() {
			return // it never ran
		}
		e := Entry{Kind: KindRun, Container: c.Name, ContainerID: c.ID, Start: c.Started}
		e.end(end, code, c.Reason)
		h.add(r, e)
	})
}

func (e *Entry) end(at time.Time, code int32, reason string) {
	e.End, e.ExitCode, e.Reason, e.Failed = at, &code, clip(reason, maxReason), code != 0
}

// PodWorkers returns the hooks of podworkers.Workers.
func (h *History) PodWorkers() podworkers.Hooks {
	return podworkers.Hooks{
		PhaseChanged: h.phaseChanged,
		SyncEnded: func(ctx context.Context, call podworkers.SyncCall, duration time.Duration, _ runtime.SyncResult, err error) {
			if err == nil || errors.Is(ctx.Err(), context.Canceled) || call.Pod == nil {
				return // what a newer request cancels is no failure
			}
			h.update(call.Pod, func(r *podRecord, now time.Time) {
				h.add(r, span(KindSyncFailed, now, duration, err))
			})
		},
	}
}

// phaseChanged records the end of a pod. It does not make a record: a pod of which nothing
// else is known, such as an orphan, has no name here.
func (h *History) phaseChanged(uid types.UID, _, to podworkers.Phase, cause podworkers.Cause) {
	kind := map[podworkers.Phase]Kind{podworkers.Terminating: KindTerminating, podworkers.Terminated: KindTerminated, podworkers.Finished: KindFinished}[to]
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.pods[uid]
	if r == nil || kind == "" {
		return
	}
	h.touch(r)
	now := time.Now()
	e := moment(kind, now)
	if to == podworkers.Terminating {
		e.Reason = cause.String()
		if cause != podworkers.Completed { // its containers have ended already
			r.terminating = true
			r.setState(stateTerminating, "", Progressing, now)
		}
	}
	h.add(r, e)
	if to == podworkers.Finished && (cause == podworkers.Deleted || cause == podworkers.Removed || cause == podworkers.Orphaned) {
		h.markDeleted(r, now)
	}
}

// markDeleted marks a pod of which nothing is left. Its last state becomes part of its message.
func (h *History) markDeleted(r *podRecord, now time.Time) {
	if !r.DeletedAt.IsZero() {
		return
	}
	r.DeletedAt = now
	h.ranks.deletionChanged(r)
	h.add(r, moment(KindDeleted, now))
	r.setState("Gone", "", Deleted, now)
	for i := range r.entries { // what the runtime did not report any more
		if e := &r.entries[i]; e.End.IsZero() {
			e.End = now
		}
	}
}

func (r *podRecord) setState(state, message string, health Health, now time.Time) {
	if r.State != state {
		r.Since = now
	}
	r.State, r.Message, r.Health = clip(state, maxReason), clip(message, maxMessage), health
}

// storeOfStatuses is the name of the store that the agent gives to its housekeeper last.
const storeOfStatuses = "statuses"

// Housekeeper returns the hooks of a syncloop.Housekeeper. A pod whose status is cleaned up
// is gone.
func (h *History) Housekeeper() syncloop.HousekeeperHooks {
	return syncloop.HousekeeperHooks{
		StoreCleaned: func(store string, uid types.UID, err error) {
			h.mu.Lock()
			defer h.mu.Unlock()
			if r := h.pods[uid]; r != nil && store == storeOfStatuses && err == nil && r.DeletedAt.IsZero() {
				h.touch(r)
				h.markDeleted(r, time.Now())
			}
		},
	}
}

// Status returns the hooks of a status.Manager.
func (h *History) Status() status.Hooks {
	return status.Hooks{
		Changed: func(pod *corev1.Pod, _, current corev1.PodStatus) {
			h.update(pod, func(r *podRecord, now time.Time) {
				if r.DeletedAt.IsZero() {
					h.statusChanged(r, pod, &current, now)
				}
			})
		},
	}
}

func (h *History) statusChanged(r *podRecord, pod *corev1.Pod, st *corev1.PodStatus, now time.Time) {
	s := summarize(pod, st, r.terminating || pod.DeletionTimestamp != nil)
	r.setState(s.state, s.message, s.health, now)
	r.Ready, r.Containers, r.Restarts, r.containers = s.ready, len(pod.Spec.Containers), s.restarts, s.containers
	if r.ready == nil {
		r.ready = map[string]bool{}
	}
	for c := range podspec.ContainerStatuses(st) {
		h.containerStatus(r, c, now)
	}
}

// containerStatus records a change of readiness, and a run of which no other hook knows.
// Init containers are ready when they have completed, as their run shows.
func (h *History) containerStatus(r *podRecord, c *corev1.ContainerStatus, now time.Time) {
	if running := c.State.Running; running != nil {
		h.running(r, c.Name, containerID(c.ContainerID), c.Image, running.StartedAt.Time)
	}
	ready := c.Ready && c.State.Running != nil
	if ready == r.ready[c.Name] {
		return
	}
	r.ready[c.Name] = ready
	e := moment(KindReady, now)
	if !ready {
		if c.State.Running == nil {
			return // its exit says so
		}
		e.Kind = KindNotReady
	}
	e.Container = c.Name
	h.add(r, e)
}

// containerID removes the name of the runtime, which statuses have in front of ids.
func containerID(id string) string {
	for i := 0; i+3 <= len(id); i++ {
		if id[i:i+3] == "://" {
			return id[i+3:]
		}
	}
	return id
}

// running records the run of a container, unless it is recorded already.
func (h *History) running(r *podRecord, container, id, image string, start time.Time) {
	for i := len(r.entries) - 1; i >= 0; i-- {
		if e := &r.entries[i]; e.Kind == KindRun && e.ContainerID == id {
			return
		}
	}
	h.add(r, Entry{Kind: KindRun, Container: container, ContainerID: id, Image: image, Start: start})
}

// CRI returns the hooks of a cri.Client.
func (h *History) CRI() cri.Hooks {
	return cri.Hooks{OperationStarted: h.OperationStarted, OperationEnded: h.OperationEnded}
}

// entryKey is the context key of the id of an entry. Another observer may have put its own
// value into the context after it.
type entryKey struct {
	history   *History
	operation runtime.OperationType
}

// OperationStarted is the hook for cri.Hooks.OperationStarted. A runtime of another kind
// can call it before an operation that it makes in ctx.
func (h *History) OperationStarted(ctx context.Context, op runtime.Operation) context.Context {
	kind, ok := kindOf(op.Type)
	if !ok || op.Pod == nil || op.Pod.UID == "" {
		return ctx
	}
	var id uint64
	h.update(op.Pod, func(r *podRecord, now time.Time) {
		id = h.add(r, Entry{Kind: kind, Container: op.Container, ContainerID: op.ContainerID, Image: op.Image, Reason: reasonOf(op), Start: now})
	})
	return context.WithValue(ctx, entryKey{h, op.Type}, id)
}

// OperationEnded is the hook for cri.Hooks.OperationEnded. It takes the context that
// OperationStarted returned.
func (h *History) OperationEnded(ctx context.Context, op runtime.Operation, _ time.Duration, err error) {
	id, ok := ctx.Value(entryKey{h, op.Type}).(uint64)
	if !ok {
		return
	}
	h.update(op.Pod, func(r *podRecord, now time.Time) {
		for i := len(r.entries) - 1; i >= 0; i-- {
			if e := &r.entries[i]; e.ID == id {
				e.End, e.Failed, e.Message = now, err != nil, clip(errorText(err), maxMessage)
				e.ContainerID, e.Bytes = op.ContainerID, op.ImageBytes
				break
			}
		}
		if op.Type == runtime.OperationStartContainer && err == nil {
			h.running(r, op.Container, op.ContainerID, op.Image, now)
		}
	})
}

// kindOf returns the kind of entry of an operation.
func kindOf(t runtime.OperationType) (Kind, bool) {
	switch t {
	case runtime.OperationPullImage:
		return KindPull, true
	case runtime.OperationCreateSandbox:
		return KindSandbox, true
	case runtime.OperationStopSandbox:
		return KindStopSandbox, true
	case runtime.OperationCreateContainer:
		return KindCreate, true
	case runtime.OperationStartContainer:
		return KindStart, true
	case runtime.OperationKillContainer:
		return KindKill, true
	case runtime.OperationPostStartHook, runtime.OperationPreStopHook:
		return KindHook, true
	}
	return "", false
}

// reasonOf returns why an operation is made; of a hook, which one it is.
func reasonOf(op runtime.Operation) string {
	switch op.Type {
	case runtime.OperationPostStartHook:
		return "postStart"
	case runtime.OperationPreStopHook:
		return "preStop"
	default:
		return op.Reason
	}
}
