package podops

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// checkpointsMode lets only the user of the agent read checkpoints, which have the memory of
// their containers.
const checkpointsMode = 0o700

// Checkpoint writes a checkpoint of a running container and returns the path of the archive,
// whose name is that of a kubelet. A timeout of 0 is the default of the runtime. The caller
// removes the archive. After an error there is none.
func (o *Operator) Checkpoint(ctx context.Context, pod *corev1.Pod, container string, timeout time.Duration) (string, error) {
	c, err := o.running(pod, container)
	if err != nil {
		return "", err
	}
	checkpointer, ok := o.cfg.Checkpointer()
	if !ok {
		return "", fmt.Errorf("the runtime cannot write checkpoints: %w", runtime.ErrUnsupported)
	}
	if err := os.MkdirAll(o.cfg.CheckpointsDir, checkpointsMode); err != nil {
		return "", fmt.Errorf("checkpoint: %w", err)
	}
	name := fmt.Sprintf("checkpoint-%s_%s-%s-%s.tar", pod.Name, pod.Namespace, c.Name, time.Now().Format(time.RFC3339))
	path := filepath.Join(o.cfg.CheckpointsDir, filepath.Base(name))
	_, statErr := os.Lstat(path) // one of this second has the same name
	if err := checkpointer.CheckpointContainer(ctx, c.ID, path, timeout); err != nil {
		if errors.Is(statErr, fs.ErrNotExist) {
			_ = os.Remove(path) // runtimes leave what they have written until the disk was full
		}
		return "", fmt.Errorf("checkpoint container %q of pod %s/%s: %w", c.Name, pod.Namespace, pod.Name, err)
	}
	return path, nil
}
