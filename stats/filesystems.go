package stats

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/runtime"
)

const (
	// imageDirsTTL is how long the reported image file systems are used. They only
	// change with the configuration of the runtime.
	imageDirsTTL = 10 * time.Minute
	// imageDirsRetry is the interval between attempts while an older result is used.
	imageDirsRetry = time.Minute
	// imageDirsTimeout is the timeout of an attempt while an older result is used.
	imageDirsTimeout = time.Second
)

// imageDirs has a directory on the file system of images, and one on that of writable
// layers.
type imageDirs struct {
	images, containers string
	until              time.Time // when to query the runtime again; zero: not known
}

// fileSystems measures the file systems of the node.
func (p *Provider) fileSystems(ctx context.Context, u *runtime.NodeUsage) error {
	var errs []error
	stat := func(path string, into *runtime.FSUsage) {
		if path == "" {
			return
		}
		fs, err := p.cfg.Statfs(path)
		errs = append(errs, err)
		if err == nil {
			*into = fs
		}
	}
	stat(p.cfg.NodeFS, &u.NodeFS)
	if p.cfg.ImageFS == nil {
		u.ImageFS, u.ContainerFS = u.NodeFS, u.NodeFS
		return errors.Join(errs...)
	}
	at, err := p.findImageDirs(ctx)
	errs = append(errs, err)
	stat(at.images, &u.ImageFS)
	if at.containers == at.images {
		u.ContainerFS = u.ImageFS
	} else {
		stat(at.containers, &u.ContainerFS)
	}
	if at.images != "" && (u.ImageFS.At.IsZero() || u.ContainerFS.At.IsZero()) {
		p.setImageDirs(imageDirs{}) // it was unmounted or removed
	}
	return errors.Join(errs...)
}

// findImageDirs returns the image file systems. They are cached, so that a runtime that
// hangs does not prevent measurements of the node.
func (p *Provider) findImageDirs(ctx context.Context) (imageDirs, error) {
	p.mu.Lock()
	known := p.imageDirs
	p.mu.Unlock()
	if time.Now().Before(known.until) {
		return known, nil
	}
	wait := runtimeWait
	if !known.until.IsZero() {
		wait = imageDirsTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	images, containers, err := reportedImageDirs(ctx, p.cfg.ImageFS)
	switch {
	case err == nil:
		known = imageDirs{images, containers, time.Now().Add(imageDirsTTL)}
	case known.until.IsZero():
		return known, fmt.Errorf("find image file system: %w", err)
	default:
		p.cfg.Logger.Debug("image file system unknown, using the last known one", logattr.Err(err))
		known.until = time.Now().Add(imageDirsRetry)
	}
	p.setImageDirs(known)
	return known, nil
}

// reportedImageDirs returns a directory on the file system of images, and one on that of
// writable layers.
func reportedImageDirs(ctx context.Context, r ImageFSReporter) (images, containers string, err error) {
	imageFS, containerFS, err := r.ImageFS(ctx)
	if err != nil {
		return "", "", err
	}
	if len(imageFS) == 0 {
		return "", "", errors.New("runtime reports no image file system")
	}
	images = filepath.Clean(imageFS[0].Mountpoint)
	if len(containerFS) == 0 {
		return images, images, nil
	}
	return images, filepath.Clean(containerFS[0].Mountpoint), nil
}

func (p *Provider) setImageDirs(f imageDirs) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.imageDirs = f
}
