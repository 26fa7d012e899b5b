// Harness tests a container runtime as a kubelet uses it: it runs the conformance suite of package
// runtimetest against a CRI endpoint, and reports what a kubelet would suffer from each failure.
//
//	go run github.com/sublet-dev/agent/examples/harness -endpoint unix:///run/containerd/containerd.sock
//
// With more endpoints, or with saved reports, it compares runtimes side by side:
//
//	harness -endpoint unix:///run/a.sock -endpoint unix:///run/b.sock -html compared.html
//	harness -html compared.html a.json b.json
//
// The exit code is 0 if no case failed but those that are known to fail, 1 if one did, 2 if
// a flag is invalid, and 3 if the suite could not run: on one of several endpoints, if so. The others are
// reported nevertheless.
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

	"github.com/sublet-dev/agent/runtime/runtimetest"
)

// The exit codes.
const (
	exitPassed = iota
	exitFailed
	exitUsage
	exitNotRun
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the command, with the exit code as its result.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	s, err := parse(args, getenv, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitPassed
	case err != nil:
		fmt.Fprintln(stderr, "harness:", err)
		return exitUsage
	case s.list:
		for _, name := range runtimetest.Cases() {
			fmt.Fprintln(stdout, name)
		}
		return exitPassed
	}
	reports, err := s.collect(ctx, stderr)
	if len(reports) > 0 {
		err = errors.Join(err, s.write(reports, stdout))
	}
	if err != nil {
		fmt.Fprintln(stderr, "harness:", err)
		return exitNotRun
	}
	for _, r := range reports {
		if r.Count(runtimetest.Failed) > 0 {
			return exitFailed
		}
	}
	return exitPassed
}

// collect reads the reports that are given, and runs the suite on each endpoint in turn. With an error it
// returns the reports of the endpoints on which the suite ended: a run takes minutes.
func (s *settings) collect(ctx context.Context, stderr io.Writer) ([]runtimetest.Report, error) {
	var reports []runtimetest.Report
	for _, path := range s.reports {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		r, err := runtimetest.ReadReport(file)
		_ = file.Close() // only read
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		reports = append(reports, r)
	}
	var errs []error
	for _, endpoint := range s.endpoints {
		r, err := s.test(ctx, endpoint, stderr)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", endpoint, err))
		} else {
			reports = append(reports, r)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return reports, errors.Join(errs...)
}

// test runs the suite on one endpoint.
func (s *settings) test(ctx context.Context, endpoint string, stderr io.Writer) (runtimetest.Report, error) {
	cc, err := dial(endpoint)
	if err != nil {
		return runtimetest.Report{}, err
	}
	defer func() { _ = cc.Close() }()
	opts, err := s.options()
	if err != nil {
		return runtimetest.Report{}, err
	}
	if !s.quiet {
		p := &progress{to: stderr, total: s.selectedCases()}
		fmt.Fprintf(stderr, "%s: %d cases, %d at a time\n", endpoint, p.total, s.parallel)
		opts = append(opts, runtimetest.OnCase(p.show), runtimetest.OnRunning(p.showRunning))
	}
	return runtimetest.Run(ctx, cc, opts...)
}

// dial connects to an endpoint as a kubelet does.
func dial(endpoint string) (*grpc.ClientConn, error) {
	if strings.HasPrefix(endpoint, "/") {
		endpoint = "unix://" + endpoint
	}
	return grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
}

// write writes the reports in all forms that are asked for; the text goes to stdout.
func (s *settings) write(reports []runtimetest.Report, stdout io.Writer) error {
	var errs []error
	for path, write := range map[string]func(io.Writer) error{
		s.json:     func(w io.Writer) error { return reports[0].WriteJSON(w) },
		s.junit:    func(w io.Writer) error { return reports[0].WriteJUnit(w) },
		s.html:     func(w io.Writer) error { return writeHTML(w, reports) },
		s.markdown: func(w io.Writer) error { return writeMarkdown(w, reports) },
	} {
		if path != "" {
			errs = append(errs, writeFile(path, stdout, write))
		}
	}
	if !s.printsReport() {
		if len(reports) == 1 {
			errs = append(errs, reports[0].WriteText(stdout))
		} else {
			errs = append(errs, writeComparison(stdout, reports))
		}
	}
	return errors.Join(errs...)
}

// writeFile writes to a file, or to stdout for "-".
func writeFile(path string, stdout io.Writer, write func(io.Writer) error) error {
	if path == "-" {
		return write(stdout)
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(write(file), file.Close())
}
