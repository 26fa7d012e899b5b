package deviceplugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/sublet-dev/agent/devices"
	"github.com/sublet-dev/agent/internal/grpcsocket"
	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/pathname"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/internal/selinux"
	"github.com/sublet-dev/agent/internal/text"
	"github.com/sublet-dev/agent/internal/unixsocket"
)

// SocketName is the name of the registration socket, which plugins know.
const SocketName = "kubelet.sock"

// ErrSocketInUse means that another process serves the registration socket, such as a
// kubelet.
var ErrSocketInUse = unixsocket.ErrInUse

// errReplaced ends the connection of a plugin whose first list comes too late.
var errReplaced = errors.New("another plugin has registered for the resource")

// Devices gets the plugins and their devices. *devices.Manager is one.
type Devices interface {
	Update(resource corev1.ResourceName, plugin devices.Plugin, list []devices.Device) error
	Disconnect(resource corev1.ResourceName, plugin devices.Plugin)
}

// Config describes a Server.
type Config struct {
	// Dir is the absolute path of the directory of the sockets. It is created if it is
	// missing, and on a node with SELinux labelled for all containers. The sockets in it are
	// removed at the start, as by a kubelet: that is how plugins learn that they have to register again.
	// Required. Plugins usually expect /var/lib/kubelet/device-plugins.
	Dir     string
	Devices Devices // required
	// DialTimeout bounds the time that a plugin that registers has to serve its socket.
	// Default: 10 seconds, as in the kubelet.
	DialTimeout time.Duration
	Hooks       Hooks
	Logger      *slog.Logger // default: discard
}

// Hooks observe a Server. They must not block. A panic in one is logged.
type Hooks struct {
	// Registered is called when a plugin has registered for a resource.
	Registered func(resource corev1.ResourceName)
}

// Server serves the registration socket.
type Server struct {
	api.UnimplementedRegistrationServer

	cfg      Config
	shareDir func(path string) error // selinux.ShareDir, except in tests
	wg       sync.WaitGroup          // of the watched plugins
	mu       sync.Mutex
	ctx      context.Context // of Run; nil before
	watched  map[corev1.ResourceName]*watched
}

// maxListed is how many plugins of one resource are watched that have listed devices: while one is upgraded, there are two.
const maxListed = 2

// watched are the plugins of a resource. One that registers takes the place of the others with its
// first list of devices: until then, those of the others can be used, and when it ends, they can be again.
type watched struct {
	applying sync.Mutex     // orders what is passed on; locked before Server.mu
	provider devices.Plugin // the one that was passed on last; nil: none. Guarded by applying
	listed   []*watcher     // changed with applying and Server.mu locked; the last one provides the resource
	next     *watcher       // it has registered and not listed yet; nil: none. Guarded by Server.mu
}

// watcher follows the devices of one plugin.
type watcher struct {
	path     string // of the socket
	provider devices.Plugin
	ctx      context.Context // done: it ends
	stop     context.CancelFunc
	list     []devices.Device // the last one; guarded by watched.applying
}

// New returns a Server. It checks cfg and does no I/O.
func New(cfg Config) (*Server, error) {
	var errs []error
	if !filepath.IsAbs(cfg.Dir) {
		errs = append(errs, fmt.Errorf("deviceplugin: Config.Dir: %q must be an absolute path", cfg.Dir))
	} else if err := unixsocket.CheckPath(filepath.Join(cfg.Dir, SocketName)); err != nil {
		errs = append(errs, fmt.Errorf("deviceplugin: Config.Dir: %w", err))
	}
	if cfg.Devices == nil {
		errs = append(errs, errors.New("deviceplugin: Config.Devices: required"))
	}
	if cfg.DialTimeout < 0 {
		errs = append(errs, fmt.Errorf("deviceplugin: Config.DialTimeout: %s must be at least 0", cfg.DialTimeout))
	}
	cfg.DialTimeout = cmp.Or(cfg.DialTimeout, 10*time.Second)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	cfg.Hooks = Hooks{Registered: safe.Hook1(cfg.Logger, "Registered", cfg.Hooks.Registered)}
	return &Server{cfg: cfg, shareDir: selinux.ShareDir, watched: map[corev1.ResourceName]*watched{}}, nil
}

