package containergc

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"sync"
	"time"
)

// logRoot does the file work of rotation, below the logs folder: no link in it
// leads out.
type logRoot struct {
	*os.Root

	maxFiles int
	// renames is held while files get other names or go, so that a rotation never
	// finds a compression half done. It is never held while data is copied or the
	// runtime is asked.
	renames *sync.Mutex
}

// errBeingMade: a part of the log's path is not there yet.
var errBeingMade = errors.New("the log is not there yet")

// size returns how long a log is. A log that is no regular file is not ours to
// rotate: a container that can write here might have put a link.
func (r logRoot) size(log string) (int64, error) {
	info, err := r.Lstat(log)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, errBeingMade
	case err != nil:
		return 0, err
	case !info.Mode().IsRegular():
		return 0, nil
	}
	return info.Size(), nil
}

// names lists the folder of a log.
func (r logRoot) names(log string) ([]string, error) {
	dir, err := r.Open(path.Dir(log))
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	return dir.Readdirnames(-1)
}

// rotate gives the log a name of the past and has the writer make a new one.
// Until reopen returns the writer goes on in the renamed file, so no line is
// lost. If reopen fails the file gets its name back, unless the writer has made
// a new one all the same.
func (r logRoot) rotate(log string, now time.Time, reopen func() error) error {
	past, err := r.renameCurrent(log, now)
	if err != nil {
		return fmt.Errorf("rotate log %s: %w", log, err)
	}
	if err := reopen(); err != nil {
		err = fmt.Errorf("reopen log %s: %w", log, err)
		// A link fails where a rename would write over a new log.
		if back := r.Link(past, log); back == nil {
			err = errors.Join(err, r.Remove(past))
		}
		return err
	}
	return nil
}

// renameCurrent makes room and renames the log. Room comes first: a full disk must not
// keep logs from getting shorter.
func (r logRoot) renameCurrent(log string, now time.Time) (past string, err error) {
	r.renames.Lock()
	defer r.renames.Unlock()
	names, err := r.names(log)
	if err != nil {
		return "", err
	}
	if names, err = r.removeDuplicateName(log, names); err != nil {
		return "", err
	}
	t := planCleanup(path.Base(log), names, r.maxFiles-2)
	if err := r.removeAll(log, t.remove); err != nil {
		return "", err
	}
	past = log + "." + nextStamp(t.last, now.UTC()).Format(stampForm)
	return past, r.Rename(log, past)
}

// removeDuplicateName takes away a past name that the log's own file has: a process was killed
// while it gave a log its name back. It returns the names that are left.
func (r logRoot) removeDuplicateName(log string, names []string) ([]string, error) {
	current, err := r.Lstat(log)
	if err != nil {
		return names, ignoreMissing(err)
	}
	for i, name := range names {
		if _, ok := stamp(path.Base(log), name); !ok {
			continue
		}
		past := path.Join(path.Dir(log), name)
		if info, err := r.Lstat(past); err == nil && os.SameFile(info, current) {
			return slices.Delete(names, i, i+1), ignoreMissing(r.Remove(past))
		}
	}
	return names, nil
}

// needsReopen reports whether the log was renamed and not reopened: the agent was
// killed in between, and the writer still writes to the newest rotated one.
func (r logRoot) needsReopen(log string) bool {
	names, err := r.names(log)
	return err == nil && !planCleanup(path.Base(log), names, r.maxFiles-1).last.IsZero()
}

// tidy removes what is too much and compresses what is old. It may run beside a
// rotation of the same log.
func (r logRoot) tidy(ctx context.Context, log string) error {
	compress, err := r.pruneRotated(log)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, name := range compress {
		errs = append(errs, r.compress(ctx, path.Join(path.Dir(log), name)))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("tidy up log %s: %w", log, err)
	}
	return nil
}

// pruneRotated removes what is too much or broken, and returns what is to be compressed.
func (r logRoot) pruneRotated(log string) (compress []string, err error) {
	r.renames.Lock()
	defer r.renames.Unlock()
	names, err := r.names(log)
	if err != nil {
		return nil, err
	}
	if names, err = r.removeDuplicateName(log, names); err != nil {
		return nil, err
	}
	t := planCleanup(path.Base(log), names, r.maxFiles-1)
	return t.compress, errors.Join(r.removeAll(log, t.remove), r.removeAll(log, t.broken))
}

func (r logRoot) removeAll(log string, names []string) error {
	var errs []error
	for _, name := range names {
		errs = append(errs, ignoreMissing(r.Remove(path.Join(path.Dir(log), name))))
	}
	return errors.Join(errs...)
}

// compress packs a file. The packed one gets its name when it is whole; only
// then does the other go. If a rotation removed it meanwhile, the packed one
// goes too.
func (r logRoot) compress(ctx context.Context, file string) error {
	info, err := r.Lstat(file)
	if err != nil || !info.Mode().IsRegular() {
		return ignoreMissing(err)
	}
	tmp := file + unfinished
	if err := ignoreMissing(r.pack(ctx, file, tmp, info.Mode().Perm())); err != nil {
		return errors.Join(err, ignoreMissing(r.Remove(tmp)))
	}
	r.renames.Lock()
	defer r.renames.Unlock()
	if _, err := r.Lstat(file); err != nil {
		return errors.Join(ignoreMissing(err), ignoreMissing(r.Remove(tmp)))
	}
	return errors.Join(r.Rename(tmp, file+compressed), r.Remove(file))
}

func (r logRoot) pack(ctx context.Context, from, to string, mode fs.FileMode) (err error) {
	in, err := r.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := r.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	packer, err := gzip.NewWriterLevel(out, gzip.BestSpeed)
	if err != nil {
		return err
	}
	if _, err := io.Copy(packer, &contextReader{ctx, in}); err != nil {
		return err
	}
	if err := packer.Close(); err != nil {
		return err
	}
	return out.Sync() // before the original goes
}

// contextReader is a reader that ends with its context.
type contextReader struct {
	ctx context.Context
	io.Reader
}

func (u *contextReader) Read(p []byte) (int, error) {
	if u.ctx.Err() != nil {
		return 0, context.Cause(u.ctx)
	}
	return u.Reader.Read(p)
}
