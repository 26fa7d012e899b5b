package statefile_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/internal/atomicfile"
	"github.com/sublet-dev/agent/internal/statefile"
)

// counter is a component whose state is a number.
type counter struct {
	mu       sync.Mutex
	value    int
	restored []error
	lost     []error
	file     statefile.File[int]
}

func newCounter(path string) *counter {
	c := &counter{}
	c.file = statefile.File[int]{
		Path: path, Limit: 8, Mu: &c.mu,
		Parse: func(text []byte) (n int, err error) {
			err = json.Unmarshal(text, &n)
			return n, err
		},
		Restore:  func(n int, err error) { c.value, c.restored = n, append(c.restored, err) },
		Lost:     func(err error) { c.mu.Lock(); defer c.mu.Unlock(); c.lost = append(c.lost, err) },
		Snapshot: func() int { return c.value },
	}
	return c
}

func (c *counter) add() error {
	c.mu.Lock()
	c.value++
	c.file.Changed()
	c.mu.Unlock()
	return c.file.Save()
}

func TestFile_IsReadOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	c := newCounter(path)
	require.NoError(t, c.file.Load())
	require.Len(t, c.restored, 1)
	require.ErrorIs(t, c.restored[0], fs.ErrNotExist)
	require.NoError(t, c.add())
	require.NoError(t, c.file.Load())
	assert.Len(t, c.restored, 1, "not read a second time")

	restarted := newCounter(path)
	require.NoError(t, restarted.file.Load())
	assert.Equal(t, []error{nil}, restarted.restored)
	assert.Equal(t, 1, restarted.value)
	assert.Empty(t, restarted.lost)
}

func TestFile_DamageIsReportedOnce(t *testing.T) {
	for name, text := range map[string]string{"truncated": `{`, "large": `        1`} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "state")
			require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
			c := newCounter(path)
			require.NoError(t, c.file.Load())
			require.NoError(t, c.file.Load())
			require.Len(t, c.restored, 1)
			_, ok := errors.AsType[*atomicfile.DamagedError](c.restored[0])
			assert.True(t, ok)
			assert.Zero(t, c.value)
			assert.Equal(t, c.restored, c.lost)
			assert.NoFileExists(t, path)
		})
	}
}

// A state stays lost until another was written, also if the process was killed before, or its disk was full.
func TestFile_DamageBeforeACrash(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	require.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
	for range 2 {
		c := newCounter(path)
		require.NoError(t, c.file.Load())
		require.Len(t, c.lost, 1)
		assert.Equal(t, c.restored, c.lost)
		assert.FileExists(t, path+atomicfile.DamagedSuffix)
	}
	c := newCounter(path)
	require.NoError(t, c.file.Load())
	require.NoError(t, c.add())
	c = newCounter(path)
	require.NoError(t, c.file.Load())
	assert.Equal(t, []error{nil}, c.restored)
	assert.Empty(t, c.lost)
}

func TestFile_RetriesAfterATemporaryError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	require.NoError(t, os.Mkdir(path, 0o700)) // not a file
	c := newCounter(path)
	require.Error(t, c.file.Load())
	assert.Empty(t, c.restored)
	assert.Empty(t, c.lost)
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.WriteFile(path, []byte("5"), 0o600))
	require.NoError(t, c.file.Load())
	assert.Equal(t, 5, c.value)
}

func TestFile_WritesOnlyChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	c := newCounter(path)
	require.NoError(t, c.file.Save())
	assert.NoFileExists(t, path)
	require.NoError(t, c.add())
	require.NoError(t, os.Remove(path))
	require.NoError(t, c.file.Save())
	assert.NoFileExists(t, path, "nothing has changed since")
}

// What could not be read back is not written: the file that is there is of more use.
func TestFile_DoesNotWriteMoreThanItReads(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	c := newCounter(path)
	require.NoError(t, c.file.Load())
	c.value = 9_999_998
	require.NoError(t, c.add())
	c.value = 99_999_998
	require.NoError(t, c.add(), "as large as may be")
	require.ErrorContains(t, c.add(), "9 bytes are more than the 8 that are read")
	assert.True(t, c.file.Unsaved())

	restarted := newCounter(path)
	require.NoError(t, restarted.file.Load())
	assert.Equal(t, 99_999_999, restarted.value)
	c.value = 0
	require.NoError(t, c.add(), "small enough")
	assert.False(t, c.file.Unsaved())
}

func TestFile_KeepsChangesThatItCouldNotWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "absent")
	c := newCounter(filepath.Join(dir, "state"))
	require.ErrorIs(t, c.add(), fs.ErrNotExist)
	assert.True(t, c.file.Unsaved())
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, c.file.Save())
	assert.False(t, c.file.Unsaved())
	assert.FileExists(t, c.file.Path)
}

func TestFile_StoresChangesOfAllGoroutines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	c := newCounter(path)
	var wait sync.WaitGroup
	for range 20 {
		wait.Go(func() { assert.NoError(t, c.add()) })
	}
	wait.Wait()
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, "20", string(got))
}

func ExampleFile() {
	dir, _ := os.MkdirTemp("", "")
	defer os.RemoveAll(dir)
	c := newCounter(filepath.Join(dir, "starts"))
	fmt.Println(c.file.Load(), c.add())
	restarted := newCounter(c.file.Path)
	fmt.Println(restarted.file.Load(), restarted.value)
	// Output:
	// <nil> <nil>
	// <nil> 1
}
