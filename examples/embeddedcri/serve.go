package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/hostprocess"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
	"github.com/sublet-dev/agent/runtime/embedded/stream"
)

// run serves until ctx ends, then stops all containers.
func run(ctx context.Context, o options, log *slog.Logger) error {
	if o.serve != "" {
		return page(ctx, o.serve, o.as)
	}
	socket, ok := strings.CutPrefix(o.listen, "unix://")
	if !ok || !filepath.IsAbs(socket) {
		return fmt.Errorf("-listen %q: must be unix:// and an absolute path", o.listen)
	}
	if o.root == "" && o.executor == "host" {
		root, err := os.MkdirTemp("", "embeddedcri-")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(root) }()     // no container is left by then
		if err := os.Chmod(root, 0o711); err != nil { // containers may run as others
			return err
		}
		o.root = root
	}
	cfg, err := configure(o)
	if err != nil {
		return err
	}
	cfg.Logger = log
	rt, err := embedded.New(cfg)
	if err != nil {
		return err
	}
	lis, err := listen(socket)
	if err != nil {
		return err
	}
	streams, err := net.Listen("tcp", o.stream)
	if err != nil {
		return errors.Join(err, lis.Close())
	}
	server, err := stream.New(rt, streams)
	if err != nil {
		return errors.Join(err, lis.Close(), streams.Close())
	}
	g := grpc.NewServer(grpc.MaxRecvMsgSize(16 << 20))
	rt.Register(g)

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if o.debug != "" {
		profiles, err := net.Listen("tcp", o.debug)
		if err != nil {
			return errors.Join(err, lis.Close(), streams.Close())
		}
		context.AfterFunc(ctx, func() { _ = profiles.Close() })
		go func() { _ = http.Serve(profiles, profileHandler()) }() //nolint:gosec // of an operator's own, and ends with the listener
	}
	errs := make(chan error, 3)
	go func() { errs <- server.Run(ctx) }()
	go func() { errs <- rt.Run(ctx) }()
	go func() {
		err := g.Serve(lis)
		if errors.Is(err, grpc.ErrServerStopped) { // before it had begun
			err = nil
		}
		errs <- err
	}()
	log.Info("serving CRI", slog.String("address", o.listen), slog.String("executor", o.executor))
	var first error
	left := cap(errs)
	select {
	case first = <-errs:
		left--
	case <-ctx.Done():
	}
	cancel()
	g.Stop()
	for range left { // also for the runtime, which ends the containers
		first = errors.Join(first, <-errs)
	}
	return first
}

// profileHandler serves the profiles of this process.
func profileHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	return mux
}

// configure chooses the executor and the images.
func configure(o options) (embedded.Config, error) {
	var cfg embedded.Config
	self, err := os.Executable()
	if err != nil {
		return cfg, err
	}
	switch o.executor {
	case "simulated":
		cfg.Executor = simulated.New(simulated.Config{LogsAtStart: true})
	case "host":
		var bin string
		if bin, self, err = shims(o.root, self); err != nil {
			return cfg, err
		}
		cfg.ImageDir = o.root
		cfg.Executor = hostprocess.New(hostprocess.Config{
			Root: o.root, Path: bin + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		})
	default:
		return cfg, fmt.Errorf("-executor %q: must be host or simulated", o.executor)
	}
	cfg.Images, cfg.DefaultImage = critestImages(self), &embedded.Image{Entrypoint: pause(self)}
	cfg.ImageKey, cfg.HostPorts = path.Base, true
	return cfg, nil
}

// listen opens the socket, for its owner only. A socket that no process serves any more
// is replaced.
func listen(path string) (net.Listener, error) {
	if c, err := net.Dial("unix", path); err == nil {
		return nil, errors.Join(fmt.Errorf("listen on %s: already served by another process", path), c.Close())
	}
	if st, err := os.Lstat(path); err == nil && st.Mode()&os.ModeSocket != 0 {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	return net.Listen("unix", path)
}

// page is a web server with one page. Several may serve at one address: containers
// share the network of the machine.
func page(ctx context.Context, address, name string) error {
	s := &http.Server{Addr: address, ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "<h1>Welcome to nginx!</h1>\n")
	})}
	shared := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		}), err)
	}}
	lis, err := shared.Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	fmt.Printf("%s serves at %s\n", name, lis.Addr())
	context.AfterFunc(ctx, func() { _ = s.Close() })
	if err := s.Serve(lis); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
