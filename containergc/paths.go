package containergc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/fileversion"
	"github.com/sublet-dev/agent/internal/fserr"
	"github.com/sublet-dev/agent/internal/logpath"
	"github.com/sublet-dev/agent/internal/owner"
	"github.com/sublet-dev/agent/runtime"
)

// freshLink is how long a link may dangle, because it is created before its log.
const freshLink = time.Minute

// maxFileName is the length of the name of a link that may be cut off, in bytes.
const maxFileName = 255

// uidOf returns the UID in the name of a pod's log directory, or "" for other names.
func uidOf(dir string) types.UID {
	parts := strings.Split(dir, "_")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" {
		return ""
	}
	return types.UID(parts[2])
}

// inLogs opens the logs directory such that no link can lead out of it.
func (c *Collector) inLogs(do func(*os.Root) error) error {
	if c.cfg.LogsDir == "" {
		return nil
	}
	root, err := os.OpenRoot(c.cfg.LogsDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open logs directory: %w", err)
	}
	defer func() { _ = root.Close() }()
	return do(root)
}

// removeLog removes the log of a container and all its rotated logs.
func (c *Collector) removeLog(pod *runtime.Pod, ct *runtime.Container) error {
	path, ok := logpath.Container(pod, ct)
	if !ok {
		return nil
	}
	return c.inLogs(func(root *os.Root) error {
		dir, base := filepath.Split(path)
		entries, err := fs.ReadDir(root.FS(), filepath.Clean(dir))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		errs := []error{err}
		for _, e := range entries {
			if e.Name() == base || strings.HasPrefix(e.Name(), base+".") {
				errs = append(errs, fserr.IgnoreNotExist(root.Remove(dir+e.Name())))
			}
		}
		if err := errors.Join(errs...); err != nil {
			return fmt.Errorf("remove log of container %s: %w", ct.ID, err)
		}
		return nil
	})
}

// readLogs is the logs directory as the last cleanup read it. The zero value is that of one that
// was not read.
type readLogs struct {
	version fileversion.Version
	changes uint64      // of the pods
	notLive []types.UID // of the directories of which the pod is not known to run
}

// logsChanged reports whether a cleanup of logs may find something that the last one has not:
// another directory, or one of a pod that was deleted since. Links may break at any time.
func (c *Collector) logsChanged(changes uint64) bool {
	if c.cfg.Owner == nil || c.cfg.LogsDir == "" {
		return false
	}
	if c.logs.changes != changes || c.cfg.LinksDir != "" {
		return true
	}
	if info, err := os.Stat(c.cfg.LogsDir); err != nil || !c.logs.version.IsCurrent(info) {
		return true
	}
	return slices.ContainsFunc(c.logs.notLive, func(uid types.UID) bool { return c.cfg.PodState(uid) == PodDeleted })
}

// cleanLogs removes the log directories of deleted pods that the runtime does not have
// either, the links into them, and dangling links. Directories without the owner's mark
// belong to others and are kept. changes is the number of the list of pods; see logsChanged.
func (c *Collector) cleanLogs(ctx context.Context, pods []runtime.Pod, changes uint64, urgent bool, result *Result) error {
	if c.cfg.Owner == nil {
		return nil
	}
	c.logs = readLogs{}
	listed := make(map[types.UID]*runtime.Pod, len(pods))
	for i := range pods {
		listed[pods[i].UID] = &pods[i]
	}
	// The list may contain what was just removed. What could not be removed is
	// handled by the next collection.
	mayRun := func(uid types.UID) bool { return listed[uid] != nil && listed[uid].CouldHaveRunningContainers() }
	return c.inLogs(func(root *os.Root) error {
		info, _ := root.Stat(".") // without it, the version is not current later
		read := readLogs{version: fileversion.Of(info, time.Now()), changes: changes}
		entries, err := fs.ReadDir(root.FS(), ".")
		// Marks are read last: almost all directories are those of running pods.
		isOurs := func(name string) bool { return owner.IsOf(root, name, c.cfg.Owner()) }
		var deleted []string
		isDeleted := make(map[string]bool)
		for _, e := range entries {
			uid := uidOf(e.Name())
			if !e.IsDir() || uid == "" || mayRun(uid) {
				continue
			}
			read.notLive = append(read.notLive, uid)
			if c.cfg.PodState(uid) == PodDeleted && isOurs(e.Name()) {
				deleted, isDeleted[e.Name()] = append(deleted, e.Name()), true
			}
		}
		if err == nil {
			c.logs = read
		}
		// Links first: without the directory, their owner is unknown.
		mayClean := func(dir, link string) bool { return !mayReopen(listed[uidOf(dir)], link) && c.mayClean(dir, isOurs) }
		errs := []error{err, c.cleanLinks(mayClean, isDeleted, urgent, result)}
		for _, name := range deleted {
			if err := owner.Remove(ctx, c.cfg.LogsDir, name); err != nil {
				errs = append(errs, fmt.Errorf("remove log directory %s: %w", name, err))
				continue
			}
			result.LogDirs++
		}
		return errors.Join(errs...)
	})
}

