package pluginregistry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/notify"
	"github.com/sublet-dev/agent/internal/selinux"
)

// Plugin is a plugin as it describes itself.
type Plugin struct {
	Socket   string   // of the registration
	Type     string   // such as CSIPlugin
	Name     string   // of the driver
	Endpoint string   // socket of its service
	Versions []string // of its API
}

// Handler gets the plugins of one type. Its methods are called from several goroutines,
// but for one socket one after the other; Deregister is called for each plugin that
// Register has accepted.
type Handler interface {
	// Register makes a plugin available. The error rejects it: the plugin gets
	// it, and is tried again later. ctx is done when the registration ends.
	Register(ctx context.Context, p Plugin) error
	// Deregister is called when the socket is gone.
	Deregister(ctx context.Context, p Plugin)
}

// Config describes a Registry.
type Config struct {
	// Dir is the absolute path of the directory of the sockets. It is created if it is
	// missing, and on a node with SELinux labelled for all containers. Sockets in directories below it count, too. Required.
	Dir string
	// Handlers get the plugins, by type. Others are rejected. Required.
	Handlers map[string]Handler
	// RescanPeriod is the time after which Dir is read without a notification of the
	// kernel. Default: 5 seconds.
	RescanPeriod time.Duration
	// CallTimeout bounds a call of a plugin. Default: 10 seconds.
	CallTimeout time.Duration
	// RetryPeriod is the time between attempts to register a plugin: it doubles up to
	// ten times the first. Default: 1 second.
	RetryPeriod time.Duration
	Logger      *slog.Logger // default: discard
}

// Registry watches for plugins.
type Registry struct {
	cfg      Config
	shareDir func(path string) error // selinux.ShareDir, except in tests

	// By path; only Run uses them.
	known   map[string]*socket
	removed map[string]<-chan struct{} // closed when the plugin that was there is deregistered
	unread  map[string]bool            // what could not be read in the last scan
}

// New returns a Registry. It checks cfg and does no I/O.
func New(cfg Config) (*Registry, error) {
	var errs []error
	if !filepath.IsAbs(cfg.Dir) {
		errs = append(errs, fmt.Errorf("pluginregistry: Config.Dir: %q must be an absolute path", cfg.Dir))
	}
	if len(cfg.Handlers) == 0 {
		errs = append(errs, errors.New("pluginregistry: Config.Handlers: required"))
	}
	for name, d := range map[string]time.Duration{"RescanPeriod": cfg.RescanPeriod, "CallTimeout": cfg.CallTimeout, "RetryPeriod": cfg.RetryPeriod} {
		if d < 0 {
			errs = append(errs, fmt.Errorf("pluginregistry: Config.%s: %s must be at least 0", name, d))
		}
	}
	cfg.RescanPeriod, cfg.CallTimeout = cmp.Or(cfg.RescanPeriod, 5*time.Second), cmp.Or(cfg.CallTimeout, 10*time.Second)
	cfg.RetryPeriod = cmp.Or(cfg.RetryPeriod, time.Second)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Registry{cfg: cfg, shareDir: selinux.ShareDir, known: map[string]*socket{}, removed: map[string]<-chan struct{}{}}, errors.Join(errs...)
}

// socket is the goroutine of one socket.
type socket struct {
	id   fileID
	stop context.CancelFunc
	done <-chan struct{} // closed when its plugin is deregistered
}

// fileID tells a socket from another one that has replaced it.
type fileID struct {
	inode, device uint64
	modTime       time.Time
}

// Run registers plugins until ctx is done, and returns nil then: plugins stay registered.
// An error means that the directory cannot be made.
func (r *Registry) Run(ctx context.Context) error {
	if err := os.MkdirAll(r.cfg.Dir, 0o750); err != nil {
		return fmt.Errorf("pluginregistry: %w", err)
	}
	if err := r.shareDir(r.cfg.Dir); err != nil {
		r.cfg.Logger.Warn("plugin directory not labelled for containers", slog.String("path", r.cfg.Dir), logattr.Err(err))
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	changed := make(chan struct{}, 1)
	wg.Go(func() { r.watch(ctx, changed) })
	rescan := time.NewTicker(r.cfg.RescanPeriod)
	defer rescan.Stop()
	for {
		r.scan(ctx, &wg)
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-rescan.C:
		}
	}
}

