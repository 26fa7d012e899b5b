package stats

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/sublet-dev/agent/internal/diskusage"
	"github.com/sublet-dev/agent/internal/mounts"
	"github.com/sublet-dev/agent/runtime"
)

// podDisk is the result of counting the files of one pod.
type podDisk struct {
	at      time.Time                    // when the count ended, or reached its result so far
	logs    map[string]runtime.DiskUsage // by container
	volumes map[string]runtime.VolumeUsage
	files   runtime.DiskUsage
}

// partKind is the kind of a part of a pod's files.
type partKind int

const (
	partLogs partKind = iota
	partVolume
	partFile
)

// part is a directory or file of a pod that is counted separately.
type part struct {
	kind      partKind
	name      string // of the container or the volume
	path      string
	uncounted bool
}

// walk begins to count a part. A file system that a container has mounted over a volume of the disk has none of the files of the
// node, and may never answer.
func (p part) walk() *diskusage.Walk {
	if p.kind == partVolume && !p.uncounted {
		if is, _, _ := mounts.IsRoot(p.path); is { // of what is not known, the walk reports errors
			return new(diskusage.Walk)
		}
	}
	return diskusage.New(p.path)
}

// podCount counts the files of one pod. It can be suspended and continued.
type podCount struct {
	parts []part          // those left; the first one is being counted
	walk  *diskusage.Walk // of the first part; nil: not begun
	disk  podDisk
	errs  []error
}

func newPodCount(pod *Pod) *podCount {
	c := &podCount{disk: podDisk{logs: map[string]runtime.DiskUsage{}, volumes: map[string]runtime.VolumeUsage{}}}
	for _, path := range pod.Files {
		c.parts = append(c.parts, part{kind: partFile, path: path})
	}
	if pod.LogDir != "" {
		dirs, err := logDirs(pod.LogDir)
		if err != nil {
			c.errs = append(c.errs, err)
		}
		for _, name := range slices.Sorted(maps.Keys(dirs)) {
			c.parts = append(c.parts, part{kind: partLogs, name: name, path: dirs[name]})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(pod.Volumes)) {
		v := pod.Volumes[name]
		c.parts = append(c.parts, part{kind: partVolume, name: name, path: v.Path, uncounted: v.Uncounted})
	}
	return c
}

// run continues the count until all parts are counted or ctx is done.
func (c *podCount) run(ctx context.Context) (done bool) {
	for len(c.parts) > 0 {
		if c.walk == nil {
			c.walk = c.parts[0].walk()
		}
		if !c.walk.Run(ctx) {
			return false
		}
		c.take(&c.disk, c.walk.SoFar(), time.Now())
		if err := c.walk.Err(); err != nil {
			c.errs = append(c.errs, err)
		}
		c.walk, c.parts = nil, c.parts[1:]
	}
	c.disk.at = time.Now()
	return true
}

// take adds the usage of the first part to d.
func (c *podCount) take(d *podDisk, u runtime.DiskUsage, at time.Time) {
	u.At = at
	switch p := c.parts[0]; {
	case p.kind == partLogs:
		d.logs[p.name] = u
	case p.kind == partVolume:
		d.volumes[p.name] = runtime.VolumeUsage{DiskUsage: u, Uncounted: p.uncounted}
	case d.files.At.IsZero():
		d.files = u
	default:
		d.files = d.files.Add(u)
	}
}

// soFar returns the result so far. The part that is being counted is Partial.
func (c *podCount) soFar() podDisk {
	now := time.Now()
	d := podDisk{at: now, logs: maps.Clone(c.disk.logs), volumes: maps.Clone(c.disk.volumes), files: c.disk.files}
	if c.walk != nil {
		u := c.walk.SoFar()
		u.Partial = true
		c.take(&d, u, now)
	}
	return d
}

// close closes all files. The count cannot be continued.
func (c *podCount) close() {
	if c.walk != nil {
		c.walk.Close()
	}
	c.walk, c.parts = nil, nil
}

func (c *podCount) err() error { return errors.Join(c.errs...) }

// with returns d, in which the result so far of a newer count replaces values that are
// older than since or that the newer count exceeds already.
func (d podDisk) with(newer podDisk, since time.Time) podDisk {
	if newer.at.IsZero() {
		return d
	}
	out := podDisk{at: d.at, logs: maps.Clone(newer.logs), volumes: maps.Clone(newer.volumes), files: better(d.files, newer.files, since)}
	for name, u := range d.logs {
		out.logs[name] = better(u, newer.logs[name], since)
	}
	for name, v := range d.volumes {
		b := newer.volumes[name]
		v.DiskUsage = better(v.DiskUsage, b.DiskUsage, since)
		out.volumes[name] = v
	}
	return out
}

// better returns newer, a result so far, if known is missing, older than since or
// exceeded, and known otherwise.
func better(known, newer runtime.DiskUsage, since time.Time) runtime.DiskUsage {
	switch {
	case newer.At.IsZero():
		return known
	case known.At.IsZero(), known.At.Before(since):
		return newer
	case newer.Bytes > known.Bytes || newer.Inodes > known.Inodes:
		newer.Partial = false // a lower bound above the known value is closer to the truth
		return newer
	default:
		return known
	}
}
