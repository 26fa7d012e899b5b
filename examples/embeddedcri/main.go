// Embeddedcri serves the embedded runtime as a CRI runtime on a unix socket, for
// crictl, critest, a kubelet or an agent.
//
//	go run ./examples/embeddedcri -listen unix:///tmp/cri.sock -executor host
//	crictl -r unix:///tmp/cri.sock info
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
)

// options are the flags.
type options struct {
	listen, executor, root, stream, serve, as, debug string
	pause                                            bool
}

func main() {
	var o options
	flag.StringVar(&o.listen, "listen", "unix:///tmp/sublet-cri.sock", "address of the CRI: unix:///path.sock")
	flag.StringVar(&o.executor, "executor", "host", "executor of the containers: host (real processes, no isolation) or simulated")
	flag.StringVar(&o.root, "root", "", "directory for scratch files (default: a temporary one)")
	flag.StringVar(&o.stream, "stream", "127.0.0.1:0", "address of exec, attach and port-forward")
	flag.StringVar(&o.debug, "debug", "", "address of profiles in /debug/pprof, without authentication (default: none)")
	flag.StringVar(&o.serve, "serve", "", "only serve a web page at this address: the command of the web server images of critest")
	flag.StringVar(&o.as, "as", "web server", "name of -serve in its output")
	flag.BoolVar(&o.pause, "pause", false, "wait for a signal: the command of images without one")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if o.pause {
		<-ctx.Done()
		return
	}
	if err := run(ctx, o, slog.New(slog.NewTextHandler(os.Stderr, nil))); err != nil {
		fmt.Fprintln(os.Stderr, "embeddedcri:", err)
		os.Exit(1)
	}
}