// cleanLinks removes links into directories that are being removed, and dangling
// links into directories of this agent's pods and into those that do not exist: a
// pod that finishes takes its log directory along. mayClean decides about those that dangle.
func (c *Collector) cleanLinks(mayClean func(dir, link string) bool, isDeleted map[string]bool, urgent bool, result *Result) error {
	if c.cfg.LinksDir == "" {
		return nil
	}
	entries, err := os.ReadDir(c.cfg.LinksDir)
	if err != nil {
		return fserr.IgnoreNotExist(err)
	}
	var errs []error
	for _, e := range entries {
		path := filepath.Join(c.cfg.LinksDir, e.Name())
		if !strings.HasSuffix(e.Name(), ".log") {
			continue
		}
		dir := c.pointsInto(path)
		if dir == "" || !isDeleted[dir] && (!dangles(path, urgent) || !mayClean(dir, e.Name())) {
			continue
		}
		if err := fserr.IgnoreNotExist(os.Remove(path)); err != nil {
			errs = append(errs, fmt.Errorf("remove link: %w", err))
			continue
		}
		result.Links++
	}
	return errors.Join(errs...)
}

// mayReopen reports whether a dangling link of this name may be that of a container of the pod that
// has not ended. Its log is missing while it is rotated, until the runtime opens the new one, and a
// link is only made when a container starts. If the name is cut off, it may be of any container.
func mayReopen(pod *runtime.Pod, link string) bool {
	return pod != nil && slices.ContainsFunc(pod.Containers, func(ct runtime.Container) bool {
		return ct.State != runtime.Exited && (len(link) == maxFileName || strings.HasSuffix(link, "-"+ct.ID+".log"))
	})
}

// mayClean reports whether dangling links into a directory of the logs directory may be removed: it is that of one of this agent's pods,
// or does not exist.
func (c *Collector) mayClean(dir string, isOurs func(dir string) bool) bool {
	info, err := os.Lstat(filepath.Join(c.cfg.LogsDir, dir))
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	return info.IsDir() && uidOf(dir) != "" && isOurs(dir)
}

// pointsInto returns the pod's log directory that the link at path leads into, or "".
func (c *Collector) pointsInto(path string) string {
	target, err := os.Readlink(path)
	if err != nil {
		return ""
	}
	if !filepath.IsAbs(target) {
		target = filepath.Join(c.cfg.LinksDir, target)
	}
	inside, _ := filepath.Rel(c.cfg.LogsDir, target) // "" if there is no such path
	if !filepath.IsLocal(inside) {
		return ""
	}
	dir, _, _ := strings.Cut(inside, "/")
	return dir
}

// dangles reports whether the target of a link does not exist. A link younger than
// freshLink only counts if urgent is true. One from the future was made before the clock
// was set back.
func dangles(path string, urgent bool) bool {
	if info, err := os.Lstat(path); err != nil || !urgent && time.Since(info.ModTime()).Abs() < freshLink {
		return false
	}
	_, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist)
}
