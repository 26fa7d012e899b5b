package atomicfile_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/internal/atomicfile"
)

func names(t *testing.T, dir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func TestWrite_ReplacesFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "set.json")
	require.NoError(t, atomicfile.Write(path, []byte("a long first content")))
	require.NoError(t, atomicfile.Write(path, []byte("second")))
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, "second", string(got))
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode())
	assert.Equal(t, []string{"set.json"}, names(t, dir), "nothing else is left")
}

func TestWrite_KeepsTheOldFileWhenItFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "set.json")
	require.NoError(t, os.Mkdir(path, 0o700)) // a file cannot be renamed over it
	require.Error(t, atomicfile.Write(path, []byte("new")))
	assert.Equal(t, []string{"set.json"}, names(t, dir), "no part of the new one is left")
	require.ErrorIs(t, atomicfile.Write(filepath.Join(dir, "absent", "set.json"), nil), os.ErrNotExist)
}

func TestRemovePartial_RemovesOnlyWhatIsOfThatFile(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".set.json.123", ".other.json.123", "set.json"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	require.NoError(t, atomicfile.RemovePartial(filepath.Join(dir, "set.json")))
	assert.Equal(t, []string{".other.json.123", "set.json"}, names(t, dir))
	require.NoError(t, atomicfile.RemovePartial(filepath.Join(dir, "absent", "set.json")))
}

func TestSetAside_KeepsTheLastOne(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "set.json")
	for i := range 2 {
		require.NoError(t, os.WriteFile(path, fmt.Append(nil, i), 0o600))
		require.NoError(t, atomicfile.SetAside(path))
	}
	got, err := os.ReadFile(path + atomicfile.DamagedSuffix)
	require.NoError(t, err)
	assert.Equal(t, "1", string(got))
	assert.Len(t, names(t, dir), 1)
}

func ExampleWrite() {
	dir, _ := os.MkdirTemp("", "")
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "state")
	fmt.Println(atomicfile.Write(path, []byte("whole")))
	b, _ := os.ReadFile(path)
	fmt.Println(string(b))
	// Output:
	// <nil>
	// whole
}
