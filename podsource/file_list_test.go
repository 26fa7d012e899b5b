package podsource_test

import (
	"io/fs"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/sublet-dev/agent/podsource"
)

// partialDir is a directory whose list can lack a file that exists, as that of a directory does that is being removed
// because a link leads to another one now.
type partialDir struct {
	*files
	lacks atomic.Value // string
}

func (d *partialDir) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(d.files, name)
	return slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return e.Name() == d.lacks.Load() }), err
}

// SR-4: only the removal of a file ends its pods, and not a list that lacks it.
func TestFile_PartialList(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dir := &partialDir{files: manifestDir(map[string]string{"x.yaml": manifest("x", "1"), "y.yaml": manifest("y", "1")})}
		notifier := newFakeNotifier()
		r := start(t, podsource.File("m", podsource.FileFS(dir), podsource.FileNotifier(notifier)))
		step := func() []string {
			notifier.notify()
			time.Sleep(50 * time.Millisecond)
			return r.delivered()
		}
		assert.Equal(t, []string{"ADD a x-n1=1 y-n1=1"}, r.delivered())

		dir.lacks.Store("x.yaml")
		assert.Empty(t, step())
		dir.write("x.yaml", manifest("x", "2"))
		assert.Equal(t, []string{"REMOVE a x-n1=1", "ADD a x-n1=2"}, step(), "its content is that of the file")
		time.Sleep(time.Minute)
		assert.Empty(t, r.delivered(), "without a notification")

		dir.remove("x.yaml")
		assert.Equal(t, []string{"REMOVE a x-n1=2"}, step())
		dir.lacks.Store("")
		dir.remove("y.yaml")
		assert.Equal(t, []string{"REMOVE a y-n1=1"}, step())
		assert.Empty(t, r.errors())
	})
}
