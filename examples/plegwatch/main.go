// Plegwatch prints the events of all pods on a machine, also those of other agents.
// It uses package pleg alone, on a runtime that speaks CRI, and changes nothing.
//
//	go run ./examples/plegwatch -runtime-endpoint unix:///run/containerd/containerd.sock
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/sublet-dev/agent/pleg"
	"github.com/sublet-dev/agent/podcache"
	"github.com/sublet-dev/agent/runtime/cri"
)

func main() {
	endpoint := flag.String("runtime-endpoint", "unix:///run/containerd/containerd.sock", "CRI socket of the runtime")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cc, err := cri.Dial(*endpoint)
	if err == nil {
		var client *cri.Client
		if client, err = cri.New(cc, cri.Config{Observer: true}); err == nil {
			err = watch(ctx, client, os.Stdout)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "plegwatch:", err)
		os.Exit(1)
	}
}

// watch prints events until ctx is done, each with the name of its pod.
func watch(ctx context.Context, rt pleg.Runtime, out io.Writer) error {
	var cache podcache.Cache
	g, err := pleg.New(pleg.Config{Runtime: rt, Cache: &cache, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	for {
		select {
		case err := <-done:
			return err
		case <-g.Notify():
			for _, e := range g.Drain() {
				p, _ := cache.Get(e.UID)
				fmt.Fprintf(out, "%s %s/%s %s\n", time.Now().Format(time.TimeOnly), p.Namespace, p.Name, e)
			}
		}
	}
}
