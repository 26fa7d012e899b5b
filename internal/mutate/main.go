// Mutate measures what a package's own tests notice. It plants one small defect
// at a time in the package, such as a dropped condition or a deleted
// assignment, and runs the tests that reach the place: a defect that no test
// fails for survives, and is a test that is missing.
//
//	go run ./internal/mutate ./podworkers
//	go run ./internal/mutate -files 'due*.go' -v ./syncloop
//
// All defects are compiled into one test binary and switched on by an
// environment variable, so that a mutant costs a run of a few tests and no
// build. Nothing is written into the source tree. Survivors that no test can
// tell from the original are listed in equivalent.txt with the reason; they do not count.
package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"
)

//go:embed equivalent.txt
var equivalentList []byte

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM) //nolint:forbidigo // the process' own
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

// options are the flags of the command.
type options struct {
	files    string
	skip     string
	least    float64
	parallel int
	timeout  time.Duration
	verbose  bool
	keep     bool
}

// errTooManySurvive is returned when a package is below the score that was demanded.
var errTooManySurvive = errors.New("too many mutants survive")

func run(ctx context.Context, args []string, out io.Writer) error {
	var o options
	flags := flag.NewFlagSet("mutate", flag.ContinueOnError)
	flags.StringVar(&o.files, "files", "*.go", "only files whose name matches this `pattern`")
	flags.StringVar(&o.skip, "skip", "", "leave out tests that match this `regexp`")
	flags.Float64Var(&o.least, "least", 0, "fail if a package's score is below this `percentage`")
	flags.IntVar(&o.parallel, "parallel", 2, "mutants at once")
	flags.DurationVar(&o.timeout, "timeout", 30*time.Second, "a mutant whose tests take longer counts as killed")
	flags.BoolVar(&o.verbose, "v", false, "print each mutant as it is decided")
	flags.BoolVar(&o.keep, "keep", false, "keep the instrumented sources, and print where they are")
	if err := flags.Parse(args); err != nil {
		return err
	}
	equivalent, err := parseEquivalent(equivalentList)
	if err != nil {
		return err
	}
	var errs []error
	for _, pattern := range flags.Args() {
		r, err := measure(ctx, pattern, o, out)
		if err != nil {
			return fmt.Errorf("%s: %w", pattern, err)
		}
		if score := r.print(out, equivalent); score < o.least {
			errs = append(errs, fmt.Errorf("%s: %.1f %% killed, %.1f %% demanded: %w", pattern, score, o.least, errTooManySurvive))
		}
	}
	return errors.Join(errs...)
}

// result is what became of the mutants of one package.
type result struct {
	pkg     string
	mutants []mutant
}

// print writes the survivors and the score, and returns the score: the percentage
// of the mutants killed of those that are not equivalent to the original.
func (r *result) print(out io.Writer, equivalent map[string]string) float64 {
	killed, same := 0, 0
	for _, m := range r.mutants {
		reason, ok := equivalent[m.key(r.pkg)]
		switch {
		case m.killed && ok:
			fmt.Fprintf(out, "%s\tis killed, though listed as equivalent\n", m.key(r.pkg)) //nolint:errcheck // a report
			killed++
		case m.killed:
			killed++
		case ok:
			same++
			fmt.Fprintf(out, "%s\tequivalent: %s\n", m.where, reason) //nolint:errcheck // a report
		default:
			fmt.Fprintf(out, "%s\t%s%s\t%s\n", m.where, m.what, map[bool]string{true: " (no test reaches it)"}[len(m.tests) == 0], m.text) //nolint:errcheck // a report
		}
	}
	score := 100.0
	if n := len(r.mutants) - same; n > 0 {
		score = 100 * float64(killed) / float64(n)
	}
	fmt.Fprintf(out, "%s: %d mutants, %d killed, %d equivalent, %d survive: %.1f %%\n", //nolint:errcheck // a report
		r.pkg, len(r.mutants), killed, same, len(r.mutants)-killed-same, score)
	return score
}

// parseEquivalent reads lines of the form "package/file.go | what | source text | reason".
func parseEquivalent(list []byte) (map[string]string, error) {
	known := map[string]string{}
	s := bufio.NewScanner(bytes.NewReader(list))
	for n := 1; s.Scan(); n++ {
		line := strings.TrimSpace(s.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(line, " | ")
		if len(f) != 4 || slices.Contains(f, "") {
			return nil, fmt.Errorf("equivalent.txt:%d: want \"package/file.go | what | source text | reason\"", n)
		}
		known[strings.Join(f[:3], " | ")] = f[3]
	}
	return known, s.Err()
}

// key names a mutant without its line, which moves.
func (m *mutant) key(pkg string) string {
	file, _, _ := strings.Cut(m.where, ":")
	return path.Join(pkg, path.Base(file)) + " | " + m.what + " | " + m.text
}
