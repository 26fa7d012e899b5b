package podlogs

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"time"
)

const (
	// pollPeriod is how often a log is read that is not watched, and how often the
	// container is asked after.
	pollPeriod = 500 * time.Millisecond
	// settlePeriod is the time after the creation of a new file during which the runtime
	// may still write to the old one what it had received before.
	settlePeriod = 200 * time.Millisecond
)

// followFrom copies a log from an offset in its newest file until the container has
// ended. It returns the last file, still open.
func (c *copier) followFrom(f *file, offset int64) (last *file, err error) {
	if err := c.openAt(f, offset); err != nil {
		return f, err
	}
	var settled time.Time // when f is complete, once another file exists
	for {
		running := c.isRunning() // before the read: what an ended container has written is there
		if err := c.drainGrown(f); err != nil {
			return f, err
		}
		next, isComplete, err := c.dir.next(f)
		if err != nil {
			return f, err
		}
		if next == nil && !c.dir.isNewest(f) && c.followDir() {
			continue
		}
		now := time.Now()
		if next != nil && settled.IsZero() {
			settled = now.Add(settlePeriod)
		}
		switch {
		case next == nil && !running:
			return f, c.finish()
		case next == nil:
			settled = time.Time{}
			err = c.wait(pollPeriod)
		case isComplete, !running, !now.Before(settled):
			if f, err = c.advance(f, next); err == nil {
				settled = time.Time{}
			}
		default:
			closeFile(next)
			err = c.wait(settled.Sub(now))
		}
		if err != nil {
			return f, err
		}
	}
}

// followDir opens the directory of the log that is at its path now, and reports whether it is another one: the logs were deleted,
// and the runtime has made a directory for new ones.
func (c *copier) followDir() bool {
	dir, err := openLogDir(c.reader.cfg.LogsDir, filepath.ToSlash(c.log.Path))
	if err != nil {
		return false
	}
	was, wasErr := c.dir.Stat(".")
	is, err := dir.Stat(".")
	if wasErr != nil || err != nil || os.SameFile(was, is) {
		_ = dir.Close()
		return false
	}
	_ = c.dir.Close()
	c.dir = dir
	return true
}

// advance goes on with the next file, after what was written to f since the last read.
func (c *copier) advance(f, next *file) (*file, error) {
	if err := c.drainGrown(f); err != nil {
		closeFile(next)
		return f, err
	}
	if err := c.finish(); err != nil {
		closeFile(next)
		return f, err
	}
	closeFile(f)
	return next, c.openAt(next, 0)
}

// openAt begins to read a file.
func (c *copier) openAt(f *file, offset int64) error {
	if f.isCompressed() {
		_, err := io.CopyN(io.Discard, f.text, offset)
		c.lines.reset(f.text)
		return c.ignoreReadErrorIf(err)
	}
	_, err := f.Seek(offset, io.SeekStart)
	c.lines.reset(f.File)
	return err
}

func (c *copier) ignoreReadErrorIf(err error) error {
	if err == nil {
		return nil
	}
	return c.ignoreReadError(err)
}

// drainGrown prints what was written since the last read, and writes it out. A file that
// was truncated is read from its beginning.
func (c *copier) drainGrown(f *file) error {
	if !f.isCompressed() {
		at, err := f.Seek(0, io.SeekCurrent)
		if err != nil {
			return err
		}
		info, err := f.Stat()
		if err != nil {
			return err
		}
		if info.Size() < at {
			if err := c.openAt(f, 0); err != nil {
				return err
			}
			c.out.inEntry = false
		}
	}
	if err := c.drain(); err != nil {
		return err
	}
	return c.out.flush()
}

// wait waits for a change of the log, at most so long.
func (c *copier) wait(d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-c.ctx.Done():
		return context.Cause(c.ctx)
	case <-c.wake:
	case <-t.C:
	}
	return nil
}
