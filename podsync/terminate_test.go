package podsync_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/internal/logtest"
	"github.com/sublet-dev/agent/runtime"
)

// errNotRemoved is the error of a runtime that has answered that it cannot remove something.
var errNotRemoved = fmt.Errorf("%w: netns is not closed", runtime.ErrNotRemoved)

// PW-9: a dead container or sandbox that the runtime cannot remove keeps neither its pod nor
// the next static pod of its name. It is reported once and left to garbage collection.
func TestFinish_LeavesWhatCannotBeRemoved(t *testing.T) {
	var log bytes.Buffer
	n := &fakeNode{fail: map[string]error{"remove containers": errNotRemoved, "unmount": errors.New("busy")}}
	cfg := newConfig(t, n)
	cfg.Logger = logtest.NewLogger(&log, slog.LevelWarn)
	s, deleted := newSyncer(t, cfg), runtime.Termination{Deleted: true}
	require.NoError(t, os.MkdirAll(filepath.Join(cfg.PodsDir, "uid-1"), 0o700))
	require.NoError(t, os.MkdirAll(filepath.Join(cfg.LogsDir, "default_web_uid-1", "main"), 0o755))
	for range 2 {
		require.ErrorContains(t, s.Finish(t.Context(), newTestPod(), deleted), "busy", "the rest must be released")
	}
	delete(n.fail, "unmount")
	require.NoError(t, s.Finish(t.Context(), newTestPod(), deleted))
	assert.NoDirExists(t, filepath.Join(cfg.PodsDir, "uid-1"))
	assert.NoDirExists(t, filepath.Join(cfg.LogsDir, "default_web_uid-1"))
	assert.True(t, n.reports[len(n.reports)-1].Finished)

	assert.Equal(t, `level=WARN msg="exited containers left to garbage collection" pod=default/web podUID=uid-1 err="remove containers: left to garbage collection: netns is not closed"`+"\n", log.String())
	left := 0
	for _, e := range n.events {
		if e.Reason == "FailedKillPod" && strings.HasPrefix(e.Message, "remove containers: left to garbage collection: ") {
			left++
		}
	}
	assert.Equal(t, 1, left, "events")
}

// PW-11: so it is with an orphan.
func TestTerminate_LeavesWhatCannotBeRemoved(t *testing.T) {
	n := &fakeNode{fail: map[string]error{"remove containers": errNotRemoved}}
	orphan := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "old", Namespace: "default", UID: "uid-9"}}
	require.NoError(t, newSyncer(t, newConfig(t, n)).Terminate(t.Context(), orphan, runtime.Pod{UID: "uid-9"}, runtime.Termination{}))
	assert.Contains(t, n.trace, "remove cgroup")
	require.Len(t, n.events, 1)
}

// PW-8: all other failures are retried: the runtime may only be late.
func TestFinish_RetriesRemoval(t *testing.T) {
	for _, err := range []error{runtime.ErrUnavailable, errors.New("boom")} {
		n := &fakeNode{fail: map[string]error{"remove containers": err}}
		require.ErrorIs(t, newSyncer(t, newConfig(t, n)).Finish(t.Context(), newTestPod(), runtime.Termination{Deleted: true}), err)
		assert.NotContains(t, n.trace, "status")
	}
}
