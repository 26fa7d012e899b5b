package podlogs

import (
	"fmt"

	"github.com/sublet-dev/agent/internal/logpath"
	"github.com/sublet-dev/agent/runtime"
)

// Find returns the container of an observed pod whose log is that of the container with
// this name in the spec: its newest attempt or, for previous, the one before. It returns
// an error that wraps runtime.ErrNotFound if there is none.
func Find(pod *runtime.Pod, container string, previous bool) (*runtime.Container, error) {
	for i := range pod.Containers {
		c := &pod.Containers[i]
		if c.Name != container {
			continue
		}
		if !previous {
			return c, nil
		}
		previous = false
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
