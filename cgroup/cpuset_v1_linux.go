package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// cpuset is the controller cpuset of version 1. Its new cgroups have neither CPUs nor memory nodes, so that no process can
// join them; this one has the kernel copy those of the parent. The library's own controller writes them itself, for which the
// kernel divides the machine into scheduling domains each time, and reads those of all parents for every pod.
type cpuset struct{ root string }

func (c *cpuset) Name() cgroup1.Name { return cgroup1.Cpuset }

// Create creates a cgroup and its missing parents.
func (c *cpuset) Create(path string, _ *specs.LinuxResources) error {
	return c.ensure(filepath.Join(c.root, path))
}

func (c *cpuset) ensure(dir string) error {
	if dir == c.root {
		return nil
	}
	err := unix.Mkdir(dir, 0o755)
	if errors.Is(err, fs.ErrNotExist) {
		if err := c.ensure(filepath.Dir(dir)); err != nil {
			return err
		}
		err = unix.Mkdir(dir, 0o755)
	}
	switch {
	case err == nil:
		// For the cgroups below, which have this flag as well.
		if err := writeControl(filepath.Join(dir, "cgroup.clone_children"), "1"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	case !errors.Is(err, fs.ErrExist):
		return &fs.PathError{Op: "mkdir", Path: dir, Err: err}
	}
	return c.inherit(dir, "cpuset.cpus", "cpuset.mems")
}

// inherit copies files from the parent that are empty: another program has made the parent, so that the kernel has not.
func (c *cpuset) inherit(dir string, files ...string) error {
	if dir == c.root {
		return nil
	}
	for _, name := range files {
		path := filepath.Join(dir, name)
		empty, err := isEmptyControl(path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && !empty {
			continue
		}
		if err != nil {
			return err
		}
		if err := c.inherit(filepath.Dir(dir), name); err != nil {
			return err
		}
		value, err := os.ReadFile(filepath.Join(filepath.Dir(dir), name))
		if err != nil {
			return err
		}
		if err := writeControl(path, string(value)); err != nil {
			return err
		}
	}
	return nil
}
