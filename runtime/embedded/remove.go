package embedded

import (
	"context"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// RemoveContainer implements the CRI. A running container is killed; one that does not
// exist is removed.
func (r *Runtime) RemoveContainer(ctx context.Context, req *v1.RemoveContainerRequest) (*v1.RemoveContainerResponse, error) {
	r.mu.Lock()
	c, ok, err := lookupIfAny(r.containers, "container", req.GetContainerId())
	r.mu.Unlock()
	if !ok {
		return &v1.RemoveContainerResponse{}, err
	}
	if err := r.removeContainer(ctx, c); err != nil {
		return nil, statusError("remove container "+c.ID, err)
	}
	return &v1.RemoveContainerResponse{}, nil
}

// removeContainer removes c. While another call does, it waits for that: it may fail.
func (r *Runtime) removeContainer(ctx context.Context, c *container) error {
	r.mu.Lock()
	for c.removal != nil {
		other := c.removal
		r.mu.Unlock()
		if err := wait(ctx, other); err != nil {
			return err
		}
		r.mu.Lock()
	}
	if r.containers[c.ID] != c { // it is removed, or is being created
		r.mu.Unlock()
		return nil
	}
	ended, alive := make(chan struct{}), c.alive()
	c.removal = ended
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		c.removal = nil
		close(ended)
	}()
	if alive {
		if err := r.stop(ctx, c, 0, true); err != nil {
			return err
		}
	}
	r.remove(&c.Container)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget(c)
	r.emit(c.sandbox, c.ID, v1.ContainerEventType_CONTAINER_DELETED_EVENT)
	return nil
}
