package logrotate

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

	"github.com/sublet-dev/agent/internal/fserr"
	"github.com/sublet-dev/agent/internal/logpath"
)

// logRoot does the file operations of rotation in the logs directory. No link can lead
// out of it.
type logRoot struct {
	*os.Root

	maxFiles int
	// renames is locked while files are renamed or removed, so that a rotation never
	// observes half a compression. It is not locked while data is copied or the runtime
	// is called.
	renames *sync.Mutex
}

// errMissing is returned for a log that does not exist: not yet, or not any more.
var errMissing = errors.New("log does not exist")

// size returns the size of a log. It is 0 for other than regular files, which are not
// rotated: a container that can write here might have created a link.
func (r logRoot) size(log string) (int64, error) {
	info, err := r.Lstat(log)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, errMissing
	case err != nil:
		return 0, err
	case !info.Mode().IsRegular():
		return 0, nil
	}
	return info.Size(), nil
}

// names lists the directory of a log.
func (r logRoot) names(log string) ([]string, error) {
	dir, err := r.Open(path.Dir(log))
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	return dir.Readdirnames(-1)
}

// rotate renames the log and has the runtime create a new one. Until reopen returns, the
// runtime writes to the renamed file, so no line is lost. If reopen fails the file gets
// its name back, unless the runtime has created a new one.
func (r logRoot) rotate(log string, now time.Time, reopen func() error) error {
	past, err := r.renameCurrent(log, now)
	if err != nil {
		return fmt.Errorf("rotate log %s: %w", log, err)
	}
	if err := reopen(); err != nil {
		err = fmt.Errorf("reopen log %s: %w", log, err)
		// A link fails where a rename would replace a new log.
		if back := r.Link(past, log); back == nil {
			err = errors.Join(err, r.Remove(past))
		}
		return err
	}
	return nil
}

// renameCurrent removes old logs and renames the current one. Removal comes first, so
// that a full disk does not prevent rotation.
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
	past = logpath.Rotated(log, nextStamp(t.last, now))
	return past, r.Rename(log, past)
}

// removeDuplicateName removes a rotated name that refers to the current log, left by a
// process that was killed while it restored the log's name. It returns the other names.
func (r logRoot) removeDuplicateName(log string, names []string) ([]string, error) {
	current, err := r.Lstat(log)
	if err != nil {
		return names, fserr.IgnoreNotExist(err)
	}
	for i, name := range names {
		if _, ok := logpath.RotatedAt(path.Base(log), name); !ok {
			continue
		}
		past := path.Join(path.Dir(log), name)
		if info, _ := r.Lstat(past); os.SameFile(info, current) { // false if it has vanished
			return slices.Delete(names, i, i+1), fserr.IgnoreNotExist(r.Remove(past))
		}
	}
	return names, nil
}

// needsReopen reports whether the log was renamed and not reopened, because the agent was
// killed in between. The runtime then still writes to the newest rotated log.
func (r logRoot) needsReopen(log string) bool {
	names, _ := r.names(log) // none if they cannot be listed
	return !planCleanup(path.Base(log), names, 0).last.IsZero()
}

// cleanup removes surplus rotated logs and compresses old ones. It may run concurrently
// with a rotation of the same log.
func (r logRoot) cleanup(ctx context.Context, log string) error {
	compress, err := r.pruneRotated(log)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, name := range compress {
		errs = append(errs, r.compress(ctx, path.Join(path.Dir(log), name)))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove rotated logs of %s: %w", log, err)
	}
	return nil
}

// pruneRotated removes surplus and temporary files, and returns the names to compress.
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
		errs = append(errs, fserr.IgnoreNotExist(r.Remove(path.Join(path.Dir(log), name))))
	}
	return errors.Join(errs...)
}

// compress compresses a file. The result is renamed when it is complete, and only then
// is the original removed. If a rotation removed the original meanwhile, the result is
// removed too.
func (r logRoot) compress(ctx context.Context, file string) error {
	info, err := r.Lstat(file)
	if err != nil || !info.Mode().IsRegular() {
		return fserr.IgnoreNotExist(err)
	}
	tmp := file + unfinished
	if err := fserr.IgnoreNotExist(r.pack(ctx, file, tmp, info.Mode().Perm())); err != nil {
		return errors.Join(err, fserr.IgnoreNotExist(r.Remove(tmp)))
	}
	r.renames.Lock()
	defer r.renames.Unlock()
	if _, err := r.Lstat(file); err != nil {
		return errors.Join(fserr.IgnoreNotExist(err), fserr.IgnoreNotExist(r.Remove(tmp)))
	}
	if err := r.Rename(tmp, file+compressed); err != nil {
		return errors.Join(err, fserr.IgnoreNotExist(r.Remove(tmp)))
	}
	return r.Remove(file)
}

func (r logRoot) pack(ctx context.Context, from, to string, mode fs.FileMode) (err error) {
	in, _, err := logpath.OpenRegular(r.Root, from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := r.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	packer, _ := gzip.NewWriterLevel(out, gzip.BestSpeed) // the level is valid
	if _, err := io.Copy(packer, &contextReader{ctx, in}); err != nil {
		return err
	}
	// The mode is that of the original whatever the umask, for those who read logs. All is
	// on disk before the original is removed.
	return errors.Join(packer.Close(), out.Chmod(mode), out.Sync())
}

// contextReader is a reader that fails when its context is done.
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
