package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	// maxRemoved bounds the pods that are remembered as removed.
	maxRemoved = 1000
)

// Remove kills all processes in the cgroups of a pod and removes the cgroups from every
// hierarchy. It waits up to 10s for the processes to exit; after an error the caller
// must call it again. It returns nil for a pod without cgroups, and for one whose cgroups
// belong to another owner. After a success it does nothing for the pod until the next Ensure
// or PodUIDs.
func (m *Manager) Remove(ctx context.Context, uid types.UID) error {
	if err := checkUID(uid); err != nil {
		return err
	}
	t := m.opened()
	if t == nil || m.wasRemoved(uid) {
		return nil
	}
	groups, err := m.groupsOf(t, uid)
	if err != nil {
		return fmt.Errorf("remove cgroup of pod %s: %w", uid, err)
	}
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	isObserved := m.cfg.Hooks.Changed != nil && slices.ContainsFunc(groups, func(g string) bool { return exists(t, g) })
	startTime := time.Now()
	for _, group := range groups {
		if err = removeGroup(ctx, t, group); err != nil {
			err = fmt.Errorf("remove cgroup of pod %s: %w", uid, err)
			break
		}
	}
	if isObserved {
		m.changed(OperationDestroy, startTime, err)
	}
	if err != nil {
		return err
	}
	if had := m.put(uid, podGroup{}); had.group == "" {
		return nil
	}
	return m.setTiers(t)
}

// wasRemoved reports whether nothing is left of the cgroups of a pod. A pod that ends is removed by
// several callers, each of which would search all hierarchies and classes.
func (m *Manager) wasRemoved(uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.removed[uid]
	return ok
}

// forgetRemoved has the next Remove of each pod search the hierarchies.
func (m *Manager) forgetRemoved() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.removed)
}

// groupsOf returns all cgroups that the pod can have, in all QoS classes, because a pod
// that changed its class may have left one behind.
func (m *Manager) groupsOf(t tree, uid types.UID) ([]string, error) {
	var out []string
	for _, q := range tiers() {
		group, err := m.named().pod(q, uid)
		if err != nil {
			return nil, err
		}
		if !m.foreign(t, group) {
			out = append(out, group)
		}
	}
	return out, nil
}

// removeGroup kills the processes of a cgroup and removes it. The directory with the owner's
// mark is the first one and is removed last, so that the next process recognizes an
// interrupted removal.
func removeGroup(ctx context.Context, t tree, group string) error {
	dirs := t.dirs(group)
	if isDir(dirs[0]) {
		// Systemd would first ask processes to end, and wait for that.
		if err := killTree(dirs[0]); err != nil && !isCgroupRemoved(err) {
			return err
		}
		if err := t.release(ctx, group); err != nil {
			return err
		}
	}
	for _, dir := range slices.Backward(dirs) {
		if err := removeTree(ctx, dir); err != nil {
			return err
		}
	}
	return nil
}

// removeTree kills processes and removes cgroups until dir is removed or ctx is done.
func removeTree(ctx context.Context, dir string) error {
	if err := unix.Rmdir(dir); err == nil || isCgroupRemoved(err) {
		return nil // it was empty, as that of a pod without containers is
	}
	pause := time.NewTicker(removePause)
	defer pause.Stop()
	for {
		if err := killTree(dir); err != nil && !isCgroupRemoved(err) {
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
	return walkDirs(dir, killProcesses, nil)
}

// readProcs returns the processes in an open cgroup as the kernel lists them. A threaded
// cgroup does not: EOPNOTSUPP.
func readProcs(cgroup int) ([]byte, error) {
	fd, err := unix.Openat(cgroup, "cgroup.procs", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "cgroup.procs")
	data, err := io.ReadAll(f)
	return data, errors.Join(err, f.Close())
}

// killProcesses kills the processes in an open cgroup.
func killProcesses(cgroup int) error {
	data, err := readProcs(cgroup)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	if err != nil {
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
}

// rmdirTree removes the cgroups of a directory, deepest first. The kernel removes their
// files.
func rmdirTree(dir string) error {
	err := walkDirs(dir, nil, func(parent int, name string) error {
		return unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
	})
	if err == nil {
		err = unix.Rmdir(dir)
	}
	if err != nil && !isCgroupRemoved(err) {
		return &fs.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}

// walkDirs calls enter for dir and each directory below it, and leave for each one below
// it after those that it contains. Directories that are removed meanwhile are skipped. A
// container may have created them: paths can be longer than the kernel accepts, so it
// goes by descriptors, of which it keeps one open.
func walkDirs(dir string, enter func(dir int) error, leave func(parent int, name string) error) error {
	type level struct {
		name string
		rest []string // subdirectories that are left
	}
	var levels []level
	at := unix.AT_FDCWD
	defer func() { closeDir(at) }()
	next := level{rest: []string{dir}}
	for {
		if len(next.rest) == 0 {
			if len(levels) <= 1 {
				return nil
			}
			up, err := unix.Openat(at, "..", openDir, 0)
			if err != nil {
				return err
			}
			closeDir(at)
			at = up
			if leave != nil {
				if err := leave(at, next.name); err != nil && !isCgroupRemoved(err) {
					return err
				}
			}
			next, levels = levels[len(levels)-1], levels[:len(levels)-1]
			continue
		}
		name := next.rest[0]
		next.rest = next.rest[1:]
		fd, err := unix.Openat(at, name, openDir, 0)
		if isCgroupRemoved(err) {
			continue
		}
		if err != nil {
			return err
		}
		levels = append(levels, next)
		closeDir(at)
		at = fd
		if enter != nil {
			if err := enter(at); err != nil && !isCgroupRemoved(err) {
				return err
			}
		}
		rest, err := subdirs(at)
		if err != nil && !isCgroupRemoved(err) {
			return err
		}
		next = level{name, rest}
	}
}

const openDir = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

func closeDir(fd int) {
	if fd != unix.AT_FDCWD {
		_ = unix.Close(fd) // only read
	}
}

// subdirs returns the names of the directories in an open directory.
func subdirs(dir int) ([]string, error) {
	fd, err := unix.Openat(dir, ".", openDir, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "cgroup")
	defer func() { _ = f.Close() }() // only read
	entries, err := f.ReadDir(-1)
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// isCgroupRemoved reports whether err means that the cgroup was removed meanwhile.
func isCgroupRemoved(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
