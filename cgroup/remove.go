package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// removeTimeout is how long a removal waits for killed processes to exit, and removePause
// the time between two attempts.
const (
	removeTimeout = 10 * time.Second
	removePause   = 10 * time.Millisecond
)

// Remove kills all processes in the cgroups of a pod and removes the cgroups from every
// hierarchy. It waits up to 10s for the processes to exit; after an error the caller
// must call it again. It returns nil for a pod without cgroups, and for one whose cgroups
// belong to another owner.
func (m *Manager) Remove(ctx context.Context, uid types.UID) error {
	if err := checkUID(uid); err != nil {
		return err
	}
	t := m.opened()
	if t == nil {
		return nil
	}
	dirs, err := m.dirsOf(t, uid)
	if err != nil {
		return fmt.Errorf("remove cgroup of pod %s: %w", uid, err)
	}
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	// The directory with the owner's mark is the first of each cgroup and is removed
	// last, so that the next process recognizes an interrupted removal.
	for _, dir := range slices.Backward(dirs) {
		if err := removeTree(ctx, dir); err != nil {
			return fmt.Errorf("remove cgroup of pod %s: %w", uid, err)
		}
	}
	if had := m.put(uid, podGroup{}); had.group == "" {
		return nil
	}
	return m.setTiers(t)
}

// dirsOf returns all directories that the pod can have, in all QoS classes, because a pod
// that changed its class may have left one behind.
func (m *Manager) dirsOf(t tree, uid types.UID) ([]string, error) {
	var out []string
	for _, q := range tiers() {
		group, err := m.named().pod(q, uid)
		if err != nil {
			return nil, err
		}
		if m.foreign(t, group) {
			continue
		}
		out = append(out, t.dirs(group)...)
	}
	return out, nil
}

// removeTree kills processes and removes cgroups until dir is removed or ctx is done.
func removeTree(ctx context.Context, dir string) error {
	pause := time.NewTicker(removePause)
	defer pause.Stop()
	for {
		if err := killTree(dir); err != nil {
			return err
		}
		err := rmdirTree(dir)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", err, ctx.Err())
		}
	}
}

// killTree kills every process in the cgroups of a directory, at once where the kernel
// supports it, so that no process can escape by forking.
func killTree(dir string) error {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if f, err := os.OpenFile(filepath.Join(dir, "cgroup.kill"), os.O_WRONLY, 0); err == nil {
		_, err = f.WriteString("1")
		if err = errors.Join(err, f.Close()); err == nil {
			return nil
		}
	}
	return walkDirs(dir, func(at string) error {
		data, err := os.ReadFile(filepath.Join(at, "cgroup.procs"))
		if err != nil {
			if isCgroupRemoved(err) || errors.Is(err, unix.EOPNOTSUPP) {
				return nil
			}
			return err
		}
		for field := range strings.FieldsSeq(string(data)) {
			pid, err := strconv.Atoi(field)
			if err != nil || pid <= 1 || pid == os.Getpid() {
				continue // 0 is a process of another pid namespace
			}
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("kill %d: %w", pid, err)
			}
		}
		return nil
	})
}

// rmdirTree removes the cgroups of a directory, deepest first. The kernel removes their
// files.
func rmdirTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		if isCgroupRemoved(err) {
			return nil
		}
		return err
	}
	var errs []error
	for _, e := range entries {
		if e.IsDir() {
			errs = append(errs, rmdirTree(filepath.Join(dir, e.Name())))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := unix.Rmdir(dir); err != nil && !isCgroupRemoved(err) {
		return &fs.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}

// walkDirs calls visit for dir and all directories below it.
func walkDirs(dir string, visit func(string) error) error {
	if err := visit(dir); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		if isCgroupRemoved(err) {
			return nil
		}
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := walkDirs(filepath.Join(dir, e.Name()), visit); err != nil {
				return err
			}
		}
	}
	return nil
}

// isCgroupRemoved reports whether err means that the cgroup was removed meanwhile.
func isCgroupRemoved(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
