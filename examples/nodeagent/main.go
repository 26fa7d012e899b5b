// Command nodeagent is the whole agent as a daemon: static pods from a folder or
// a URL, on a CRI runtime, with the kubelet's flags where it has them.
//
//	nodeagent -manifests /etc/sublet/manifests -runtime-endpoint unix:///run/containerd/containerd.sock
//
// SIGTERM stops the agent and leaves the pods, which the next one adopts; with
// -drain it ends them first.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	f, err := parse(os.Args[1:], os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintf(os.Stderr, "nodeagent: %v\n", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, f, os.Stderr); err != nil {
		fmt.Fprintf(os.Stderr, "nodeagent: %v\n", err)
		os.Exit(1)
	}
}
