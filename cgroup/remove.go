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

// How long a removal waits for killed processes to be gone, and between looks.
const (
	removeTimeout = 10 * time.Second
	removePause   = 10 * time.Millisecond
)

// Remove kills what is left in the pod's groups and removes them from every
// hierarchy. It waits, bounded, until the kernel lets them go; an error means
// that it is to be called again. A pod without a group is no error.
func (m *Manager) Remove(ctx context.Context, uid types.UID) error {
	if err := checkUID(uid); err != nil {
		return err
	}
	t := m.opened()
	if t == nil {
		return nil
	}
	dirs, err := m.foldersOf(t, uid)
	if err != nil {
		return fmt.Errorf("remove cgroup of pod %s: %w", uid, err)
	}
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	// The folder with the owner's mark is the first of each group and goes last,
	// so that a removal cut short is known to the next process.
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

// foldersOf returns all folders that the pod may have, under any QoS class:
// one that changed its class may have left one behind.
func (m *Manager) foldersOf(t tree, uid types.UID) ([]string, error) {
	var out []string
	for _, q := range tiers() {
		group, err := m.named().pod(q, uid)
		if err != nil {
			return nil, err
		}
		if m.foreign(t, group) {
			continue
		}
		out = append(out, t.folders(group)...)
	}
	return out, nil
}

// removeTree kills and removes until the folder is gone or ctx is done.
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

// killTree kills every process in the folder's groups. Where the kernel can
// kill a whole group at once it does, so that nothing forks away.
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

// rmdirTree removes the folder's groups, deepest first. Their files are the
// kernel's and go with them.
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

// walkDirs calls visit for dir and all folders below it.
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

// isCgroupRemoved reports whether err says that a group went away while we looked.
func isCgroupRemoved(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
