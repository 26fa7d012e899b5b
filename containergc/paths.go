package containergc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/owner"
	"github.com/sublet-dev/agent/runtime"
)

// freshLink is how long a link may point nowhere: it is made before its log.
const freshLink = time.Minute

// logFile is where a container's log is below the logs folder:
// <namespace>_<name>_<uid>/<container>/<attempt>.log. It is false for names that
// are no names: they come from labels that anybody may have written.
func logFile(pod *runtime.Pod, c *runtime.Container) (string, bool) {
	folder := pod.Namespace + "_" + pod.Name + "_" + string(pod.UID)
	if pod.Namespace == "" || pod.Name == "" || pod.UID == "" || !isName(folder) || !isName(c.Name) {
		return "", false
	}
	return filepath.Join(folder, c.Name, strconv.FormatUint(uint64(c.Attempt), 10)+".log"), true
}

func isName(s string) bool {
	return s != "" && s != "." && s != ".." && !strings.ContainsAny(s, "/\\\x00")
}

// uidOf returns the pod that a log folder belongs to, or "" if it is none.
func uidOf(folder string) types.UID {
	parts := strings.Split(folder, "_")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" {
		return ""
	}
	return types.UID(parts[2])
}

// inLogs opens the logs folder so that no link leads out of it.
func (c *Collector) inLogs(do func(*os.Root) error) error {
	if c.cfg.LogsDir == "" {
		return nil
	}
	root, err := os.OpenRoot(c.cfg.LogsDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open the logs folder: %w", err)
	}
	defer func() { _ = root.Close() }()
	return do(root)
}

// removeLog removes the log of a container that is gone, with all its rotated
// parts.
func (c *Collector) removeLog(pod *runtime.Pod, ct *runtime.Container) error {
	path, ok := logFile(pod, ct)
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
				errs = append(errs, ignoreMissing(root.Remove(dir+e.Name())))
			}
		}
		if err := errors.Join(errs...); err != nil {
			return fmt.Errorf("remove the log of container %s: %w", ct.ID, err)
		}
		return nil
	})
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// cleanLogs removes the log folders of pods that are gone and of which the
// runtime knows nothing either, with the links that point into them, and links
// that point nowhere. What does not bear the owner's mark is somebody else's.
func (c *Collector) cleanLogs(pods []runtime.Pod, short bool, result *Result) error {
	if c.cfg.Owner == nil {
		return nil
	}
	known := make(map[types.UID]bool, len(pods))
	for i := range pods {
		// What was removed just now is in the listing still. What is not removable
		// will be looked at again.
		known[pods[i].UID] = pods[i].CouldHaveRunningContainers()
	}
	return c.inLogs(func(root *os.Root) error {
		entries, err := fs.ReadDir(root.FS(), ".")
		if err != nil {
			return fmt.Errorf("read the logs folder: %w", err)
		}
		var going []string
		ours, gone := make(map[string]bool), make(map[string]bool)
		for _, e := range entries {
			uid := uidOf(e.Name())
			if !e.IsDir() || uid == "" || owner.MarkOf(root, e.Name()) != c.cfg.Owner() {
				continue
			}
			ours[e.Name()] = true
			if !known[uid] && c.cfg.PodState(uid) == PodDeleted {
				going, gone[e.Name()] = append(going, e.Name()), true
			}
		}
		// Links first: once a folder is no more, nothing tells whose they were.
		errs := []error{c.cleanLinks(ours, gone, short, result)}
		for _, name := range going {
			if err := removeMarked(root, name); err != nil {
				errs = append(errs, fmt.Errorf("remove log folder %s: %w", name, err))
				continue
			}
			result.LogDirs++
		}
		return errors.Join(errs...)
	})
}

// removeMarked removes a folder, its mark last.
func removeMarked(root *os.Root, name string) error {
	entries, err := fs.ReadDir(root.FS(), name)
	if err != nil {
		return ignoreMissing(err)
	}
	var errs []error
	for _, e := range entries {
		if e.Name() != owner.MarkName {
			errs = append(errs, root.RemoveAll(filepath.Join(name, e.Name())))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return root.RemoveAll(name)
}

// cleanLinks removes links into directories that are being removed, and dangling
// links into directories of this agent's pods and into those that do not exist: a
// pod that finishes takes its log directory along.
func (c *Collector) cleanLinks(ours, gone map[string]bool, short bool, result *Result) error {
	if c.cfg.LinksDir == "" {
		return nil
	}
	entries, err := os.ReadDir(c.cfg.LinksDir)
	if err != nil {
		return ignoreMissing(err)
	}
	var errs []error
	for _, e := range entries {
		path := filepath.Join(c.cfg.LinksDir, e.Name())
		if !strings.HasSuffix(e.Name(), ".log") {
			continue
		}
		folder := c.pointsInto(path)
		if folder == "" || !gone[folder] && (!ours[folder] && c.hasLogs(folder) || !dangles(path, short)) {
			continue
		}
		if err := ignoreMissing(os.Remove(path)); err != nil {
			errs = append(errs, fmt.Errorf("remove link: %w", err))
			continue
		}
		result.Links++
	}
	return errors.Join(errs...)
}

// hasLogs reports whether a directory of the logs directory exists.
func (c *Collector) hasLogs(name string) bool {
	_, err := os.Lstat(filepath.Join(c.cfg.LogsDir, name))
	return !errors.Is(err, fs.ErrNotExist)
}

// pointsInto returns the folder of the logs folder that path is a link into, or "".
func (c *Collector) pointsInto(path string) string {
	target, err := os.Readlink(path)
	if err != nil {
		return ""
	}
	if !filepath.IsAbs(target) {
		target = filepath.Join(c.cfg.LinksDir, target)
	}
	inside, err := filepath.Rel(c.cfg.LogsDir, target)
	if err != nil || !filepath.IsLocal(inside) {
		return ""
	}
	folder, _, _ := strings.Cut(inside, "/")
	return folder
}

// dangles reports whether a link points to nothing, and has for a while.
func dangles(path string, short bool) bool {
	if info, err := os.Lstat(path); err != nil || !short && time.Since(info.ModTime()) < freshLink {
		return false
	}
	_, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist)
}
