package status_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/status"
)

func newFileSink(t *testing.T, dir string) *status.FileSink {
	t.Helper()
	s, err := status.NewFileSink(dir)
	require.NoError(t, err)
	return s
}

// fill makes a directory that cannot be replaced or removed like a file.
func fill(t *testing.T, dir string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "in the way"), 0o700))
}

// ST-9: failed writes and removals are errors and leave nothing half done.
func TestFileSink_ErrorsNameTheOperation(t *testing.T) {
	p := pod("main:c")
	for name, path := range map[string]string{"its own file": "ns_p_uid-1.json", "the file beside it": ".ns_p_uid-1.json.tmp"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			fill(t, filepath.Join(dir, path))
			s := newFileSink(t, dir)
			require.ErrorContains(t, s.SetStatus(t.Context(), p, corev1.PodStatus{}), "write status of pod uid-1")
			require.ErrorContains(t, s.DeleteStatus(t.Context(), p), "remove status of pod uid-1")
			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			assert.Len(t, left, 1, "what was written is removed again")

			require.NoError(t, os.RemoveAll(filepath.Join(dir, path)))
			require.NoError(t, s.SetStatus(t.Context(), p, corev1.PodStatus{}), "it is not taken as written")
			require.FileExists(t, filepath.Join(dir, "ns_p_uid-1.json"))
		})
	}
	file := filepath.Join(t.TempDir(), "no directory")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	s := newFileSink(t, file)
	require.ErrorContains(t, s.SetStatus(t.Context(), p, corev1.PodStatus{}), "write status of pod uid-1")
	_, err := s.Load()
	require.ErrorContains(t, err, "load statuses")
}

// An empty directory in the place of the file beside it is removed.
func TestFileSink_ReplacesWhatIsLeft(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, ".ns_p_uid-1.json.tmp"), 0o700))
	require.NoError(t, newFileSink(t, dir).SetStatus(t.Context(), pod("main:c"), corev1.PodStatus{}))
}

// A file is written when it changes, and not otherwise.
func TestFileSink_WritesOnceWhatIsTheSame(t *testing.T) {
	dir, p := t.TempDir(), pod("main:c")
	s := newFileSink(t, dir)
	write := func(s *status.FileSink, phase corev1.PodPhase) os.FileInfo {
		require.NoError(t, s.SetStatus(t.Context(), p, corev1.PodStatus{Phase: phase}))
		info, err := os.Stat(filepath.Join(dir, "ns_p_uid-1.json"))
		require.NoError(t, err)
		return info
	}
	first := write(s, corev1.PodRunning)
	assert.True(t, os.SameFile(first, write(s, corev1.PodRunning)))
	changed := write(s, corev1.PodFailed)
	assert.False(t, os.SameFile(first, changed))

	reopened := newFileSink(t, dir)
	_, err := reopened.Load()
	require.NoError(t, err)
	assert.True(t, os.SameFile(changed, write(reopened, corev1.PodFailed)), "what was loaded is known")
	require.NoError(t, reopened.DeleteStatus(t.Context(), p))
	write(reopened, corev1.PodFailed) // what was removed is not
}

func TestFileSink_NeedsAName(t *testing.T) {
	s := newFileSink(t, filepath.Join(t.TempDir(), "statuses"))
	for name, edit := range map[string]func(*corev1.Pod){
		"no UID":         func(p *corev1.Pod) { p.UID = "" },
		"no name":        func(p *corev1.Pod) { p.Name = "" },
		"no namespace":   func(p *corev1.Pod) { p.Namespace = "" },
		"hidden":         func(p *corev1.Pod) { p.Namespace = ".ns" },
		"another folder": func(p *corev1.Pod) { p.UID = "../uid" },
		"too long":       func(p *corev1.Pod) { p.UID = types.UID(strings.Repeat("u", 255)) },
		"a bit too long": func(p *corev1.Pod) { p.UID = types.UID(strings.Repeat("u", 255-len(".")-len("_.json.tmp"))) },
	} {
		t.Run(name, func(t *testing.T) {
			p := pod("main:c")
			edit(p)
			require.ErrorContains(t, s.SetStatus(t.Context(), p, corev1.PodStatus{}), "status file: ")
		})
	}
	p := pod("main:c")
	p.UID = types.UID(strings.Repeat("u", 254-len(".")-len("_.json.tmp")))
	require.NoError(t, s.SetStatus(t.Context(), p, corev1.PodStatus{}), "the longest there is room for")
}

// What was written of a pod that is as large as a manifest can be is read again.
func TestFileSink_LargePod(t *testing.T) {
	s, p := newFileSink(t, t.TempDir()), pod("main:c")
	p.Spec.Containers[0].Args = []string{strings.Repeat("x", podspec.DefaultMaxBytes)}
	require.NoError(t, s.SetStatus(t.Context(), p, corev1.PodStatus{Phase: corev1.PodFailed}))
	pods, err := s.Load()
	require.NoError(t, err)
	require.Len(t, pods, 1)
	assert.Equal(t, corev1.PodFailed, pods[0].Status.Phase)
	assert.Equal(t, p.Spec.Containers[0].Args, pods[0].Spec.Containers[0].Args)
}

// Files up to 64 MiB are read, and hidden ones are skipped.
func TestFileSink_Bounds(t *testing.T) {
	dir := t.TempDir()
	s := newFileSink(t, dir)
	pods, err := s.Load()
	require.NoError(t, err, "an empty folder")
	require.Empty(t, pods)
	text := func(uid string, size int) string {
		const made = `{"metadata":{"namespace":"ns","name":"p","uid":%q}}`
		pod := fmt.Sprintf(made, uid)
		return pod + strings.Repeat(" ", size-len(pod))
	}
	for name, data := range map[string]string{
		"ns_p_most.json": text("most", 4<<20), "ns_p_more.json": text("more", 100), ".ns_p_hidden.json": text("hidden", 100),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600))
	}
	require.NoError(t, os.Truncate(filepath.Join(dir, "ns_p_more.json"), 64<<20+1))
	pods, err = s.Load()
	require.ErrorContains(t, err, `"ns_p_more.json": file exceeds`)
	assert.NotContains(t, err.Error(), "hidden")
	require.Len(t, pods, 1)
	assert.Equal(t, types.UID("most"), pods[0].UID)
}
