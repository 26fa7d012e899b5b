package podsource

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/fsnotify/fsnotify"
)

// rewatchPeriod is the period in which the watches are checked, because inotify does
// not report a mount over a watched directory.
const rewatchPeriod = 20 * time.Second

// kernelNotifier is the Notifier that uses inotify.
type kernelNotifier struct{}

// Notify implements Notifier. It watches the directory and also the directories of all
// symbolic links on the way to it and to its files, so that replacing one of them is
// noticed.
func (kernelNotifier) Notify(ctx context.Context, path string, notify func()) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", path, err)
	}
	defer w.Close() //nolint:errcheck // nothing depends on it
	k := kernelWatch{w: w, path: path, inode: map[string]fs.FileInfo{}}
	tick := time.NewTicker(rewatchPeriod)
	defer tick.Stop()
	if _, err := k.update(); err != nil {
		return err
	}
	notify()
	for {
		var relevant, rewatch bool
		select {
		case <-ctx.Done():
			return nil
		case ev, ok := <-w.Events:
			if !ok {
				return fmt.Errorf("watch %s: closed", path)
			}
			relevant = k.dirs.isRelevant(ev.Name)
			// A write cannot change the target of a path; other operations can.
			rewatch = relevant && ev.Op != fsnotify.Write
		case err, ok := <-w.Errors:
			if !ok {
				return fmt.Errorf("watch %s: %w", path, err)
			}
			relevant, rewatch = true, true // events were lost
		case <-tick.C:
			rewatch = true
		}
		if rewatch {
			changed, err := k.update()
			if err != nil {
				return err
			}
			relevant = relevant || changed
		}
		if relevant {
			notify()
		}
	}
}

// kernelWatch is the state of one Notify.
type kernelWatch struct {
	w     *fsnotify.Watcher
	path  string
	dirs  watchedDirs
	inode map[string]fs.FileInfo // of each watched directory, when the watch was added
}

// update watches the directories that the path leads to now, and reports whether any
// watch was added. It repeats until nothing changes, because a directory can be
// replaced before it is watched.
func (k *kernelWatch) update() (changed bool, err error) {
	for range 5 {
		k.dirs = findDirs(k.path)
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
	isWatched := map[string]bool{}
	for _, dir := range k.w.WatchList() {
		isWatched[dir] = true
		if _, ok := k.dirs[dir]; !ok {
			k.drop(dir)
		}
	}
	for dir := range k.dirs {
		info, err := os.Stat(dir)
		if err != nil {
			continue // removed since; its parent is watched
		}
		if isWatched[dir] {
			if previous := k.inode[dir]; previous != nil && os.SameFile(previous, info) {
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
	_ = k.w.Remove(dir) // it may not be watched any more
	delete(k.inode, dir)
}
