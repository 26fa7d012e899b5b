// Command quickstart runs the sample pods of its manifests folder as processes
// of whoever starts it: no root, no daemon, no cluster.
//
//	go run ./examples/quickstart -for 20s
//
// A table shows pods and containers change; it is plain lines where the output
// is no terminal. While the pods run, some manifests are edited, deleted and
// broken. Ctrl-c, or the end of -for, ends the pods gracefully; then it is told
// what ran, and the exit code is 0 only if all pods did what they should.
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
	span := flag.Duration("for", 0, "end by itself after so long; 0 runs until ctrl-c. The samples need about 15s")
	flag.Parse()
	if flag.NArg() > 0 || *span < 0 {
		fmt.Fprintln(os.Stderr, "quickstart: want nothing but perhaps -for 20s")
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

// errNotAll is returned when a pod did not do what it should; the verdict has
// told which.
var errNotAll = errors.New("not all pods did what they should")

// scripted is how long the script of edits takes where nobody said how long the
// quickstart shall run.
const scripted = 20 * time.Second
