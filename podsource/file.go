package podsource

import (
	"context"
	"io/fs"
	"log/slog"
	"path"
	"path/filepath"
	"sync"
	"time"

	"github.com/sublet-dev/agent/podspec"
)

// Defaults of File.
const (
	DefaultRescan = 20 * time.Second
	// DefaultMaxBytes is how large a manifest or an answer may be.
	DefaultMaxBytes = podspec.DefaultMaxBytes
)

// How long a file must have been left alone before it is read, and how long
// reading it can be put off by further changes.
const (
	quiet  = 15 * time.Millisecond
	atMost = 60 * time.Millisecond
)

// A Notifier tells that something may have changed below a path. It is a mere
// hint: with one that never speaks, changes are found by rescans.
type Notifier interface {
	// Notify calls hint when it has begun to watch, and whenever anything that
	// the path leads to may have changed, until ctx ends; it returns nil then.
	Notify(ctx context.Context, path string, hint func()) error
}

// FileOption changes what File does by default.
type FileOption func(*file)

// FileRescan sets how often everything is read again, hint or not [20 s].
func FileRescan(every time.Duration) FileOption { return func(f *file) { f.rescan = every } }

// FileMaxBytes sets how large a manifest may be [10 MiB].
func FileMaxBytes(n int) FileOption { return func(f *file) { f.limit = n } }

// FileLenient passes over unknown and repeated fields, as the kubelet does,
// where they are a fault of the manifest otherwise.
func FileLenient() FileOption { return func(f *file) { f.lenient = true } }

// FileFS reads from fsys, in which the path given to File must be a valid one,
// and without notices unless FileNotifier brings them.
func FileFS(fsys fs.FS) FileOption {
	return func(f *file) { f.fsys, f.notifier = fsys, nil }
}

// FileNotifier sets who tells about changes; nil is nobody. The default is the
// kernel.
func FileNotifier(n Notifier) FileOption { return func(f *file) { f.notifier = n } }

// FileLogger sets where it is told that there are no notices of changes. What is
// wrong with manifests is not logged but handed over as faults.
func FileLogger(l *slog.Logger) FileOption { return func(f *file) { f.logger = l } }

// File returns a source of the manifests in a folder: every regular file whose
// name ends in .yaml, .yml or .json and does not begin with a dot; or of the one
// file that the path names. Symbolic links are followed. Files may hold several
// documents and Lists, and ConfigMaps and Secrets beside the pods.
//
// A change is taken up within 100 ms where the kernel tells of it, else at the
// next rescan. A file that cannot be read, whole or in part, stands for what it
// last stood for; so does a folder that is missing. Only a file that is gone
// from its folder ends its pods.
func File(path string, opts ...FileOption) Source {
	f := &file{path: path, fsys: hostFS{}, notifier: kernelNotifier{}, rescan: DefaultRescan}
	for _, opt := range opts {
		opt(f)
	}
	if _, host := f.fsys.(hostFS); host {
		if abs, err := filepath.Abs(f.path); err == nil {
			f.path = abs // origins must not depend on where the agent was started
		}
	} else {
		f.path = clean(f.path)
	}
	if f.rescan <= 0 {
		f.rescan = DefaultRescan
	}
	if f.limit <= 0 {
		f.limit = DefaultMaxBytes
	}
	if f.logger == nil {
		f.logger = slog.New(slog.DiscardHandler)
	}
	return f
}

func clean(p string) string { return path.Clean(p) }

type file struct {
	path     string
	fsys     fs.FS
	notifier Notifier
	rescan   time.Duration
	limit    int
	lenient  bool
	logger   *slog.Logger
}

// Watch fulfils Source.
func (f *file) Watch(ctx context.Context, hand func(Set)) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	hints := make(chan struct{}, 1)
	if f.notifier != nil {
		wg.Go(func() { f.watchNotifier(ctx, hints) })
	}
	s := newScan(f)
	scan := func(everything bool) (again bool) {
		changed, again := s.run(everything, time.Now())
		if changed {
			hand(s.set())
		}
		return again
	}
	rescan := time.NewTicker(f.rescan)
	defer rescan.Stop()
	settled := time.NewTimer(quiet)
	settled.Stop()
	defer settled.Stop()
	var since time.Time // of the first hint that has not been followed yet
	wait := func() {
		now := time.Now()
		if since.IsZero() {
			since = now
		}
		settled.Reset(max(0, min(quiet, since.Add(atMost).Sub(now))))
	}
	if scan(true) {
		wait()
	}
	for {
		again := false
		select {
		case <-ctx.Done():
			return nil
		case <-hints:
			wait()
		case <-settled.C:
			since = time.Time{}
			again = scan(false)
		case <-rescan.C:
			again = scan(true)
		}
		if again {
			wait()
		}
	}
}

// watchNotifier hands on what the notifier tells, and begins anew when it breaks.
func (f *file) watchNotifier(ctx context.Context, hints chan<- struct{}) {
	hint := func() {
		select {
		case hints <- struct{}{}:
		default: // one is enough
		}
	}
	retry := time.NewTicker(f.rescan)
	defer retry.Stop()
	told := false
	for {
		err := f.notifier.Notify(ctx, f.path, hint)
		if ctx.Err() != nil {
			return
		}
		if !told {
			told = true
			f.logger.LogAttrs(ctx, slog.LevelWarn, "no notices of changed manifests, rescanning instead",
				slog.String("path", f.path), slog.Duration("every", f.rescan), slog.Any("error", err))
		}
		select {
		case <-ctx.Done():
			return
		case <-retry.C:
		}
	}
}
