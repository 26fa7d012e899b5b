package cri

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/runtime"
)

// RT-14: of a message file that is too long the end stays, in the same file.
func TestKeepTail(t *testing.T) {
	for name, tc := range map[string]struct{ content, want string }{
		"shorter": {"abc", "abc"}, "as long": {"abcd", "abcd"}, "longer": {"abcde", "bcde"}, "much longer": {"abcdefghijkl", "ijkl"}, "empty": {"", ""},
	} {
		path := filepath.Join(t.TempDir(), "0")
		require.NoError(t, os.WriteFile(path, []byte(tc.content), 0o600))
		before, err := os.Stat(path)
		require.NoError(t, err)
		require.NoError(t, keepTail(path, 4), name)
		after, err := os.Stat(path)
		require.NoError(t, err)
		assert.True(t, os.SameFile(before, after), name)
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.Equal(t, tc.want, string(got), name)
	}
	dir := t.TempDir()
	require.NoError(t, keepTail(filepath.Join(dir, "none"), 4))
	target := filepath.Join(dir, "target")
	require.NoError(t, os.WriteFile(target, []byte("abcdef"), 0o600))
	require.NoError(t, os.Symlink(target, filepath.Join(dir, "link")))
	require.Error(t, keepTail(filepath.Join(dir, "link"), 4))
	got, err := os.ReadFile(target)
	require.NoError(t, err)
	assert.Equal(t, "abcdef", string(got), "a link is not followed")
}

// RT-14: a container that is started again leaves no more of its former message
// files than is ever read.
func TestMessageFilesAreBounded(t *testing.T) {
	f := newFake()
	f.addImage(busybox)
	c := f.client(t, Config{})
	pod, dir := onePod("main"), t.TempDir()
	pod.Spec.Containers[0].TerminationMessagePath = "/dev/termination-log"
	messages := filepath.Join(dir, runtime.MessagesDir, "main")
	require.NoError(t, os.MkdirAll(messages, 0o700))
	for attempt, name := range []string{"0", "1", "2"} {
		actions := startAll(pod)
		actions[len(actions)-1].Attempt = uint32(attempt)
		require.Empty(t, c.Apply(t.Context(), pod, actions, runtime.RunOptions{Dir: dir}).Failures)
		require.NoError(t, os.WriteFile(filepath.Join(messages, name), bytes.Repeat([]byte("x"), 100_000), 0o600))
	}
	for name, want := range map[string]int64{"0": messageLimit, "1": messageLimit, "2": 100_000} {
		info, err := os.Stat(filepath.Join(messages, name))
		require.NoError(t, err)
		assert.Equal(t, want, info.Size(), name)
	}
}
