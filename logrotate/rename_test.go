package logrotate

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/internal/logpath"
)

// quietPeriod is long for a goroutine that could go on, and short for a test.
const quietPeriod = 50 * time.Millisecond

// CG-3: files are not listed while they are renamed. Otherwise a rotation could list a
// log both compressed and not, and a removed one would reappear.
func TestLogRoot_SerializesRenames(t *testing.T) {
	t.Run("a rotation waits", func(t *testing.T) {
		w := newWriter(t)
		root := w.root(t)
		w.write(3)
		root.renames.Lock()
		reopened := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			assert.NoError(t, root.rotate(logOf, time.Now(), func() error { close(reopened); return w.reopen() }))
		})
		select {
		case <-reopened:
			t.Error("it did not wait")
		case <-time.After(quietPeriod):
			assert.FileExists(t, w.path())
		}
		root.renames.Unlock()
		wg.Wait()
		_, names := w.read(t)
		assert.Len(t, names, 2)
	})
	t.Run("a compression waits, and undoes itself if what it packed went meanwhile", func(t *testing.T) {
		w := newWriter(t)
		root := w.root(t)
		w.write(3)
		require.NoError(t, root.rotate(logOf, time.Now(), w.reopen))
		_, names := w.read(t)
		old := filepath.Join(filepath.Dir(w.path()), names[0])
		root.renames.Lock()
		var wg sync.WaitGroup
		wg.Go(func() {
			assert.NoError(t, root.compress(t.Context(), filepath.Join(filepath.Dir(logOf), names[0])))
		})
		require.Eventually(t, func() bool { return exists(old + unfinished) }, time.Minute, time.Millisecond)
		for range 10 { // it may take its time on the disk
			time.Sleep(quietPeriod)
			require.True(t, exists(old) && exists(old+unfinished) && !exists(old+compressed))
		}
		require.NoError(t, os.Remove(old)) // as a rotation does that needs the room
		root.renames.Unlock()
		wg.Wait()
		_, names = w.read(t)
		assert.Equal(t, []string{"0.log"}, names)
	})
	t.Run("removing what is too much waits", func(t *testing.T) {
		w := newWriter(t)
		root := w.root(t)
		root.maxFiles = 20
		for range 4 {
			w.write(1)
			require.NoError(t, root.rotate(logOf, time.Now(), w.reopen))
		}
		root.maxFiles = 3
		_, before := w.read(t)
		root.renames.Lock()
		var wg sync.WaitGroup
		wg.Go(func() { assert.NoError(t, root.cleanup(t.Context(), logOf)) })
		time.Sleep(quietPeriod)
		_, names := w.read(t)
		assert.Equal(t, before, names)
		root.renames.Unlock()
		wg.Wait()
		_, names = w.read(t)
		assert.Len(t, names, 3)
	})
}

// CG-3: concurrent rotations and cleanups of one log neither fail nor lose or duplicate a
// line.
func TestLogRoot_RotatesDuringCleanup(t *testing.T) {
	w := newWriter(t)
	root := w.root(t)
	root.maxFiles = 4
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				assert.NoError(t, root.cleanup(t.Context(), logOf))
			}
		}
	})
	for range 500 {
		w.write(200)
		require.NoError(t, root.rotate(logOf, time.Now(), w.reopen))
	}
	close(done)
	wg.Wait()
	w.write(1)
	require.NoError(t, root.cleanup(t.Context(), logOf))
	lines, names := w.read(t)
	w.inOrder(t, lines)
	assert.Len(t, lines, 3*200+1)
	assert.Len(t, names, 4)
}

// CG-3: a process that is killed while it restores the name of a log after a failed
// reopen leaves one file with two names. Its lines are read once.
func TestLogRoot_OneFileByTwoNames(t *testing.T) {
	for name, next := range map[string]func(*testing.T, *writer, logRoot){
		"the next rotation": func(t *testing.T, w *writer, root logRoot) {
			require.NoError(t, root.rotate(logOf, time.Now(), w.reopen))
		},
		"the next tidying":   func(t *testing.T, _ *writer, root logRoot) { require.NoError(t, root.cleanup(t.Context(), logOf)) },
		"with an older file": nil,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWriter(t)
			root := w.root(t)
			want := 5
			if next == nil {
				w.write(5)
				require.NoError(t, root.rotate(logOf, time.Now(), w.reopen))
				want = 10
			}
			w.write(5)
			past := logpath.Rotated(w.path(), time.Now())
			require.NoError(t, os.Link(w.path(), past))
			if next == nil {
				require.NoError(t, root.rotate(logOf, time.Now(), w.reopen))
				next = func(t *testing.T, _ *writer, root logRoot) { require.NoError(t, root.cleanup(t.Context(), logOf)) }
			}
			next(t, w, root)
			w.write(5)
			lines, names := w.read(t)
			w.inOrder(t, lines)
			assert.Len(t, lines, want+5, strings.Join(names, " "))
		})
	}
}
