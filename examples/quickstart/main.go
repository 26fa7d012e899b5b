// Command quickstart runs the sample pods of its manifests directory as processes
// of the current user: no root, no daemon, no cluster.
//
//	go run ./examples/quickstart -for 20s
//
// A table shows the pods and their containers; if the output is not a terminal,
// each change is a line. While the pods run, some manifests are edited, deleted
// and made invalid. Ctrl-c, or the end of -for, terminates the pods gracefully.
// Then a summary is printed. The exit code is 0 only if all pods behaved as
// expected.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) > 1 && roles[os.Args[1]] != nil { // a container of one of the pods
		os.Exit(roles[os.Args[1]](os.Args[2:]))
	}
	span := flag.Duration("for", 0, "stop after this time; 0 runs until ctrl-c. The samples need about 15s")
	flag.Parse()
	if flag.NArg() > 0 || *span < 0 {
		fmt.Fprintln(os.Stderr, "quickstart: invalid arguments; the only flag is -for 20s")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *span > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, *span)
		defer cancel()
	}
	switch err := quickstart(ctx, os.Stdout, *span); {
	case errors.Is(err, errNotAll):
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

// errNotAll is returned when a pod did not behave as expected; the summary says
// which one.
var errNotAll = errors.New("not all pods behaved as expected")

// defaultSpan is the duration of the script of edits without -for.
const defaultSpan = 20 * time.Second
