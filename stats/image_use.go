package stats

import (
	"context"
	"time"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/runtime"
)

// imageUse is what the runtime last reported about the size of its images and layers. It may
// have to count their files, so it is asked again after summaryAge, whether it answered or not.
type imageUse struct {
	at                 time.Time // of the last attempt; zero: none
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

// lastImageUse returns the last answer of the runtime, and asks it at most once in summaryAge.
func (p *Provider) lastImageUse(ctx context.Context) imageUse {
	p.mu.Lock()
	last := p.imageUse
	p.mu.Unlock()
	if !last.at.IsZero() && time.Since(last.at) < summaryAge {
		return last
	}
	wait := runtimeWait
	if !last.at.IsZero() {
		wait = imageDirsTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	images, containers, err := p.cfg.ImageFS.ImageFS(ctx)
	if err == nil {
		last = imageUse{images: images, containers: containers}
	} else {
		p.cfg.Logger.Debug("size of images unknown, using the last known one", logattr.Err(err))
	}
	last.at = time.Now()
	p.mu.Lock()
	p.imageUse = last
	p.mu.Unlock()
	return last
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