// watch signals changes of the directory. Without it rescans find them.
func (r *Registry) watch(ctx context.Context, changed chan<- struct{}) {
	w, err := fsnotify.NewWatcher()
	if err == nil {
		defer func() { _ = w.Close() }() // only read
		err = w.Add(r.cfg.Dir)
	}
	if err != nil {
		r.cfg.Logger.Warn("file notification unavailable, falling back to rescans", slog.String("path", r.cfg.Dir), logattr.Err(err))
		return
	}
	notify.Send(changed) // what came before
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-w.Events:
			if !ok {
				return
			}
			notify.Send(changed)
		case err := <-w.Errors: // a rescan finds what was missed
			r.cfg.Logger.Debug("file notification failed", logattr.Err(err))
		}
	}
}

// scan compares the sockets with the known ones.
func (r *Registry) scan(ctx context.Context, wg *sync.WaitGroup) {
	found, err := r.sockets()
	if err != nil {
		r.cfg.Logger.Warn("listing plugin sockets failed", slog.String("path", r.cfg.Dir), logattr.Err(err))
		return // what cannot be read is not gone
	}
	maps.DeleteFunc(r.removed, func(_ string, done <-chan struct{}) bool { return isClosed(done) })
	for path, s := range r.known {
		if id, ok := found[path]; !ok || id != s.id {
			s.stop()
			r.removed[path] = s.done
			delete(r.known, path)
		}
	}
	for _, path := range slices.Sorted(maps.Keys(found)) {
		if r.known[path] != nil {
			continue
		}
		one, cancel := context.WithCancel(context.WithoutCancel(ctx))
		done, before := make(chan struct{}), r.removed[path] // nil: nothing to wait for
		r.known[path] = &socket{found[path], cancel, done}
		wg.Go(func() {
			defer close(done)
			defer cancel()
			if before != nil {
				<-before
			}
			r.serve(ctx, one, path)
		})
	}
}

func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// sockets returns the sockets in the directory, and the links to sockets. Names that begin with a dot
// are left out, as in the kubelet. Known ones below what cannot be read are among them: they are not gone.
func (r *Registry) sockets() (map[string]fileID, error) {
	found, unread := map[string]fileID{}, map[string]bool{}
	keep := func(path string, err error) {
		if errors.Is(err, fs.ErrNotExist) {
			return // removed meanwhile
		}
		for known, s := range r.known {
			if known == path || strings.HasPrefix(known, path+string(filepath.Separator)) {
				found[known] = s.id
			}
		}
		if unread[path] = true; !r.unread[path] {
			r.cfg.Logger.Warn("plugin sockets not read", slog.String("path", path), logattr.Err(err))
		}
	}
	root := r.cfg.Dir + string(filepath.Separator) // of a link, the directory that it leads to
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil && path == root:
			return err
		case err != nil:
			keep(path, err)
			return nil
		case strings.HasPrefix(e.Name(), ".") && path != root && e.IsDir():
			return fs.SkipDir
		case strings.HasPrefix(e.Name(), ".") || e.Type()&(fs.ModeSocket|fs.ModeSymlink) == 0:
			return nil
		}
		info, err := os.Stat(path)
		if err != nil {
			keep(path, err)
			return nil
		}
		if info.Mode()&fs.ModeSocket == 0 {
			return nil
		}
		id := fileID{modTime: info.ModTime()}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			id.inode, id.device = st.Ino, uint64(st.Dev) //nolint:unconvert // int32 on other systems
		}
		found[path] = id
		return nil
	})
	r.unread = unread
	return found, err
}
