package cri

import (
	"context"
	"fmt"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
)

// updateResources brings a running container's resources to its spec's.
func (t *applyRun) updateResources(ctx context.Context, a runtime.Action) error {
	spec := t.spec(a.Container)
	if spec == nil {
		return fmt.Errorf("container %q is not in the pod's spec: %w", a.Container, runtime.ErrInvalid)
	}
	if err := t.c.mayChangeContainer(ctx, a.ID); err != nil {
		return fmt.Errorf("update resources: %w", err)
	}
	t.markChanged()
	_, err := do(ctx, t.c, "UpdateContainerResources", a.ID, t.c.cfg.Timeout, t.c.rs.UpdateContainerResources,
		&v1.UpdateContainerResourcesRequest{ContainerId: a.ID, Linux: update(t.translator().Resources(spec))})
	// Whatever came of it, what is known of the container is no longer so.
	t.c.facts.forgetContainer(t.pod.UID, a.ID)
	return err
}

// UpdateCpuset implements runtime.CpusetUpdater.
func (c *Client) UpdateCpuset(ctx context.Context, containerID string, set runtime.Cpuset) error {
	if err := c.mayChangeContainer(ctx, containerID); err != nil {
		return fmt.Errorf("update cpuset: %w", err)
	}
	_, err := do(ctx, c, "UpdateContainerResources", containerID, c.cfg.Timeout, c.rs.UpdateContainerResources,
		&v1.UpdateContainerResourcesRequest{ContainerId: containerID, Linux: &v1.LinuxContainerResources{CpusetCpus: set.CPUs, CpusetMems: set.MemoryNodes}})
	return err
}

// update turns the resources of a new container into a change: there zero is no
// limit, here it is no change.
func update(r *v1.LinuxContainerResources) *v1.LinuxContainerResources {
	if r.CpuPeriod > 0 && r.CpuQuota == 0 {
		r.CpuQuota = -1
	}
	if r.MemoryLimitInBytes == 0 {
		r.MemoryLimitInBytes = -1
	}
	return r
}
