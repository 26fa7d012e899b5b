package eviction_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/runtime"
)

// imageDisk is a file system for images and writable layers beside that of the node, and the
// reclaimer of images.
type imageDisk struct {
	*nodeSimulator
	fs        runtime.FSUsage // without its time
	unknown   bool
	shares    bool // its space with the file system of the node, as a subvolume does
	reclaimed int
	frees     uint64
}

func (d *imageDisk) Usage(ctx context.Context, since time.Time) (runtime.NodeUsage, error) {
	u, err := d.nodeSimulator.Usage(ctx, since)
	d.mu.Lock()
	defer d.mu.Unlock()
	u.ImageFS = d.fs
	u.ImageFS.At = u.NodeFS.At
	switch {
	case d.unknown:
		u.ImageFS = runtime.FSUsage{}
	case d.shares:
		u.ImageFS.AvailableBytes = u.NodeFS.AvailableBytes + 5*mib // it was measured a moment later
	}
	u.ContainerFS = u.ImageFS
	return u, err
}

func (d *imageDisk) RemovesOnlyImages() bool { return true }

func (d *imageDisk) Reclaim(context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reclaimed++
	d.fs.AvailableBytes += d.frees
	return nil
}

// EV-4: images are removed only where that may help.
func TestManager_ReclaimsImagesWhereTheyAre(t *testing.T) {
	own := runtime.FSUsage{Mountpoint: "/images", CapacityBytes: 1000 * mib, AvailableBytes: 900 * mib}
	full := runtime.FSUsage{Mountpoint: "/images", CapacityBytes: 1000 * mib, AvailableBytes: 300 * mib}
	same := runtime.FSUsage{Mountpoint: "/", CapacityBytes: 1000 * mib, AvailableBytes: 900 * mib}
	for name, tc := range map[string]struct {
		fs              runtime.FSUsage
		unknown, shares bool
		want            int
	}{
		"images on a disk of their own":                 {fs: own},
		"which is short as well":                        {fs: full},
		"on another file system of the same space":      {fs: own, shares: true, want: 2},
		"on the file system of the node":                {fs: same, want: 2},
		"on a file system of which nothing is measured": {unknown: true, want: 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSim()
			d := &imageDisk{nodeSimulator: s, fs: tc.fs, unknown: tc.unknown, shares: tc.shares}
			cfg := eviction.Config{Thresholds: hardThresholds("nodefs.available<30%"), Reclaimers: []eviction.Reclaimer{s, d}}
			bubbleOver(t, s, d, cfg, func(t *testing.T, _ *eviction.Manager) {
				s.add("a", "", 0, 0).logs = 400 * mib
				s.add("b", "", 0, 0).logs = 395 * mib
				s.pause(time.Second)
				assert.Equal(t, []string{"a"}, s.victims())
				assert.Equal(t, 1, s.reclaim)
				assert.Equal(t, min(tc.want, 1), d.reclaimed)
				s.add("c", "", 0, 0).logs = 500 * mib // a later shortage
				s.pause(20 * time.Second)
				assert.Equal(t, []string{"a", "c"}, s.victims())
				assert.Equal(t, tc.want, d.reclaimed)
			})
		})
	}
}

// EV-4: images are removed before a pod is evicted for their own disk, although that of the node is
// short, too, and was reclaimed before.
func TestManager_ReclaimsImagesWhileNodeIsShort(t *testing.T) {
	s := newSim()
	d := &imageDisk{nodeSimulator: s, fs: runtime.FSUsage{Mountpoint: "/images", CapacityBytes: 1000 * mib, AvailableBytes: 900 * mib}, frees: 500 * mib}
	cfg := eviction.Config{
		Thresholds: hardThresholds("nodefs.available<30%,imagefs.available<15%"), Reclaimers: []eviction.Reclaimer{s, d},
	}
	bubbleOver(t, s, d, cfg, func(t *testing.T, m *eviction.Manager) {
		s.images = 750 * mib // of no pod: it stays short
		s.onReclaim = func() { s.images = 750 * mib }
		s.add("a", "", 0, 0).layer = 50 * mib
		s.pause(15 * time.Second)
		assert.Empty(t, s.victims())
		assert.Equal(t, 0, d.reclaimed)
		d.fs.AvailableBytes = 120 * mib // less than 15 %, which the pod's layer would make up for
		m.RequestMeasurement()
		s.pause(15 * time.Second)
		assert.Empty(t, s.victims())
		assert.Equal(t, 1, d.reclaimed)
	})
}
