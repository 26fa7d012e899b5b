// Embeddedcri serves the embedded runtime as a CRI runtime on a unix socket, for
// crictl, critest, a kubelet or an agent of your own.
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
	listen, executor, root, stream, serve, as string
	pause                                     bool
}

func main() {
	var o options
	flag.StringVar(&o.listen, "listen", "unix:///tmp/sublet-cri.sock", "where to serve the CRI: unix:///path.sock")
	flag.StringVar(&o.executor, "executor", "host", "what containers are: host (real processes, no isolation) or simulated")
	flag.StringVar(&o.root, "root", "", "folder for scratch files (default: a temporary one)")
	flag.StringVar(&o.stream, "stream", "127.0.0.1:0", "where to serve exec, attach and port-forward")
	flag.StringVar(&o.serve, "serve", "", "do nothing but serve a web page at this address; what the web server images of critest run")
	flag.StringVar(&o.as, "as", "web server", "what -serve calls itself in its log")
	flag.BoolVar(&o.pause, "pause", false, "do nothing until a signal; what images without a command of their own run")
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
