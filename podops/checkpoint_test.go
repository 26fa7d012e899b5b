package podops_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podops"
	"github.com/sublet-dev/agent/runtime"
)

// checkpoints records requests.
type checkpoints struct {
	requests []string
	err      error
}

func (c *checkpoints) CheckpointContainer(_ context.Context, id, path string, timeout time.Duration) error {
	c.requests = append(c.requests, fmt.Sprint(id, " ", filepath.Base(path), " ", timeout))
	return errors.Join(c.err, os.WriteFile(path, []byte("memory"), 0o600))
}

// The archive has the name that a kubelet gives it, in a directory that only the user of the
// agent can enter.
func TestOperator_Checkpoint(t *testing.T) {
	w, without := newWorld(t)
	_, err := without.Checkpoint(t.Context(), w.pods[0], "app", 0)
	require.ErrorIs(t, err, runtime.ErrUnsupported)

	dir, c := filepath.Join(t.TempDir(), "checkpoints"), &checkpoints{}
	o, err := podops.New(podops.Config{
		Pods: func() []*corev1.Pod { return w.pods }, PodCache: w, Runtime: w, Workers: w, Logs: w, CheckpointsDir: dir,
		Checkpointer: func() (runtime.ContainerCheckpointer, bool) { return c, true },
	})
	require.NoError(t, err)
	path, err := o.Checkpoint(t.Context(), w.pods[0], "app", 3*time.Second)
	require.NoError(t, err)
	assert.Equal(t, dir, filepath.Dir(path))
	assert.Regexp(t, `^checkpoint-web_ns-app-\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d.*\.tar$`, filepath.Base(path))
	assert.Equal(t, []string{"c2 " + filepath.Base(path) + " 3s"}, c.requests)
	info, err := os.Stat(dir)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	require.NoError(t, os.Remove(path))

	_, err = o.Checkpoint(t.Context(), w.pods[0], "init", 0)
	require.ErrorIs(t, err, podops.ErrNotRunning)
	_, err = o.Checkpoint(t.Context(), w.pods[0], "none", 0)
	require.ErrorIs(t, err, runtime.ErrNotFound)
	assert.Len(t, c.requests, 1)
	c.err = errors.New("criu is missing")
	_, err = o.Checkpoint(t.Context(), w.pods[0], "app", 0)
	require.EqualError(t, err, `checkpoint container "app" of pod ns/web: criu is missing`)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left, "part of an archive is of no use")
	require.NoError(t, os.RemoveAll(dir))
	require.NoError(t, os.WriteFile(dir, nil, 0o600))
	_, err = o.Checkpoint(t.Context(), w.pods[0], "app", 0)
	require.ErrorContains(t, err, "not a directory")
}
