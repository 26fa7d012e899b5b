//go:build linux

// Vm runs a script as root in a new virtual machine of package vmtest. Its exit code is that
// of the script.
//
//	go run ./internal/vmtest/vm [-share DIR] SCRIPT
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/sublet-dev/agent/internal/vmtest"
)

func main() {
	var cfg vmtest.Config
	flag.StringVar(&cfg.Image, "image", os.Getenv(vmtest.Env), "directory filled by internal/vmtest/image.sh")
	flag.StringVar(&cfg.Share, "share", "", "directory, a copy of which is at /host")
	flag.StringVar(&cfg.Kernel, "kernel", "", "further words of the kernel's command line")
	flag.IntVar(&cfg.Memory, "memory", 0, "MiB")
	flag.IntVar(&cfg.CPUs, "cpus", 0, "processors")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := run(ctx, cfg, flag.Args())
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "vm:", err)
		code = 125
	}
	os.Exit(code)
}

func run(ctx context.Context, cfg vmtest.Config, args []string) (code int, err error) {
	if len(args) != 1 {
		return 0, fmt.Errorf("one script expected, got %q", args)
	}
	script, err := os.ReadFile(args[0])
	if err != nil {
		return 0, err
	}
	m, err := vmtest.New(cfg)
	if err != nil {
		return 0, err
	}
	defer func() {
		if failed := m.Close(); err == nil {
			err = failed
		}
	}()
	if err := m.Boot(ctx); err != nil {
		return 0, err
	}
	return m.Run(ctx, string(script), os.Stdout)
}
