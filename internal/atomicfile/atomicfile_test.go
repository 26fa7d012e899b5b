package atomicfile_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
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

func TestLoad(t *testing.T) {
	const content = "content"
	for _, tt := range []struct {
		name    string
		prepare func(t *testing.T, path string)
		limit   int64
		want    string // the error
		left    []string
	}{
		{"a file", nil, int64(len(content)), "", []string{"state"}},
		{"absent", func(t *testing.T, path string) { require.NoError(t, os.Remove(path)) }, 100, "no such file", nil},
		{
			"the remains of a write", func(t *testing.T, path string) {
				require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(path), ".state.1"), nil, 0o600))
			}, 100, "", []string{"state"},
		},
		{"too large", nil, int64(len(content)) - 1, "larger than 6 bytes; renamed to ", []string{"state.damaged"}},
		{
			"not accepted", func(t *testing.T, path string) { require.NoError(t, os.WriteFile(path, []byte("?"), 0o600)) }, 100,
			"not the content; renamed to ",
			[]string{"state.damaged"},
		},
		{
			"a directory", func(t *testing.T, path string) {
				require.NoError(t, errors.Join(os.Remove(path), os.Mkdir(path, 0o700)))
			}, 100, "not a regular file", []string{"state"},
		},
		{
			"a damaged one cannot be renamed", func(t *testing.T, path string) {
				require.NoError(t, os.MkdirAll(path+atomicfile.DamagedSuffix, 0o700))
			}, 1, "rename damaged file", []string{"state", "state.damaged"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "state")
			require.NoError(t, atomicfile.Write(path, []byte(content)))
			if tt.prepare != nil {
				tt.prepare(t, path)
			}
			err := atomicfile.Load(path, tt.limit, func(data []byte) error {
				if string(data) != content {
					return errors.New("not the content")
				}
				return nil
			})
			damaged, isDamaged := errors.AsType[*atomicfile.DamagedError](err)
			assert.Equal(t, strings.Contains(tt.want, "renamed to"), isDamaged, "temporary errors are others")
			if isDamaged {
				assert.Equal(t, path, damaged.Path)
			}
			if tt.want == "" {
				assert.NoError(t, err)
			} else {
				assert.ErrorContains(t, err, tt.want)
			}
			assert.Equal(t, tt.left, names(t, dir))
		})
	}
}
