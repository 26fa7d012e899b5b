package stats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/sublet-dev/agent/runtime"
)

const (
	// imageDirsTTL is how long the runtime's word on where its images are is
	// taken: they move when it is set up anew.
	imageDirsTTL = 10 * time.Minute
	// foldersRetry is how soon a runtime that gave no answer is asked again, while
	// there is an older answer.
	foldersRetry = time.Minute
	// folderWait is how long it has to answer, while there is an older answer.
	folderWait = time.Second
)

// imageDirs are where images and writable layers are.
type imageDirs struct {
	images, containers string
	until              time.Time // zero: not known
}

// fileSystems reads how full the node's file systems are.
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
	at, err := p.imageFolders(ctx)
	errs = append(errs, err)
	stat(at.images, &u.ImageFS)
	if at.containers == at.images {
		u.ContainerFS = u.ImageFS
	} else {
		stat(at.containers, &u.ContainerFS)
	}
	if at.images != "" && (u.ImageFS.At.IsZero() || u.ContainerFS.At.IsZero()) {
		p.keepFolders(imageDirs{}) // it is not there any more
	}
	return errors.Join(errs...)
}

// imageFolders asks the runtime where its images are, and once it has said so
// only from time to time. A runtime that hangs does not make the node blind.
func (p *Provider) imageFolders(ctx context.Context) (imageDirs, error) {
	p.mu.Lock()
	known := p.folders
	p.mu.Unlock()
	if time.Now().Before(known.until) {
		return known, nil
	}
	wait := runtimeWait
	if !known.until.IsZero() {
		wait = folderWait
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	images, containers, err := p.cfg.ImageFS(ctx)
	switch {
	case err == nil:
		known = imageDirs{images, containers, time.Now().Add(imageDirsTTL)}
	case known.until.IsZero():
		return known, fmt.Errorf("find image file system: %w", err)
	default:
		p.cfg.Logger.Debug("the runtime does not tell where its images are; they are taken to be where they were", slog.Any("error", err))
		known.until = time.Now().Add(foldersRetry)
	}
	p.keepFolders(known)
	return known, nil
}

func (p *Provider) keepFolders(f imageDirs) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.folders = f
}
