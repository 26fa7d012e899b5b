package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Names of the variables that tell the instrumented tests which mutant is on, and
// where to write down which mutants they reach.
const (
	activeEnv  = "MUTATE_ACTIVE"
	reachedEnv = "MUTATE_REACHED"
)

// runtimeSource is compiled into the instrumented package; %s is its name and %d the number of mutants.
const runtimeSource = `package %s

import (
	"os"
	"strconv"
	"sync/atomic"
)

var mutantActive, _ = strconv.Atoi(os.Getenv("` + activeEnv + `"))

var mutantReached = func() *os.File {
	name := os.Getenv("` + reachedEnv + `")
	if name == "" {
		return nil
	}
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	return f
}()

var mutantSeen [%d]atomic.Bool

func mutantOn(id int) bool {
	if mutantReached != nil && !mutantSeen[id].Swap(true) {
		mutantReached.WriteString(strconv.Itoa(id) + "\n")
	}
	return id == mutantActive
}

func mutantPick[T any](id int, original, other T) T {
	if mutantOn(id) {
		return other
	}
	return original
}

func mutantZero[T any](id int, v T) T {
	if mutantOn(id) {
		return *new(T)
	}
	return v
}
`

// listed is what go list tells of a package.
type listed struct {
	Dir, Name, ImportPath string
	GoFiles               []string
}

// testCase is a top-level test, example or fuzz target with the time that it takes.
type testCase struct {
	name     string
	duration time.Duration
}

// bench is a package under measurement.
type bench struct {
	options

	pkg     listed
	work    string
	binary  string
	mutants []mutant
	cases   []testCase
}

func measure(ctx context.Context, pattern string, o options, out io.Writer) (*result, error) {
	b := &bench{options: o}
	list, err := exec.CommandContext(ctx, "go", "list", "-json=Dir,Name,ImportPath,GoFiles", pattern).Output()
	if err != nil {
		return nil, fmt.Errorf("list: %w", withStderr(err))
	}
	if err := json.Unmarshal(list, &b.pkg); err != nil {
		return nil, fmt.Errorf("one package at a time: %w", err)
	}
	if b.work, err = os.MkdirTemp("", "mutate-"); err != nil {
		return nil, err
	}
	if b.keep {
		fmt.Fprintln(out, "instrumented sources:", b.work) //nolint:errcheck // a report
	} else {
		defer os.RemoveAll(b.work) //nolint:errcheck // a temporary directory
	}
	if err := b.build(ctx); err != nil {
		return nil, err
	}
	if err := b.traceTests(ctx); err != nil {
		return nil, err
	}
	b.killAll(ctx, out)
	return &result{pkg: strings.TrimPrefix(b.pkg.ImportPath, "github.com/sublet-dev/agent/"), mutants: b.mutants}, ctx.Err()
}

var compileError = regexp.MustCompile(`(?m)^([^\s:]+\.go):(\d+)(?::\d+)?: `)

// build compiles the tests with all mutants. Mutants of lines that do not compile are
// left out, since the compiler already catches them.
func (b *bench) build(ctx context.Context) error {
	left := map[int]bool{}
	for range 20 {
		sources, err := b.instrument(left)
		if err != nil {
			return err
		}
		b.binary = filepath.Join(b.work, "tests")
		cmd := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-gcflags=-e", "-overlay", filepath.Join(b.work, "overlay.json"), "-o", b.binary, ".")
		cmd.Dir = b.pkg.Dir
		output, err := cmd.CombinedOutput()
		if err == nil {
			return nil
		}
		before := len(left)
		for _, m := range compileError.FindAllStringSubmatch(string(output), -1) {
			line, _ := strconv.Atoi(m[2])
			for _, s := range sources {
				if filepath.Base(m[1]) == s.name {
					s.mutantsOn(line, left)
				}
			}
		}
		if len(left) == before {
			return fmt.Errorf("build with mutants: %w\n%s", err, output)
		}
	}
	return errors.New("build with mutants: no end of compile errors")
}

// mutantsOn adds the mutants whose node lies on a line, or around it if there are none, to a set.
func (s *source) mutantsOn(line int, set map[int]bool) {
	for _, m := range s.mutants {
		if m.line == line {
			set[m.id] = true
		}
	}
}

