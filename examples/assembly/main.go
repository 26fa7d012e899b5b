// Assembly is a node agent that is assembled by hand, outside of the module: without
// agent.New, from the exported packages alone. Start from it if agent.New and its options
// do not fit. It adopts the pods of the previous process, stops in order, collects
// containers and images, and evicts under pressure. assembly.go has the wiring and run.go
// the ordered stop.
//
//	cd examples/assembly && go run . -root-dir /var/lib/assembly -manifests /etc/sublet/manifests
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
)

func main() {
	rootDir := flag.String("root-dir", "", "directory of the agent's state; required")
	manifests := flag.String("manifests", "", "directory of pod manifests; required")
	endpoint := flag.String("runtime-endpoint", "", "CRI socket of the runtime; default: a simulated one")
	nodeName := flag.String("node-name", "assembly", "name of this node")
	owner := flag.String("owner", "assembly", "id of this agent's pods in the runtime; must never change, and no other agent may use it")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, *rootDir, *manifests, *endpoint, config{nodeName: *nodeName, owner: *owner}); err != nil {
		fmt.Fprintln(os.Stderr, "assembly:", err)
		stop()
		os.Exit(1)
	}
}

// serve locks the root directory, connects to the runtime and runs an assembly.
func serve(ctx context.Context, rootDir, manifests, endpoint string, cfg config) (err error) {
	if rootDir == "" || manifests == "" {
		return fmt.Errorf("-root-dir and -manifests are required")
	}
	if cfg.rootDir, err = filepath.Abs(rootDir); err != nil {
		return err
	}
	unlock, err := lock(cfg.rootDir)
	if err != nil {
		return err
	}
	defer unlock()
	conn, disconnect, err := connect(endpoint)
	if err != nil {
		return err
	}
	defer disconnect()
	cfg.logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	if cfg.runtime, err = cri.New(conn, cri.Config{Owner: cfg.owner, Logger: cfg.logger}); err != nil {
		return err
	}
	cfg.sources = []podsource.NamedSource{{Name: "file", Source: podsource.File(manifests, podsource.FileLogger(cfg.logger))}}
	a, err := assemble(cfg)
	if err != nil {
		return err
	}
	return a.run(ctx)
}

// connect connects to the runtime at endpoint, or to a simulated one that ends with this
// process.
func connect(endpoint string) (conn grpc.ClientConnInterface, disconnect func(), err error) {
	if endpoint != "" {
		cc, err := cri.Dial(endpoint)
		if err != nil {
			return nil, nil, err
		}
		return cc, func() { _ = cc.Close() }, nil
	}
	rt, err := embedded.New(embedded.Config{Executor: simulated.New(simulated.Config{}), Grace: -1})
	if err != nil {
		return nil, nil, err
	}
	cc, err := rt.Dial()
	if err != nil {
		_ = rt.Close()
		return nil, nil, err
	}
	return cc, func() { _, _ = cc.Close(), rt.Close() }, nil
}

// lock creates a root directory and locks it until this process exits: two agents with one
// id would terminate each other's pods.
func lock(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "agent.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return func() { _ = f.Close() }, nil
}
