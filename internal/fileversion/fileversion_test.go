//go:build linux

package fileversion

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestVersion_IsCurrent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	old := time.Now().Add(-time.Hour)
	write := func(path, content string, at time.Time) {
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		require.NoError(t, os.Chtimes(path, at, at))
	}
	stat := func() os.FileInfo {
		info, err := os.Stat(path)
		require.NoError(t, err)
		return info
	}
	write(path, "a", old)
	assert.False(t, Version{}.IsCurrent(stat()), "never read")
	v := Of(stat(), time.Now())
	assert.True(t, v.IsCurrent(stat()))

	for _, tt := range []struct {
		name   string
		change func()
	}{
		{"longer", func() { write(path, "aa", old) }},
		{"written later", func() { write(path, "b", old.Add(time.Minute)) }},
		{"written, and its time set back", func() { write(path, "b", old) }},
		{"replaced", func() {
			write(path+"2", "b", old)
			require.NoError(t, os.Rename(path+"2", path))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			write(path, "a", old)
			v := Of(stat(), time.Now())
			require.True(t, v.IsCurrent(stat()))
			before := stat()
			require.Eventually(t, func() bool { // the clock of the file system ticks
				tt.change()
				return !isSame(before, stat())
			}, time.Minute, time.Millisecond)
			assert.False(t, v.IsCurrent(stat()))
		})
	}

	write(path, "a", old)
	assert.False(t, Of(stat(), old.Add(granularity)).IsCurrent(stat()), "it may have been written once more at that time")
	assert.False(t, Of(stat(), old.Add(-time.Minute)).IsCurrent(stat()), "the clock was set")
}
