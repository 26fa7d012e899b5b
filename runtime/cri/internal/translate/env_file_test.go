package translate

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

func TestEnvFileValue(t *testing.T) {
	const text = "# a comment\n\n  A='1'\nB='two words # no comment'   # a comment\nC=''\nD='two\r\nlines'#c\r\nA='last'\nE='$(A) \\n'\nF= 'x'\n\tG='#'\nexport H='1'\nI='end'"
	for key, want := range map[string]string{
		"A": "1", "B": "two words # no comment", "C": "", "D": "two\nlines", "E": `$(A) \n`, "F": "", "G": "#", "export H": "1", "I": "end",
	} {
		got, ok, err := envFileValue(text, key)
		require.NoError(t, err, key)
		assert.True(t, ok, key)
		assert.Equal(t, want, got, key)
	}
	for _, key := range []string{"H", "lines'#c", "# a comment", ""} {
		_, ok, err := envFileValue(text, key)
		require.NoError(t, err, key)
		assert.False(t, ok, key)
	}
	for text, line := range map[string]string{
		"A=1": "line 1", "A='1'\nB": "line 2", "A='x\ny'\n\nB=\"2\"": "line 4", "A='1'\nB='open\n\n": "line 2", "A='1' B='2'": "line 1", "='x'": "line 1",
		"B\nZ='1'": "line 1", "A\n='1'": "line 1", "# c\n# d\nB": "line 3", "A=x'1'": "line 1", "A b": "line 1", "A ='1'": "line 1", "A=": "line 1", "A='x\ny' z": "line 2",
	} {
		_, ok, err := envFileValue(text, "Z")
		require.ErrorIs(t, err, runtime.ErrInvalid, text)
		assert.ErrorContains(t, err, line+": ")
		assert.False(t, ok)
	}
	got, ok, err := envFileValue("A='1'\nB", "A")
	require.NoError(t, err, "it is found before the error")
	assert.Equal(t, []any{"1", true}, []any{got, ok})
}

func TestFileKey(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "env"), []byte("KEY='hush'\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "torn"), []byte("KEY='hush"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "big"), make([]byte, envFileLimit+1), 0o600))
	full := "KEY='" + strings.Repeat("v", envFileLimit-100) + "'\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "full"), []byte(full+strings.Repeat("\n", envFileLimit-len(full))), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "more"), []byte(full+strings.Repeat("\n", envFileLimit-len(full)+1)), 0o600))
	require.NoError(t, os.Symlink("/etc/hostname", filepath.Join(dir, "out")))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "folder"), 0o700))
	tr := &Translator{Options: runtime.RunOptions{Volumes: map[string]runtime.Volume{"v": {HostPath: dir}}}}
	ask := func(volume, path, key string, optional bool) (string, bool, error) {
		return tr.fileKey(&corev1.FileKeySelector{VolumeName: volume, Path: path, Key: key, Optional: &optional})
	}
	value, ok, err := ask("v", "env", "KEY", false)
	require.NoError(t, err)
	assert.True(t, ok)
	assert.Equal(t, "hush", value)
	value, _, err = ask("v", "//env", "KEY", false)
	require.NoError(t, err, "the volume is the root")
	assert.Equal(t, "hush", value)
	value, _, err = ask("v", "full", "KEY", false)
	require.NoError(t, err)
	assert.Len(t, value, envFileLimit-100)
	_, _, err = ask("v", "more", "KEY", false)
	require.ErrorIs(t, err, runtime.ErrInvalid)
	for _, c := range [][2]string{{"none", "KEY"}, {"env", "NONE"}} {
		_, ok, err := ask("v", c[0], c[1], true)
		require.NoError(t, err)
		assert.False(t, ok)
		_, ok, err = ask("v", c[0], c[1], false)
		require.ErrorIs(t, err, runtime.ErrNotFound)
		assert.False(t, ok)
	}
	for _, path := range []string{"out", "../x", "/../x", "torn", "big", "folder"} {
		_, ok, err := ask("v", path, "KEY", true)
		require.ErrorContains(t, err, `key "KEY" of file "`+path+`" in volume "v"`)
		assert.NotContains(t, err.Error(), "hush")
		assert.False(t, ok)
	}
	_, ok, err = ask("w", "env", "KEY", true)
	require.ErrorIs(t, err, runtime.ErrNotReady)
	assert.False(t, ok)
	_, _, err = tr.fileKey(&corev1.FileKeySelector{VolumeName: "v", Path: "none", Key: "KEY"})
	require.ErrorIs(t, err, runtime.ErrNotFound)
	tr.Options.Volumes["v"] = runtime.Volume{HostPath: filepath.Join(dir, "none")}
	_, _, err = ask("v", "env", "KEY", true)
	require.ErrorContains(t, err, "the volume cannot be opened")
	assert.NotContains(t, err.Error(), dir)
}

// Links in a volume are followed, within it.
func TestFileKey_Links(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "a", "b"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a", "env"), []byte("KEY='hush'\n"), 0o600))
	for name, target := range map[string]string{
		"dir": "a/b", "plain": "a/env", "twice": "plain", "a/b/up": "../env", "viaDir": "dir/../env", "self": "self", "gone": "none",
		"absolute": filepath.Join(dir, "a", "env"), "leaves": "../" + filepath.Base(dir) + "/a/env",
	} {
		require.NoError(t, os.Symlink(target, filepath.Join(dir, name)))
	}
	for path, want := range map[string]error{
		"plain": nil, "twice": nil, "dir/up": nil, "viaDir": nil, "dir/../env": nil,
		"self": unix.ELOOP, "gone": os.ErrNotExist, "absolute": errAny, "leaves": errAny,
	} {
		text, err := readInside(dir, path)
		switch {
		case want == nil:
			require.NoError(t, err, path)
			assert.Equal(t, "KEY='hush'\n", string(text), path)
		case errors.Is(want, errAny):
			assert.Error(t, err, path)
		default:
			assert.ErrorIs(t, err, want, path)
		}
	}
}

var errAny = errors.New("any")

func FuzzEnvFileValue(f *testing.F) {
	f.Add("A='1'\n# c\nB='x\ny' # d", "B")
	f.Fuzz(func(t *testing.T, text, key string) {
		value, ok, err := envFileValue(text, key)
		if err != nil || !ok {
			require.Empty(t, value)
			return
		}
		require.NotContains(t, value, "'")
		second, ok, err := envFileValue(key+"='"+value+"'\n", key)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, strings.ReplaceAll(value, "\r\n", "\n"), second)
	})
}
