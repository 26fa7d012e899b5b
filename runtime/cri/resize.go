package cri

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
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
	linux := update(t.translator().Resources(spec))
	limit := linux.GetMemoryLimitInBytes()
	lowers := limit > 0 && t.isLowerLimit(a.ID, limit)
	if lowers && t.c.cfg.Node.CgroupV2 {
		if err := t.checkMemoryInUse(ctx, a.ID, limit); err != nil {
			return fmt.Errorf("update resources: %w", err)
		}
	}
	t.markChanged()
	_, err := do(ctx, t.c, "UpdateContainerResources", a.ID, t.c.cfg.Timeout, t.c.rs.UpdateContainerResources,
		&v1.UpdateContainerResourcesRequest{ContainerId: a.ID, Linux: linux})
	// Whatever came of it, what is known of the container is no longer so.
	t.c.facts.forgetContainer(t.pod.UID, a.ID)
	if err != nil && lowers && !t.c.cfg.Node.CgroupV2 && ctx.Err() == nil {
		// The kernel has rejected the limit. What the runtime says of that has figures that differ at each try.
		if inUse := t.checkMemoryInUse(ctx, a.ID, limit); inUse != nil {
			return fmt.Errorf("update resources: %w", inUse)
		}
	}
	return err
}

// checkMemoryInUse returns an error if a lower memory limit would take memory from a running
// container that it uses: on cgroup v2 the kernel reclaims that, and kills processes if it
// cannot. On v1 it rejects such a limit itself, after it has reclaimed what it can. This is a
// best effort, as in the kubelet: the container may use more a moment later, and the page cache
// counts as used.
func (t *applyRun) checkMemoryInUse(ctx context.Context, id string, limit int64) error {
	resp, err := do(ctx, t.c, "ContainerStats", id, t.c.cfg.Timeout, t.c.rs.ContainerStats, &v1.ContainerStatsRequest{ContainerId: id})
	if errors.Is(err, runtime.ErrUnsupported) {
		return nil
	}
	if err != nil {
		return err
	}
	memory := resp.GetStats().GetMemory()
	usage := max(memory.GetUsageBytes().GetValue(), memory.GetWorkingSetBytes().GetValue()) // older runtimes have only one of them
	if usage < uint64(limit) {
		return nil
	}
	// In the kubelet's words, which programs read, but without the usage: it becomes part of the status, which would change at each try.
	return fmt.Errorf("cannot set memory limit (%d) below current usage; it is tried again", limit)
}

// isLowerLimit reports whether a memory limit is lower than the observed one, as far as is known.
func (t *applyRun) isLowerLimit(id string, limit int64) bool {
	known := t.c.facts.of(t.pod.UID)
	for i := range known.containers {
		c := &known.containers[i]
		if c.ID == id && c.Resources != nil && c.Resources.MemoryLimit != nil {
			return limit < c.Resources.MemoryLimit.Value()
		}
	}
	return true
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

// UpdatePodResources implements runtime.PodResourcesUpdater. A runtime without the call, as many are, rejects nothing:
// it is asked at each resize, because those are rare and it may be upgraded.
func (c *Client) UpdatePodResources(ctx context.Context, pod *corev1.Pod, sandboxID string, r runtime.PodResources) error {
	if err := c.mayChangeSandbox(ctx, sandboxID); err != nil {
		return fmt.Errorf("update resources of pod: %w", err)
	}
	tr := (&applyRun{c: c, pod: pod}).translator()
	overhead := tr.Overhead()
	if overhead == nil {
		overhead = &v1.LinuxContainerResources{} // as from a kubelet
	}
	_, err := do(ctx, c, "UpdatePodSandboxResources", sandboxID, c.cfg.Timeout, c.rs.UpdatePodSandboxResources,
		&v1.UpdatePodSandboxResourcesRequest{PodSandboxId: sandboxID, Overhead: overhead, Resources: update(tr.ResizedPod(r))})
	if isUnimplemented(err) {
		return nil
	}
	return err
}

var _ runtime.PodResourcesUpdater = (*Client)(nil)

// isUnimplemented reports whether a runtime lacks a call. containerd 2.2 says so in words only.
func isUnimplemented(err error) bool {
	if errors.Is(err, runtime.ErrUnsupported) {
		return true
	}
	e, ok := errors.AsType[*Error](err)
	return ok && e.status.Code() == codes.Unknown && strings.Contains(e.status.Message(), "not implemented")
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
