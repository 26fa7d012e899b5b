package runtimetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// MaxParallel is the number of cases that Run runs at a time. Default: 4. With TestRuntime
// the flag -parallel of go test decides.
func MaxParallel(n int) Option { return func(s *suite) { s.maxParallel = n } }

// Only selects cases by their names. Default: all. With TestRuntime the flag -run of go
// test selects, too.
func Only(isSelected func(name string) bool) Option {
	return func(s *suite) { s.isSelected = isSelected }
}

// OnCase is called with the result of each case when it has ended: from any goroutine, but
// not from two at a time.
func OnCase(observe func(CaseResult)) Option { return func(s *suite) { s.onCase = observe } }

// OnReport is called with the report when all cases have ended.
func OnReport(observe func(Report)) Option { return func(s *suite) { s.onReport = observe } }

// runningPeriod is after how long OnRunning is called, and how often.
const runningPeriod = 30 * time.Second

// OnRunning is called for each case that has run for 30 s, and every 30 s from then on, with
// the time that it has run: from any goroutine, but not from two at a time, nor together
// with OnCase.
func OnRunning(observe func(caseName string, elapsed time.Duration)) Option {
	return func(s *suite) { s.onRunning = observe }
}

// Run runs the conformance suite outside of go test, and blocks until all cases have ended
// and their pods are removed. The error says why the suite could not run; failures of cases
// are in the report. When ctx ends, the cases that run fail and no other begins.
func Run(ctx context.Context, cc *grpc.ClientConn, opts ...Option) (Report, error) {
	s := newSuite(opts...)
	s.cc = cc
	if s.logs == "" {
		dir, err := os.MkdirTemp("", "sublet-cri-")
		if err != nil {
			return Report{}, fmt.Errorf("run the suite: %w", err)
		}
		defer func() { _ = os.RemoveAll(dir) }() // best effort: the logs may be root's
		s.logs = dir
	}
	if err := s.begin(ctx); err != nil {
		return Report{}, fmt.Errorf("run the suite: %w", err)
	}
	together, single := s.selected()
	slots := make(chan struct{}, max(1, s.maxParallel))
	var wg sync.WaitGroup
	for _, tc := range together {
		slots <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-slots }()
			s.result(ctx, tc)
		})
	}
	wg.Wait()
	for _, tc := range single {
		if ctx.Err() != nil {
			break
		}
		s.result(ctx, tc)
	}
	return s.end(), ctx.Err()
}

// versionTimeout bounds the first call: a runtime that accepts connections and never responds is not waited for.
const versionTimeout = time.Minute

// begin prepares the runtime, which must respond.
func (s *suite) begin(ctx context.Context) error {
	start := time.Now()
	versionCtx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	v, err := v1.NewRuntimeServiceClient(kubeletConn{s.cc}).Version(versionCtx, &v1.VersionRequest{})
	if err != nil {
		return fmt.Errorf("get the version of the runtime: %w", err)
	}
	s.report = Report{Runtime: v.GetRuntimeName(), Version: v.GetRuntimeVersion(), StartTime: start}
	s.addKnownRuntime(v)
	names := Cases()
	var errs []error
	for _, list := range []map[string]string{s.knownFailures, s.knownFlakes} {
		for name := range list {
			if !slices.Contains(names, name) {
				errs = append(errs, fmt.Errorf("known failures: case %q not found", name))
			}
		}
	}
	return errors.Join(append(errs, s.getImages(ctx))...)
}

// selected returns the cases to run: those that may run together, and those that may not.
func (s *suite) selected() (together, single []testCase) {
	for _, tc := range cases() {
		switch {
		case s.isSelected != nil && !s.isSelected(tc.name):
		case tc.needs&alone == 0:
			together = append(together, tc)
		default:
			single = append(single, tc)
		}
	}
	return together, single
}

// result runs one case, and adds its result to the report.
func (s *suite) result(ctx context.Context, tc testCase) CaseResult {
	start := time.Now()
	r := CaseResult{Area: areaNames()[tc.name], Name: tc.name, Consequence: tc.consequence}
	if reason := s.missing(tc); reason != "" {
		r.Result, r.Reason = Skipped, reason
	} else {
		stop := s.observeRunning(tc.name)
		c := s.execute(ctx, tc)
		stop()
		failures, skip := c.outcome()
		r.Failures = failures
		s.judge(&r, skip)
	}
	r.Seconds = time.Since(start).Seconds()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Cases = append(s.report.Cases, r)
	if s.onCase != nil {
		s.onCase(r)
	}
	return r
}

// outcome returns what the case has recorded.
func (c *CaseT) outcome() (failures []string, skip string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.failures), c.skip
}

// observeRunning calls onRunning now and then until stop is called, which waits for it.
func (s *suite) observeRunning(name string) (stop func()) {
	if s.onRunning == nil {
		return func() {}
	}
	ended := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(runningPeriod)
		defer tick.Stop()
		for elapsed := runningPeriod; ; elapsed += runningPeriod {
			select {
			case <-tick.C:
				s.mu.Lock()
				s.onRunning(name, elapsed)
				s.mu.Unlock()
			case <-ended:
				return
			}
		}
	})
	return func() {
		close(ended)
		wg.Wait()
	}
}

// judge sets the result of a case that has run.
func (s *suite) judge(r *CaseResult, skip string) {
	reason, known := s.knownFailures[r.Name]
	flake, sometimes := s.knownFlakes[r.Name]
	switch {
	case len(r.Failures) > 0 && known:
		r.Result, r.Reason = Deviation, reason
	case len(r.Failures) > 0 && sometimes:
		r.Result, r.Reason = Deviation, flake
	case len(r.Failures) > 0:
		r.Result = Failed
	case skip != "":
		r.Result, r.Reason = Skipped, skip
	case known:
		r.Result = Failed
		r.Failures = []string{fmt.Sprintf("passes, but is listed as a known failure (%s): remove it from the list", reason)}
	default:
		r.Result = Passed
	}
}

// end returns the report, with the cases in their order.
func (s *suite) end() Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	order := map[string]int{}
	for i, name := range Cases() {
		order[name] = i
	}
	slices.SortFunc(s.report.Cases, func(a, b CaseResult) int { return order[a.Name] - order[b.Name] })
	s.report.Seconds = time.Since(s.report.StartTime).Seconds()
	if s.onReport != nil {
		s.onReport(s.report)
	}
	return s.report
}

// String returns what is wrong, and its consequence, or why the case was skipped.
func (r CaseResult) String() string {
	text := printable(strings.Join(r.Failures, "\n"))
	switch r.Result {
	case Failed:
		return text + "\nConsequence for a kubelet: " + r.Consequence
	case Deviation:
		return "known failure: " + r.Reason + "\n" + text
	default:
		return r.Reason
	}
}
