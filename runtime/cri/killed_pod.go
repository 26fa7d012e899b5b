package cri

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// beginKill remembers what is stopped of a pod: until endKill, nothing is added to it. The inspection after that needs
// lists, which tell that nothing runs.
func (f *statusCache) beginKill(uid types.UID, observed runtime.Pod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := f.pods[uid]
	k.started, k.needsLists, k.killing = nil, true, &observed
	f.put(uid, k)
}

func (f *statusCache) endKill(uid types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if k, ok := f.pods[uid]; ok {
		k.killing = nil
		f.put(uid, k)
	}
}

// inspectKilled inspects a pod that is being killed, without lists: the runtime is asked for the status of each
// sandbox and of what ran. ok is false if that is not enough.
func (c *Client) inspectKilled(ctx context.Context, uid types.UID) (p runtime.Pod, ok bool) {
	known := c.facts.of(uid)
	if known.killing == nil || len(known.killing.Sandboxes) == 0 {
		return runtime.Pod{}, false
	}
	p = *known.killing
	known.sandboxes = nil // their states are of before
	p.Sandboxes, p.Containers = slices.Clone(p.Sandboxes), slices.Clone(p.Containers)
	for i := range p.Sandboxes {
		p.Sandboxes[i].IPs = nil
	}
	for i := range p.Containers {
		if ct := &p.Containers[i]; ct.State == runtime.Running {
			ct.State = runtime.Unknown
		}
	}
	return c.completeAll(ctx, p, known)
}
