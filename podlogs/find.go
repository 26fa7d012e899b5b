package podlogs

import (
	"cmp"
	"fmt"

	"github.com/sublet-dev/agent/internal/logpath"
	"github.com/sublet-dev/agent/runtime"
)

// Find returns the container of an observed pod whose log is that of the container with
// this name in the spec: its newest attempt or, for previous, the one before. An attempt that
// has not started has no log yet: the one before is returned instead, if there is one. It
// returns an error that wraps runtime.ErrNotFound if there is none.
func Find(pod *runtime.Pod, container string, previous bool) (*runtime.Container, error) {
	var created *runtime.Container // the newest attempt, if it has not started
	for i := range pod.Containers {
		switch c := &pod.Containers[i]; {
		case c.Name != container:
		case previous:
			previous = false
		case c.State == runtime.Created:
			created = cmp.Or(created, c)
		default:
			return c, nil
		}
	}
	if created != nil {
		return created, nil
	}
	if previous || pod.LatestContainer(container) != nil {
		// In the words of the kubelet, by which tools know that there is no such log.
		return nil, fmt.Errorf("previous terminated container %q in pod %q %w", container, pod.Name, runtime.ErrNotFound)
	}
	return nil, fmt.Errorf("container %q of pod %s/%s in the runtime: %w", container, pod.Namespace, pod.Name, runtime.ErrNotFound)
}

// Path returns the path of a container's log, for Log.Path.
func Path(pod *runtime.Pod, c *runtime.Container) (string, error) {
	path, ok := logpath.Container(pod, c)
	if !ok {
		return "", fmt.Errorf("log of container %q of pod %s/%s: %w: its labels are no names", c.Name, pod.Namespace, pod.Name, runtime.ErrInvalid)
	}
	return path, nil
}
