package podlogs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/logattr"
)

// ErrNoLog is wrapped by the error for a container without a log.
var ErrNoLog = errors.New("no log; the container has not started, or its logs were removed")

// Config describes a Reader.
type Config struct {
	// LogsDir is the directory with the logs of all pods: /var/log/pods. Required
	LogsDir string
	// Watch calls notify, which does not block, after each change of a file in a directory, until stop is called.
	// It may miss some. Default: inotify or what the system has for it
	Watch  func(dir string, notify func()) (stop func(), err error)
	Logger *slog.Logger // default: discard
}

// Log is the log of one container, that is of one attempt at running it.
type Log struct {
	// Path is that of the current file in the logs directory:
	// <namespace>_<name>_<uid>/<container>/<attempt>.log.
	Path string
	// IsRunning reports whether the container may still write. It ends a copy that
	// follows. It must not block. Default: it always does
	IsRunning func() bool
}

// Reader reads the logs of containers. Its methods can be called concurrently.
type Reader struct{ cfg Config }

// New returns a Reader. It does no I/O.
func New(cfg Config) (*Reader, error) {
	if cfg.LogsDir == "" {
		return nil, errors.New("podlogs: Config.LogsDir required")
	}
	if cfg.Watch == nil {
		cfg.Watch = watch
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Reader{cfg}, nil
}

// Copy writes a log to stdout and stderr, oldest entry first. Both may be the same writer,
// and one that is nil is not written to. Copy returns at the end of what there was
// when it began, or after LimitBytes. With Follow it returns when the container has ended
// and all was written, or with the cause of ctx. Previous and Container are the choice of the caller:
// see Find. What was read is written before Copy waits for more, if only nothing: a Write of
// no bytes tells that the log is there.
func (r *Reader) Copy(ctx context.Context, stdout, stderr io.Writer, log Log, o *corev1.PodLogOptions) error {
	if err := Validate(o); err != nil {
		return err
	}
	if !filepath.IsLocal(log.Path) {
		return fmt.Errorf("read log %q: %w", log.Path, fs.ErrInvalid)
	}
	c := &copier{ctx: ctx, log: log, reader: r, out: newPrinter(stdout, stderr, o, time.Now()), follow: o.Follow, lines: newLineReader(nil), first: stdout}
	if stdout == nil {
		c.first = stderr
	}
	err := c.copy(o.TailLines)
	if !errors.Is(err, errLimit) && err != nil {
		return fmt.Errorf("read log %s: %w", log.Path, err)
	}
	return c.out.flush()
}

// copier is one call of Copy.
type copier struct {
	ctx    context.Context
	log    Log
	reader *Reader
	out    *printer
	lines  *lineReader
	first  io.Writer // of the two; may be nil
	follow bool
	dir    *logDir
	wake   <-chan struct{}
}

func (c *copier) copy(tailLines *int64) error {
	stop, err := c.open()
	defer stop()
	if err != nil {
		return err
	}
	older, newest, err := c.snapshot()
	if err != nil {
		return err
	}
	defer func() { closeFile(newest) }()
	if c.follow && c.first != nil {
		if _, err := c.first.Write(nil); err != nil { // a server answers its client before the first line
			return err
		}
	}
	end := newest.info.Size()
	start := position{}
	if tailLines != nil {
		if start, err = c.tailStart(older, newest, end, *tailLines); err != nil {
			return err
		}
	}
	for i := start.file; i < len(older); i++ {
		if err := c.copyOlder(older[i], start); err != nil {
			return err
		}
		start.offset = 0
	}
	if c.follow {
		next, err := c.followFrom(newest, start.offset)
		newest = next
		return err
	}
	return c.copyNewest(newest, start.offset, end)
}

// open opens the directory of the log and, to follow it, watches it.
func (c *copier) open() (stop func(), err error) {
	dir, err := openLogDir(c.reader.cfg.LogsDir, filepath.ToSlash(c.log.Path))
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w (%w)", ErrNoLog, err) // one line, as it is shown to people
	}
	if err != nil {
		return func() {}, err
	}
	c.dir = dir
	closeDir := func() { _ = c.dir.Close() }
	if !c.follow {
		return closeDir, nil
	}
	wake := make(chan struct{}, 1)
	unwatch, err := c.reader.cfg.Watch(filepath.Join(c.reader.cfg.LogsDir, filepath.Dir(c.log.Path)), notifier(wake))
	if err != nil {
		c.reader.cfg.Logger.LogAttrs(c.ctx, slog.LevelDebug, "falling back to polling", slog.String("log", c.log.Path), logattr.Err(err))
		return closeDir, nil
	}
	c.wake = wake
	return func() {
		unwatch()
		closeDir()
	}, nil
}

// snapshot returns the files of the log. To follow it, it waits for the first one.
func (c *copier) snapshot() (older []rotation, newest *file, err error) {
	for {
		running := c.follow && c.isRunning()
		older, newest, err = c.dir.snapshot(rotation{})
		if err != nil || newest != nil {
			return older, newest, err
		}
		if !running {
			return nil, nil, ErrNoLog
		}
		if err := c.wait(pollPeriod); err != nil {
			return nil, nil, err
		}
	}
}

// copyOlder copies a rotated file. One that rotation has removed meanwhile, or that is
// damaged, is left out.
func (c *copier) copyOlder(r rotation, start position) error {
	f, err := c.dir.openRotated(r)
	if err != nil {
		return nil
	}
	defer closeFile(f)
	if _, err := io.CopyN(io.Discard, f.text, start.offset); err != nil {
		return nil
	}
	c.lines.reset(f.text)
	if err := c.drain(); err != nil {
		return err
	}
	return c.finish()
}

// copyNewest copies a part of the newest file. It may grow meanwhile.
func (c *copier) copyNewest(f *file, from, to int64) error {
	c.lines.reset(f.text)
	if !f.isCompressed() {
		c.lines.reset(io.NewSectionReader(f, from, to-from))
	} else if _, err := io.CopyN(io.Discard, f.text, from); err != nil {
		return nil //nolint:nilerr // a damaged rotated file
	}
	if err := c.drain(); err != nil {
		return err
	}
	return c.finish()
}

// drain prints what can be read now.
func (c *copier) drain() error {
	for {
		piece, isEnd, err := c.lines.next()
		if err != nil {
			return c.ignoreReadError(err)
		}
		if err := c.out.printPiece(piece, isEnd); err != nil {
			return err
		}
		if c.ctx.Err() != nil {
			return context.Cause(c.ctx)
		}
	}
}

// ignoreReadError returns nil: at the end of a file, and where one is damaged, the log
// goes on in the next one.
func (c *copier) ignoreReadError(err error) error {
	if !errors.Is(err, io.EOF) {
		c.reader.cfg.Logger.LogAttrs(c.ctx, slog.LevelDebug, "reading log failed", slog.String("log", c.log.Path), logattr.Err(err))
	}
	return nil
}

// finish prints an entry that the end of a file has cut off.
func (c *copier) finish() error {
	rest := c.lines.rest()
	if len(rest) == 0 && !c.out.inEntry {
		return nil
	}
	return c.out.printPiece(rest, true)
}

func (c *copier) isRunning() bool { return c.log.IsRunning == nil || c.log.IsRunning() }
