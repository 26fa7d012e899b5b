package owner_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/internal/owner"
)

// OW-1
func TestLoad_ReturnsWhatCreateKept(t *testing.T) {
	dir := t.TempDir()
	_, err := owner.Load(dir)
	require.ErrorIs(t, err, fs.ErrNotExist)
	id, err := owner.Create(dir)
	require.NoError(t, err)
	for range 2 {
		kept, err := owner.Load(dir)
		require.NoError(t, err)
		require.Equal(t, id, kept)
	}
	info, err := os.Stat(filepath.Join(dir, "owner-id"))
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o600), info.Mode())
	other, err := owner.Create(t.TempDir())
	require.NoError(t, err)
	assert.NotEqual(t, id, other)
}

// OW-1: a damaged file is never taken for an id, nor for none at all.
func TestLoad_RefusesADamagedFile(t *testing.T) {
	dir := t.TempDir()
	id, err := owner.Create(dir)
	require.NoError(t, err)
	for name, text := range map[string]string{
		"empty": "", "cut off": id[:20], "zeros": strings.Repeat("\x00", len(id)), "longer": id + id, "upper case": strings.ToUpper(id) + "\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "owner-id"), []byte(text), 0o600))
		_, err := owner.Load(dir)
		require.ErrorIs(t, err, owner.ErrNoID, name)
		assert.ErrorContains(t, err, "sublet.dev/owner", "says what to do")
	}
	// What the error says to do: by hand, with or without a newline.
	for _, end := range []string{"", "\n"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "owner-id"), []byte(id+end), 0o600))
		kept, err := owner.Load(dir)
		require.NoError(t, err)
		assert.Equal(t, id, kept)
	}
}

func TestLoad_FollowsNoLink(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	_, err := owner.Create(elsewhere)
	require.NoError(t, err)
	require.NoError(t, os.Symlink(filepath.Join(elsewhere, "owner-id"), filepath.Join(dir, "owner-id")))
	_, err = owner.Load(dir)
	require.Error(t, err)
	require.NotErrorIs(t, err, fs.ErrNotExist)
}

func TestCreate_TakesUpAfterACrash(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".owner-id.123"), []byte("half an i"), 0o600))
	id, err := owner.Create(dir)
	require.NoError(t, err)
	kept, err := owner.Load(dir)
	require.NoError(t, err)
	assert.Equal(t, id, kept)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, entries, 1)
}

func TestMark_LeavesAMarkThatIsThere(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer root.Close()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "a"), 0o755))
	assert.Empty(t, owner.MarkOf(root, "a"))
	require.NoError(t, owner.Mark(root, "a", "one"))
	require.NoError(t, owner.Mark(root, "a", "two"))
	assert.Equal(t, "one", owner.MarkOf(root, "a"))
	assert.ErrorIs(t, owner.Mark(root, "b", "one"), fs.ErrNotExist)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "c"), 0o755))
	require.NoError(t, os.Symlink("/etc/hostname", filepath.Join(dir, "c", ".sublet-owner")))
	assert.Empty(t, owner.MarkOf(root, "c"), "no link leads out")
}

func TestMark_CompletesAnEmptyMark(t *testing.T) {
	root, err := os.OpenRoot(t.TempDir())
	require.NoError(t, err)
	defer root.Close()
	require.NoError(t, root.WriteFile(owner.MarkName, nil, 0o600)) // and then the disk was full
	require.NoError(t, owner.Mark(root, ".", "one"))
	require.NoError(t, owner.Mark(root, ".", "two"))
	assert.Equal(t, "one", owner.MarkOf(root, "."))
}

// OW-1: however the process ends, what it has begun belongs to it.
func TestMakeMarked(t *testing.T) {
	const unfinished = ".sublet-owner_one_u1"
	for name, before := range map[string][]string{
		"first":                         nil,
		"killed without a mark":         {unfinished + "/"},
		"killed before the id is there": {unfinished + "/", unfinished + "/" + owner.MarkName},
	} {
		t.Run(name, func(t *testing.T) {
			defer syscall.Umask(syscall.Umask(0o077))
			dir := t.TempDir()
			root, err := os.OpenRoot(dir)
			require.NoError(t, err)
			defer root.Close()
			for _, path := range before {
				if name, isDir := strings.CutSuffix(path, "/"); isDir {
					require.NoError(t, root.Mkdir(name, 0o755))
				} else {
					require.NoError(t, root.WriteFile(path, nil, 0o600))
				}
				assert.True(t, owner.IsOf(root, unfinished, "one"))
				assert.False(t, owner.IsOf(root, unfinished, "two"))
			}
			require.NoError(t, owner.MakeMarked(root, "ns_web_u1", "one", "u1"))
			assert.True(t, owner.IsOf(root, "ns_web_u1", "one"))
			assert.False(t, owner.IsOf(root, "ns_web_u1", "two"))
			info, err := root.Stat("ns_web_u1")
			require.NoError(t, err)
			assert.Equal(t, fs.FileMode(0o755), info.Mode().Perm())
			require.Error(t, owner.MakeMarked(root, "ns_web_u1", "two", "u1"), "it is there")
			assert.True(t, owner.IsOf(root, "ns_web_u1", "one"))
			entries, err := os.ReadDir(dir)
			require.NoError(t, err)
			assert.Len(t, entries, 1)
		})
	}
}

func ExampleLoad() {
	dir, _ := os.MkdirTemp("", "")
	defer os.RemoveAll(dir)
	id, err := owner.Create(dir)
	if err != nil {
		panic(err)
	}
	kept, err := owner.Load(dir)
	fmt.Println(kept == id, err)
	// Output: true <nil>
}

// OW-1: a new id is created for a new directory only. Pods whose owner is not known any
// more are never taken for pods without an owner.
func TestLoadOrCreate(t *testing.T) {
	for name, tc := range map[string]struct {
		kept  bool // pods of an earlier process
		adopt bool
		want  error
	}{
		"new directory":          {},
		"pods without an id":     {kept: true, want: owner.ErrNoID},
		"pods that are adopted":  {kept: true, adopt: true},
		"adoption without a pod": {adopt: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			pods := filepath.Join(dir, "pods")
			if tc.kept {
				require.NoError(t, os.MkdirAll(filepath.Join(pods, "uid"), 0o700))
			}
			id, err := owner.LoadOrCreate(dir, pods, tc.adopt)
			require.ErrorIs(t, err, tc.want)
			if tc.want != nil {
				assert.ErrorContains(t, err, pods)
				return
			}
			reloaded, err := owner.LoadOrCreate(dir, pods, false)
			require.NoError(t, err, "the id is there now")
			assert.Equal(t, id, reloaded)
		})
	}
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := owner.LoadOrCreate(t.TempDir(), file, true)
	require.ErrorContains(t, err, "list pods of an earlier agent")
}
