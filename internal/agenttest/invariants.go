package agenttest

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
)

// firstStops records when each container was first stopped while it ran, by pod and name.
type firstStops struct {
	mu    sync.Mutex // guards after
	after map[string]time.Duration
}

// FirstStops returns the time after which each container was first stopped by an agent
// while it ran, by POD/CONTAINER.
func (h *Harness) FirstStops() map[string]time.Duration {
	h.stops.mu.Lock()
	defer h.stops.mu.Unlock()
	return maps.Clone(h.stops.after)
}

// recordStop records a call that stops a running container, whether it succeeds or not.
func (h *Harness) recordStop(req any) {
	var stops func(c *v1.Container) bool
	switch q := req.(type) {
	case *v1.StopContainerRequest:
		stops = func(c *v1.Container) bool { return c.GetId() == q.GetContainerId() }
	case *v1.RemoveContainerRequest:
		stops = func(c *v1.Container) bool { return c.GetId() == q.GetContainerId() }
	case *v1.StopPodSandboxRequest:
		stops = func(c *v1.Container) bool { return c.GetPodSandboxId() == q.GetPodSandboxId() }
	case *v1.RemovePodSandboxRequest:
		stops = func(c *v1.Container) bool { return c.GetPodSandboxId() == q.GetPodSandboxId() }
	default:
		return
	}
	h.stops.mu.Lock()
	defer h.stops.mu.Unlock()
	if h.stops.after == nil {
		h.stops.after = map[string]time.Duration{}
	}
	for _, c := range h.Running() {
		key := c.GetLabels()[runtime.LabelPodName] + "/" + c.GetMetadata().GetName()
		if _, stopped := h.stops.after[key]; stops(c) && !stopped {
			h.stops.after[key] = time.Since(h.Trace.start)
		}
	}
}

// checkStart fails the test if a container starts while another one of its name runs in
// the pod.
func (h *Harness) checkStart(rpc string, req any) {
	q, ok := req.(*v1.StartContainerRequest)
	if !ok {
		return
	}
	o := h.object(q.GetContainerId())
	name, _, _ := strings.Cut(o.name, "#")
	for _, c := range h.Running() {
		if c.GetLabels()[runtime.LabelPodUID] == string(o.uid) && c.GetMetadata().GetName() == name && c.GetId() != q.GetContainerId() && !h.config.Faults.Lies() {
			h.t.Errorf("%s %s of %s while another %s runs", rpc, o.name, o.pod, name)
		}
	}
}

// AssertNothingLeaked asserts that the runtime, the directories of the agent and the logs
// contain nothing of pods without a status, that a pod has at most one container of a name
// in each state, and at most one empty sandbox. Containers for which mayRepeat returns true
// restart indefinitely; the last exited one of these may not have been removed yet.
func (h *Harness) AssertNothingLeaked(mayRepeat func(pod, container string) bool) {
	h.t.Helper()
	owned := map[string]bool{}
	for uid := range h.Statuses() {
		owned[string(uid)] = true
	}
	h.assertNoLeakedSandbox(owned, h.assertNoLeakedContainer(owned, mayRepeat))
	for _, dir := range []string{"pods", "logs", "statuses"} {
		entries, err := os.ReadDir(filepath.Join(h.Dir, dir))
		if !os.IsNotExist(err) {
			require.NoError(h.t, err)
		}
		for _, e := range entries {
			uid := strings.TrimSuffix(e.Name()[strings.LastIndex(e.Name(), "_")+1:], ".json")
			assert.True(h.t, owned[uid], "%s/%s is left of a deleted pod", dir, e.Name())
		}
	}
}

// assertNoLeakedContainer returns the sandboxes with containers.
func (h *Harness) assertNoLeakedContainer(owned map[string]bool, mayRepeat func(pod, container string) bool) map[string]bool {
	h.t.Helper()
	list, err := h.inside.ListContainers(context.Background(), &v1.ListContainersRequest{})
	require.NoError(h.t, err)
	count, used := map[string]int{}, map[string]bool{}
	for _, c := range list.GetContainers() {
		uid, pod, name := c.GetLabels()[runtime.LabelPodUID], c.GetLabels()[runtime.LabelPodName], c.GetMetadata().GetName()
		used[c.GetPodSandboxId()] = true
		assert.True(h.t, owned[uid], "%s#%d of %s has no pod", name, c.GetMetadata().GetAttempt(), pod)
		key := fmt.Sprintf("%s %s %v", uid, name, c.GetState())
		count[key]++
		limit := 1
		if c.GetState() == v1.ContainerState_CONTAINER_EXITED && mayRepeat(pod, name) {
			limit = 2 // the older one is collected later
		}
		assert.LessOrEqual(h.t, count[key], limit, "%s of %s in state %v", name, pod, c.GetState())
	}
	return used
}

func (h *Harness) assertNoLeakedSandbox(owned, used map[string]bool) {
	h.t.Helper()
	list, err := h.inside.ListPodSandbox(context.Background(), &v1.ListPodSandboxRequest{})
	require.NoError(h.t, err)
	empty := map[string]int{}
	for _, s := range list.GetItems() {
		m := s.GetMetadata()
		assert.True(h.t, owned[m.GetUid()], "sandbox %s#%d has no pod", m.GetName(), m.GetAttempt())
		if s.GetState() == v1.PodSandboxState_SANDBOX_NOTREADY && !used[s.GetId()] {
			empty[m.GetUid()]++ // the newest one of a finished pod stays
			assert.LessOrEqual(h.t, empty[m.GetUid()], 1, "empty sandboxes of %s", m.GetName())
		}
	}
}
