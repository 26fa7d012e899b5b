package podsource_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/sublet-dev/agent/podsource"
)

// A file that is written piece by piece is read when it is left alone, and one
// that never is, within 100 ms all the same.
func TestFile_DebouncesWrites(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := play(t, nil)
		time.Sleep(time.Second)
		s.delivered()
		complete := manifest("x", "1")
		for i := 0; i <= len(complete); i += 40 {
			s.dir.write("x.yaml", complete[:i])
			s.k.notify()
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
		}
		assert.Empty(t, s.errors(), "no partial file is read")
		s.dir.write("x.yaml", complete)
		assert.Equal(t, []string{"ADD a x-n1=1"}, s.after())

		startTime := time.Now()
		s.dir.write("busy.yaml", manifest("busy", "1"))
		for time.Since(startTime) < 99*time.Millisecond {
			s.k.notify()
			time.Sleep(time.Millisecond)
		}
		assert.Equal(t, []string{"ADD a busy-n1=1"}, s.delivered())
	})
}

// AG-9: a Notifier that panics is one that fails.
func TestFile_NotifierPanics(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dir := manifestDir(map[string]string{"x.yaml": manifest("x", "1")})
		broken := notifierFunc(func(context.Context, string, func()) error { panic("no watches") })
		r := start(t, podsource.File("m", podsource.FileFS(dir), podsource.FileNotifier(broken), podsource.FileRescan(time.Minute)))
		assert.Equal(t, []string{"ADD a x-n1=1"}, r.delivered())
		dir.remove("x.yaml")
		time.Sleep(time.Minute)
		assert.Equal(t, []string{"REMOVE a x-n1=1"}, r.delivered())
	})
}
