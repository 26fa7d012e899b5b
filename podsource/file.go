package podsource

import (
	"context"
	"io/fs"
	"log/slog"
	"path"
	"path/filepath"
	"sync"
	"time"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/notify"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/podspec"
)

// DefaultMaxBytes is the default of FileMaxBytes and of HTTPConfig.MaxBytes.
const DefaultMaxBytes = podspec.DefaultMaxBytes

// defaultRescan is the default of FileRescan.
const defaultRescan = 20 * time.Second

// Notifications are debounced: files are read settleDelay after the last one, and at
// most maxSettleDelay after the first one.
const (
	settleDelay    = 15 * time.Millisecond
	maxSettleDelay = 60 * time.Millisecond
)

// A Notifier reports that something may have changed below a path. It only makes
// changes visible sooner: without notifications they are found by rescans.
type Notifier interface {
	// Notify calls notify when it has begun to watch, and whenever anything that
	// the path leads to may have changed. It blocks until ctx is done and then
	// returns nil.
	Notify(ctx context.Context, path string, notify func()) error
}

// FileOption is an option of File.
type FileOption func(*file)

// FileRescan sets the period in which all files are read again without a notification.
// Default: 20s.
func FileRescan(period time.Duration) FileOption { return func(f *file) { f.rescan = period } }

// FileMaxBytes sets the maximum size of a manifest. Default: 10 MiB.
func FileMaxBytes(n int) FileOption { return func(f *file) { f.limit = n } }

// FileLenient ignores unknown and duplicate fields, like the kubelet. By default they
// are errors.
func FileLenient() FileOption { return func(f *file) { f.lenient = true } }

// FileFS reads from fsys, in which the path given to File must be valid. There are no
// notifications unless FileNotifier is used, too.
func FileFS(fsys fs.FS) FileOption {
	return func(f *file) { f.fsys, f.notifier = fsys, nil }
}

// FileNotifier sets the Notifier; nil disables notifications. Default: inotify.
func FileNotifier(n Notifier) FileOption { return func(f *file) { f.notifier = n } }

// FileLogger sets the logger for failures of the Notifier. Errors of manifests are not
// logged but delivered in Set.Errors.
func FileLogger(l *slog.Logger) FileOption { return func(f *file) { f.logger = l } }

// File returns a source of the manifests in a directory: every regular file whose name
// ends in .yaml, .yml or .json and does not begin with a dot. If path is a file, it is
// the only manifest. Symbolic links are followed. A file may contain several documents
// and Lists, and ConfigMaps and Secrets besides pods.
//
// Changes are delivered within 100 ms of a notification, otherwise at the next rescan.
// An unreadable or invalid file keeps its last valid pods, and so does a missing
// directory. Only the removal of a file from its directory removes its pods.
func File(path string, opts ...FileOption) Source {
	f := &file{path: path, fsys: hostFS{}, notifier: kernelNotifier{}, rescan: defaultRescan}
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
		f.rescan = defaultRescan
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

// Watch implements Source.
func (f *file) Watch(ctx context.Context, deliver func(Set)) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	notifications := make(chan struct{}, 1)
	if f.notifier != nil {
		wg.Go(func() { f.watchNotifier(ctx, notifications) })
	}
	s := newScan(f)
	scan := func(all bool) (rescanSoon bool) {
		changed, rescanSoon := s.run(all, time.Now())
		if changed {
			deliver(s.set())
		}
		return rescanSoon
	}
	rescan := time.NewTicker(f.rescan)
	defer rescan.Stop()
	settle := time.NewTimer(settleDelay)
	settle.Stop()
	defer settle.Stop()
	var since time.Time // of the first notification that was not handled yet
	debounce := func() {
		now := time.Now()
		if since.IsZero() {
			since = now
		}
		settle.Reset(max(0, min(settleDelay, since.Add(maxSettleDelay).Sub(now))))
	}
	if scan(true) {
		debounce()
	}
	for {
		rescanSoon := false
		select {
		case <-ctx.Done():
			return nil
		case <-notifications:
			debounce()
		case <-settle.C:
			since = time.Time{}
			rescanSoon = scan(false)
		case <-rescan.C:
			rescanSoon = scan(true)
		}
		if rescanSoon {
			debounce()
		}
	}
}

// watchNotifier forwards notifications, and restarts the notifier when it fails.
func (f *file) watchNotifier(ctx context.Context, notifications chan<- struct{}) {
	retry := time.NewTicker(f.rescan)
	defer retry.Stop()
	logged := false
	for {
		err := safe.Call(f.logger, "notify of changes of "+f.path, func() error {
			return f.notifier.Notify(ctx, f.path, func() { notify.Send(notifications) })
		})
		if ctx.Err() != nil {
			return
		}
		if !logged {
			logged = true
			f.logger.LogAttrs(ctx, slog.LevelWarn, "file notification unavailable, falling back to rescans",
				slog.String("path", f.path), slog.Duration("period", f.rescan), logattr.Err(err))
		}
		select {
		case <-ctx.Done():
			return
		case <-retry.C:
		}
	}
}
