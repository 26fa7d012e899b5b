package stats

import (
	"context"
	"time"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/runtime"
)

// imageUse is what the runtime last reported about the size of its images and layers. It may
// have to count their files, so it is asked again after summaryAge.
type imageUse struct {
	at                 time.Time // of the answer; zero: none
	images, containers []runtime.FSUsage
}

// addImageUsage adds what the runtime uses of its file systems. It stays unknown if the runtime
// does not say. A runtime without file systems for containers counts both together, as for a
// kubelet.
func (p *Provider) addImageUsage(ctx context.Context, s *Summary) {
	if p.cfg.ImageFS == nil || s.Node.Runtime == nil {
		return
	}
	use := p.lastImageUse(ctx)
	images, containers := use.images, use.containers
	if len(containers) == 0 {
		containers = images
	}
	setUsed(s.Node.Runtime.ImageFS, images)
	setUsed(s.Node.Runtime.ContainerFS, containers)
}

// lastImageUse returns an answer of the runtime that is not older than summaryAge.
func (p *Provider) lastImageUse(ctx context.Context) imageUse {
	p.mu.Lock()
	last := p.imageUse
	p.mu.Unlock()
	if !last.at.IsZero() && time.Since(last.at) < summaryAge {
		return last
	}
	ctx, cancel := context.WithTimeout(ctx, imageDirsTimeout)
	defer cancel()
	images, containers, err := p.cfg.ImageFS.ImageFS(ctx)
	if err != nil {
		p.cfg.Logger.Debug("size of images unknown", logattr.Err(err))
		return imageUse{}
	}
	now := imageUse{time.Now(), images, containers}
	p.mu.Lock()
	p.imageUse = now
	p.mu.Unlock()
	return now
}

// setUsed sets what is used of fs to the first of the reported values. What is not measured has
// no time.
func setUsed(fs *FSStats, reported []runtime.FSUsage) {
	if fs == nil || len(reported) == 0 || reported[0].At.IsZero() {
		return
	}
	used := reported[0]
	fs.UsedBytes = &used.UsedBytes
	if used.InodesUsed > 0 {
		fs.InodesUsed = &used.InodesUsed
	}
}

// unusedStats is fsStats without what is used, which others may do as well.
func unusedStats(fs runtime.FSUsage) *FSStats {
	s := fsStats(fs)
	if s != nil {
		s.UsedBytes, s.InodesUsed = nil, nil
	}
	return s
}