func (b *bench) instrument(left map[int]bool) ([]*source, error) {
	overlay := map[string]string{}
	var sources []*source
	b.mutants = nil
	last := 0
	next := func() int { last++; return last }
	for _, name := range b.pkg.GoFiles {
		if ok, err := filepath.Match(b.files, name); err != nil || !ok || strings.HasSuffix(name, "_string.go") {
			if err != nil {
				return nil, err
			}
			continue
		}
		path := filepath.Join(b.pkg.Dir, name)
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		s, err := parseSource(path, name, text, next, func(id int) bool { return left[id] })
		if err != nil {
			return nil, err
		}
		replacement := filepath.Join(b.work, name)
		if err := os.WriteFile(replacement, []byte(s.render()), 0o600); err != nil {
			return nil, err
		}
		overlay[path] = replacement
		sources = append(sources, s)
		b.mutants = append(b.mutants, s.mutants...)
	}
	extra := filepath.Join(b.work, "zz_mutants.go")
	overlay[filepath.Join(b.pkg.Dir, "zz_mutants.go")] = extra
	if err := os.WriteFile(extra, fmt.Appendf(nil, runtimeSource, b.pkg.Name, last+1), 0o600); err != nil {
		return nil, err
	}
	content, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		return nil, err
	}
	return sources, os.WriteFile(filepath.Join(b.work, "overlay.json"), content, 0o600)
}

// traceTests runs each test by itself without a mutant, and notes which mutants it reaches and how long it takes.
func (b *bench) traceTests(ctx context.Context) error {
	list, err := b.command(ctx, "-test.list", ".*").Output()
	if err != nil {
		return fmt.Errorf("list tests: %w", withStderr(err))
	}
	var skip *regexp.Regexp
	if b.skip != "" {
		if skip, err = regexp.Compile(b.skip); err != nil {
			return err
		}
	}
	byID := map[int]*mutant{}
	for i := range b.mutants {
		byID[b.mutants[i].id] = &b.mutants[i]
	}
	for name := range strings.FieldsSeq(string(list)) {
		if strings.HasPrefix(name, "Benchmark") || skip != nil && skip.MatchString(name) {
			continue
		}
		file := filepath.Join(b.work, name+".reached")
		start := time.Now()
		cmd := b.command(ctx, "-test.run", "^"+name+"$")
		cmd.Env = append(os.Environ(), reachedEnv+"="+file)
		if output, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s fails without a mutant: %w\n%s", name, err, output)
		}
		b.cases = append(b.cases, testCase{name: name, duration: time.Since(start)})
		reached, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		for id := range strings.FieldsSeq(string(reached)) {
			n, _ := strconv.Atoi(id)
			if m := byID[n]; m != nil {
				m.tests = append(m.tests, name)
			}
		}
	}
	slices.SortFunc(b.cases, func(x, y testCase) int { return int(x.duration - y.duration) })
	return nil
}

// killAll decides on all mutants, some at a time.
func (b *bench) killAll(ctx context.Context, out io.Writer) {
	var wg sync.WaitGroup
	var print sync.Mutex
	work := make(chan *mutant)
	for range max(1, b.parallel) {
		wg.Go(func() {
			for m := range work {
				m.killed = b.kill(ctx, m)
				if b.verbose {
					print.Lock()
					fmt.Fprintf(out, "%s\t%s\t%s\tkilled=%t\n", m.where, m.what, m.text, m.killed) //nolint:errcheck // a report
					print.Unlock()
				}
			}
		})
	}
	for i := range b.mutants {
		if ctx.Err() == nil {
			work <- &b.mutants[i]
		}
	}
	close(work)
	wg.Wait()
}

// kill runs the tests that reach a mutant, quick ones first, until one fails.
func (b *bench) kill(ctx context.Context, m *mutant) bool {
	const quick = 300 * time.Millisecond
	var first, rest []string
	for _, c := range b.cases {
		if !slices.Contains(m.tests, c.name) {
			continue
		}
		if c.duration < quick {
			first = append(first, c.name)
		} else {
			rest = append(rest, c.name)
		}
	}
	if len(first) > 0 && b.fails(ctx, m, first...) {
		return true
	}
	for _, name := range rest {
		if b.fails(ctx, m, name) {
			return true
		}
	}
	return false
}

func (b *bench) fails(ctx context.Context, m *mutant, tests ...string) bool {
	limited, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	cmd := b.command(limited, "-test.failfast", "-test.run", "^("+strings.Join(tests, "|")+")$")
	cmd.Env = append(os.Environ(), activeEnv+"="+strconv.Itoa(m.id))
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	return cmd.Run() != nil && ctx.Err() == nil
}

// command is a run of the instrumented tests, which ends with all that it started.
func (b *bench) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, b.binary, args...)
	cmd.Dir = b.pkg.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	return cmd
}

func withStderr(err error) error {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	return err
}
