package cri

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri/internal/translate"
)

// startedFresh is how long after the start of a pod an inspection may do without lists.
const startedFresh = 2 * time.Second

// startedPod is a pod as the lists would have it right after its start: one Apply has made its first
// sandbox and the containers in it, and found nothing that had their names.
type startedPod struct {
	runtime.Pod

	at time.Time
}

// makesPod reports whether a plan makes the first sandbox of a pod, starts containers in it, and does
// nothing else.
func makesPod(plan []runtime.Action) bool {
	isOther := func(a runtime.Action) bool { return a.Type != runtime.StartContainer }
	return len(plan) > 0 && plan[0].Type == runtime.CreateSandbox && plan[0].Attempt == 0 && !slices.ContainsFunc(plan[1:], isOther)
}

// addContainer adds a container that was just made. Its state is left open, so that the runtime is asked for it.
func (s *startedPod) addContainer(id, sandboxID string, config *v1.ContainerConfig, bootID string) {
	s.Containers = append(s.Containers, translate.ObservedContainer(&v1.Container{
		Id: id, PodSandboxId: sandboxID, Metadata: config.GetMetadata(), Image: config.GetImage(),
		State: v1.ContainerState_CONTAINER_UNKNOWN, Labels: config.GetLabels(), Annotations: config.GetAnnotations(),
	}, bootID))
}

// needLists has the next inspection use lists: something of the pod has ended, or is about to change.
func (f *statusCache) needLists(uid types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if k, ok := f.pods[uid]; ok {
		k.started, k.needsLists = nil, true
		f.put(uid, k)
	}
}

// isRefuted reports whether an event tells otherwise.
func (s *startedPod) isRefuted(e *podEvent) bool {
	return e != nil && (e.sandbox.GetId() != s.Sandboxes[0].ID || e.sandbox.GetState() != v1.PodSandboxState_SANDBOX_READY)
}

// inspectStarted inspects a pod that was started a moment ago, without lists: what there can be of it is
// known, and the runtime is asked for the status of each container. ok is false if that is not enough.
func (c *Client) inspectStarted(ctx context.Context, uid types.UID) (p runtime.Pod, ok bool) {
	known := c.facts.of(uid)
	s := known.started
	if s == nil || time.Since(s.at) >= startedFresh || s.isRefuted(known.event) {
		return runtime.Pod{}, false
	}
	spared := 0 // calls, by the event if there are lists
	for i := range s.Containers {
		if known.runningStatus(&runtime.Container{ID: s.Containers[i].ID, State: runtime.Running}) != nil {
			spared++
		}
	}
	if spared >= 2 { // as many as the lists are
		return runtime.Pod{}, false
	}
	return c.completeAll(ctx, s.Pod, known)
}

// addStarted remembers how the lists would have a pod, unless it was changed or something of it has ended.
func (f *statusCache) addStarted(s *startedPod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := f.pods[s.UID]
	if !k.needsLists && len(k.sandboxes) == 1 && k.sandboxes[0].ID == s.Sandboxes[0].ID {
		k.started = s
		f.put(s.UID, k)
	}
}
