// Criproxy forwards calls to a CRI runtime and injects faults.
//
//	go run ./examples/criproxy -listen unix:///tmp/bad.sock -to unix:///run/containerd/containerd.sock \
//	    -seed 7 -rule fault=delay,rpc=StartContainer,delay=2s -rule fault=break-stream,rpc=GetContainerEvents,after=10
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sublet-dev/agent/internal/unixsocket"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtime/runtimetest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "criproxy:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stderr io.Writer) error {
	var rules []runtimetest.Rule
	flags := flag.NewFlagSet("criproxy", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // main prints errors
	listen := flags.String("listen", "unix:///tmp/criproxy.sock", "where to serve")
	to := flags.String("to", "unix:///run/containerd/containerd.sock", "the runtime")
	seed := flags.Uint64("seed", 1, "the same seed, rules and calls give the same faults")
	flags.Func("rule", "what goes wrong, such as fault=fail,rpc=Stop*,code=Unavailable,probability=0.1 (may be repeated)", func(s string) error {
		r, err := runtimetest.ParseRule(s)
		rules = append(rules, r)
		return err
	})
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		flags.SetOutput(stderr)
		flags.Usage()
		return err
	case err != nil:
		return fmt.Errorf("%w; see -help", err)
	case flags.NArg() > 0:
		return fmt.Errorf("unexpected argument %q; see -help", flags.Arg(0))
	}
	for name, address := range map[string]string{"listen": *listen, "to": *to} {
		if err := cri.CheckEndpoint(address); err != nil {
			return fmt.Errorf("-%s: %w", name, err)
		}
	}
	if *listen == *to {
		return fmt.Errorf("-listen and -to are the same socket: %s", *to)
	}
	cc, err := grpc.NewClient(*to, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		return err
	}
	defer func() { _ = cc.Close() }()
	p, err := runtimetest.NewProxy(cc, *seed, rules...)
	if err != nil {
		return err
	}
	lis, err := unixsocket.Listen(ctx, strings.TrimPrefix(*listen, "unix://"))
	if err != nil {
		return fmt.Errorf("-listen: %w", err)
	}
	fmt.Fprintf(stderr, "criproxy: serving %s for %s\n", *listen, *to)
	return p.Serve(ctx, lis)
}