// Run serves the socket until ctx is done, and returns nil then. An error means that the
// socket could not be made or failed; it wraps ErrSocketInUse if another process has it.
func (s *Server) Run(ctx context.Context) error {
	listener, err := s.listen(ctx)
	if err != nil {
		return fmt.Errorf("deviceplugin: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	s.ctx = ctx
	s.mu.Unlock()
	err = grpcsocket.Serve(ctx, listener, grpcsocket.Config{
		Name: "registration of device plugins", Register: func(r grpc.ServiceRegistrar) { api.RegisterRegistrationServer(r, s) },
		Logger: s.cfg.Logger,
	})
	cancel()
	s.mu.Lock()
	s.ctx = nil
	s.mu.Unlock()
	s.wg.Wait()
	if err != nil {
		return fmt.Errorf("deviceplugin: %w", err)
	}
	return nil
}

// listen removes the sockets of plugins that an earlier agent had, and makes its own. A plugin that
// still runs waits for either, the end of its socket or the socket of the agent, and then makes a
// new one and registers.
func (s *Server) listen(ctx context.Context) (net.Listener, error) {
	if err := os.MkdirAll(s.cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	if err := s.shareDir(s.cfg.Dir); err != nil {
		s.cfg.Logger.Warn("plugin directory not labelled for containers", slog.String("path", s.cfg.Dir), logattr.Err(err))
	}
	listener, err := unixsocket.ListenAfter(ctx, filepath.Join(s.cfg.Dir, SocketName), s.removeSockets)
	if errors.Is(err, ErrSocketInUse) {
		err = fmt.Errorf("%w: stop it, or configure another directory", err)
	}
	return listener, err
}

func (s *Server) removeSockets() error {
	entries, err := os.ReadDir(s.cfg.Dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Type()&fs.ModeSocket == 0 {
			continue
		}
		if err := os.Remove(filepath.Join(s.cfg.Dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Register implements the device plugin API. The answer comes when the plugin serves its
// socket, and before its devices are known.
func (s *Server) Register(ctx context.Context, r *api.RegisterRequest) (*api.Empty, error) {
	name := corev1.ResourceName(r.GetResourceName())
	err := s.register(ctx, name, r)
	if err != nil {
		s.cfg.Logger.Warn("device plugin rejected", slog.String("resource", string(name)), slog.String("endpoint", r.GetEndpoint()), logattr.Err(err))
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return &api.Empty{}, nil
}

func (s *Server) register(ctx context.Context, name corev1.ResourceName, r *api.RegisterRequest) error {
	if err := check(name, r.GetVersion()); err != nil {
		return err
	}
	if !pathname.IsElement(r.GetEndpoint()) || r.GetEndpoint() == SocketName {
		return fmt.Errorf("endpoint %q must be the name of a socket in %s", r.GetEndpoint(), s.cfg.Dir)
	}
	return s.follow(ctx, name, filepath.Join(s.cfg.Dir, r.GetEndpoint()))
}

// check checks what a plugin registers: its resource, and the versions of the API that it has.
func check(name corev1.ResourceName, versions ...string) error {
	if !slices.ContainsFunc(versions, func(v string) bool { return slices.Contains(api.SupportedVersions[:], v) }) {
		return fmt.Errorf("version %q of the device plugin API is not supported, only %v", strings.Join(versions, ", "), api.SupportedVersions)
	}
	if !devices.IsExtendedResource(name) {
		return fmt.Errorf("%q is not the name of an extended resource, such as vendor.example/device", name)
	}
	return nil
}

// follow connects to the plugin at a socket, and has its devices watched.
func (s *Server) follow(ctx context.Context, name corev1.ResourceName, path string) error {
	err := s.connect(ctx, name, path)
	if err == nil && s.cfg.Hooks.Registered != nil {
		s.cfg.Hooks.Registered(name)
	}
	return err
}

func (s *Server) connect(ctx context.Context, name corev1.ResourceName, path string) error {
	p, err := dial(ctx, path, s.cfg.DialTimeout)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx == nil || s.ctx.Err() != nil {
		return errors.Join(errors.New("the agent does not take device plugins now: it is starting or stopping"), p.conn.Close())
	}
	if s.watched[name] == nil {
		s.watched[name] = &watched{}
	}
	if next := s.watched[name].next; next != nil {
		next.stop()
	}
	ctx, cancel := context.WithCancel(s.ctx)
	of, w := s.watched[name], &watcher{path: path, provider: p.provider(), ctx: ctx, stop: cancel}
	of.next = w
	s.wg.Go(func() {
		defer cancel()
		s.watch(name, of, p, w)
	})
	return nil
}

// watch passes the devices of a plugin on until its connection ends or it is replaced.
func (s *Server) watch(name corev1.ResourceName, of *watched, p *plugin, w *watcher) {
	log := s.cfg.Logger.With(slog.String("resource", string(name)), slog.String("endpoint", filepath.Base(p.path)))
	log.Info("device plugin registered")
	err := p.watch(w.ctx, func(list []devices.Device) error { return s.pass(name, of, w, list) })
	s.end(name, of, w)
	log.Info("device plugin disconnected", logattr.Err(text.Error(err)))
	if err := p.conn.Close(); err != nil {
		log.Debug("close failed", logattr.Err(err))
	}
}

// pass passes a list of devices on if the plugin provides the resource, which it does from its first one on.
func (s *Server) pass(name corev1.ResourceName, of *watched, w *watcher, list []devices.Device) error {
	of.applying.Lock()
	defer of.applying.Unlock()
	s.mu.Lock()
	if of.next == w {
		of.next = nil
		for i, other := range of.listed {
			if other.path == w.path || i <= len(of.listed)-maxListed {
				other.stop()
			}
		}
		of.listed = append(slices.DeleteFunc(of.listed, func(other *watcher) bool { return other.ctx.Err() != nil }), w)
	}
	s.mu.Unlock()
	if !slices.Contains(of.listed, w) { // others have registered, or listed, meanwhile
		return errReplaced
	}
	w.list = list
	if of.listed[len(of.listed)-1] != w {
		return nil
	}
	return s.apply(name, of, w)
}

// apply passes the last list of a plugin on. of.applying is locked.
func (s *Server) apply(name corev1.ResourceName, of *watched, w *watcher) error {
	err := s.cfg.Devices.Update(name, w.provider, w.list)
	if err == nil {
		of.provider = w.provider
	}
	return err
}

// end has the plugin that listed devices before provide the resource, if it still runs, after the one that did has ended.
func (s *Server) end(name corev1.ResourceName, of *watched, w *watcher) {
	of.applying.Lock()
	defer of.applying.Unlock()
	wasLast := len(of.listed) > 0 && of.listed[len(of.listed)-1] == w
	s.mu.Lock()
	of.listed = slices.DeleteFunc(of.listed, func(other *watcher) bool { return other == w })
	s.mu.Unlock()
	if !wasLast {
		return
	}
	for _, other := range slices.Backward(of.listed) {
		if other.ctx.Err() != nil {
			continue // it ends, too
		}
		if s.apply(name, of, other) == nil {
			s.cfg.Logger.Info("device plugin provides its resource again", slog.String("resource", string(name)), slog.String("endpoint", filepath.Base(other.path)))
			return
		}
		other.stop()
	}
	if of.provider != nil {
		s.cfg.Devices.Disconnect(name, of.provider)
	}
}
