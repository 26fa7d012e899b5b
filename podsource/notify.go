package podsource

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/fsnotify/fsnotify"
)

// rewatchPeriod is how often the watches are checked: the kernel does not tell that
// something was mounted over a folder.
const rewatchPeriod = 20 * time.Second

// kernelNotifier is the Notifier on what the kernel tells of the host's files.
type kernelNotifier struct{}

// Notify fulfils Notifier. It watches the folder and, so that no way of
// exchanging it goes unnoticed, the folders in which links on the way to it and
// to its files are kept.
func (kernelNotifier) Notify(ctx context.Context, path string, hint func()) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", path, err)
	}
	defer w.Close() //nolint:errcheck // it is not used any more
	k := kernelWatch{w: w, path: path, inode: map[string]fs.FileInfo{}}
	tick := time.NewTicker(rewatchPeriod)
	defer tick.Stop()
	if _, err := k.follow(); err != nil {
		return err
	}
	hint()
	for {
		var relevant, moved bool
		select {
		case <-ctx.Done():
			return nil
		case ev, ok := <-w.Events:
			if !ok {
				return fmt.Errorf("watch %s: closed", path)
			}
			relevant = k.want.matter(ev.Name)
			// Writing to a file leads nowhere else; the rest may.
			moved = relevant && ev.Op != fsnotify.Write
		case err, ok := <-w.Errors:
			if !ok {
				return fmt.Errorf("watch %s: %w", path, err)
			}
			relevant, moved = true, true // events were lost
		case <-tick.C:
			moved = true
		}
		if moved {
			changed, err := k.follow()
			if err != nil {
				return err
			}
			relevant = relevant || changed
		}
		if relevant {
			hint()
		}
	}
}

// kernelWatch is the state of one Notify.
type kernelWatch struct {
	w     *fsnotify.Watcher
	path  string
	want  watchedDirs
	inode map[string]fs.FileInfo // of each folder watched, when it was
}

// follow brings the watches to where the path leads now, and reports whether any
// had to be set. A folder can be exchanged between the look and the watch, so it
// looks again until nothing changes.
func (k *kernelWatch) follow() (changed bool, err error) {
	for range 5 {
		k.want = find(k.path)
		n, err := k.watch()
		if err != nil {
			return changed, err
		}
		if n == 0 {
			break
		}
		changed = true
	}
	return changed, nil
}

func (k *kernelWatch) watch() (n int, err error) {
	alive := map[string]bool{}
	for _, dir := range k.w.WatchList() {
		alive[dir] = true
		if _, ok := k.want[dir]; !ok {
			k.drop(dir)
		}
	}
	for dir := range k.want {
		info, err := os.Stat(dir)
		if err != nil {
			continue // gone since; the folder above tells
		}
		if alive[dir] {
			if was := k.inode[dir]; was != nil && os.SameFile(was, info) {
				continue
			}
			k.drop(dir)
		}
		if err := k.w.Add(dir); err != nil {
			if _, statErr := os.Stat(dir); statErr != nil {
				continue
			}
			return n, fmt.Errorf("watch %s: %w", dir, err)
		}
		k.inode[dir] = info
		n++
	}
	return n, nil
}

func (k *kernelWatch) drop(dir string) {
	_ = k.w.Remove(dir) // it may be gone already
	delete(k.inode, dir)
}
