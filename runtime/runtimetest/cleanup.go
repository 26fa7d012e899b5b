package runtimetest

import (
	"context"
	"os"
	"slices"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// remember records the id of a pod that is to be removed at the end.
func (c *CaseT) remember(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.made = append(c.made, id)
}

// cleanup removes all pods of the case, in whatever state they are: those that the runtime lists, among them what is
// left of calls that failed, and those that it says it has run. A runtime that loses labels lists none of them.
func (c *CaseT) cleanup(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, caseTimeout)
	defer cancel()
	list, err := c.rs.ListPodSandbox(ctx, &v1.ListPodSandboxRequest{Filter: &v1.PodSandboxFilter{
		LabelSelector: map[string]string{runLabel: c.s.id},
	}})
	if err != nil {
		c.Errorf("cleanup: list pods: %v", err)
	}
	var listed []string
	for _, p := range list.GetItems() {
		if p.GetMetadata().GetNamespace() == c.ns {
			listed = append(listed, p.GetId())
			c.discard(ctx, p.GetId(), p.GetMetadata().GetName())
		}
	}
	c.mu.Lock()
	made := slices.Clone(c.made)
	c.mu.Unlock()
	for _, id := range made {
		if slices.Contains(listed, id) {
			continue
		}
		// Most have been removed by the case.
		if _, err := c.rs.PodSandboxStatus(ctx, &v1.PodSandboxStatusRequest{PodSandboxId: id}); err == nil {
			c.discard(ctx, id, id)
		}
	}
	_ = os.RemoveAll(c.logDir("")) // best effort: the logs may be root's
}

// discard stops and removes a pod.
func (c *CaseT) discard(ctx context.Context, id, name string) {
	if _, err := c.rs.StopPodSandbox(ctx, &v1.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
		c.Errorf("cleanup: stop pod %s: %v", name, err)
	}
	if _, err := c.rs.RemovePodSandbox(ctx, &v1.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
		c.Errorf("cleanup: remove pod %s: %v", name, err)
	}
}
