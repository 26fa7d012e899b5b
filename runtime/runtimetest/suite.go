package runtimetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// caseTimeout bounds one case; no call sequence of a pod takes longer on a
// healthy runtime.
const caseTimeout = 2 * time.Minute

// Option changes what TestRuntime expects of a runtime.
type Option func(*suite)

// Image is what containers are made of. It must have sh, sleep, echo, cat and
// head [docker.io/library/busybox:1.36]. It is pulled when it is not there.
func Image(ref string) Option { return func(s *suite) { s.image = ref } }

// SecondImage is an image that the suite may remove and pull again. Without it
// the cases that do so are left out.
func SecondImage(ref string) Option { return func(s *suite) { s.second = ref } }

// EditPod is called with each pod's configuration before it is used, to name a
// cgroup parent or a runtime class.
func EditPod(edit func(*v1.PodSandboxConfig)) Option { return func(s *suite) { s.edit = edit } }

// KnownFailures are cases, by name, that this runtime is known to fail, with the
// reason. They run, and are reported as skipped when they fail; one that passes
// fails, so that the list stays true.
func KnownFailures(reasons map[string]string) Option {
	return func(s *suite) { s.deviations = reasons }
}

// KnownFlakes are cases, by name, that this runtime fails at times, with the reason.
func KnownFlakes(reasons map[string]string) Option { return func(s *suite) { s.flaky = reasons } }

// Restart is called to restart the runtime, and returns when it serves again.
// Without it the cases of a restart are left out.
func Restart(restart func(testing.TB)) Option { return func(s *suite) { s.restart = restart } }

// LogRoot is a folder for container logs that the runtime sees under the same
// path [the test's temporary folder].
func LogRoot(dir string) Option { return func(s *suite) { s.logs = dir } }

// LargeListSize is how many pods the cases of big lists make [20].
func LargeListSize(pods int) Option { return func(s *suite) { s.big = pods } }

// WithoutProcesses leaves out the cases that need real processes: for simulators.
func WithoutProcesses() Option { return func(s *suite) { s.simulated = true } }

// WithoutResourceLimits leaves out the cases that need resource limits to be kept: for
// runtimes without cgroups.
func WithoutResourceLimits() Option { return func(s *suite) { s.unlimited = true } }

// suite is one run of TestRuntime.
type suite struct {
	image, second string
	edit          func(*v1.PodSandboxConfig)
	deviations    map[string]string
	flaky         map[string]string
	restart       func(testing.TB)
	logs          string
	big           int
	simulated     bool
	unlimited     bool
	known         bool

	cc *grpc.ClientConn
	id string // of this run, in labels and namespaces
}

// testCase is one sequence of calls.
type testCase struct {
	name    string
	suffers string // what a kubelet suffers from a runtime that fails this
	needs   need
	run     func(*CaseT)
}

// need is what a case cannot do without.
type need uint8

const (
	processes need = 1 << iota // real ones
	limits                     // that are kept
	twoImages                  // SecondImage
	aRestart                   // Restart
	alone                      // no other case at the same time
)

// cases are all there are.
func cases() []testCase {
	return slices.Concat(sandboxCases(), networkCases(), createCases(), startCases(), endCases(), stopCases(), listCases(),
		execCases(), logCases(), eventCases(), imageCases(), statsCases(), refusalCases(), cutCases(), raceCases(), restartCases())
}

// Cases returns the names of all cases, for lists of deviations.
func Cases() []string {
	var names []string
	for _, tc := range cases() {
		names = append(names, tc.name)
	}
	return names
}

// TestRuntime runs the conformance suite against the runtime that dial gives a
// connection to, each case as a subtest.
func TestRuntime(t *testing.T, dial func(testing.TB) *grpc.ClientConn, opts ...Option) {
	t.Helper()
	s := &suite{image: "docker.io/library/busybox:1.36", big: 20, id: fmt.Sprintf("%08x", rand.Uint32())}
	for _, o := range opts {
		o(s)
	}
	if s.logs == "" {
		s.logs = t.TempDir()
	}
	s.cc = dial(t)
	if err := s.recognise(t.Context()); err != nil {
		t.Fatalf("ask the runtime for its version: %v", err)
	}
	known := Cases()
	for _, list := range []map[string]string{s.deviations, s.flaky} {
		for name := range list {
			if !slices.Contains(known, name) {
				t.Errorf("deviations: there is no case %q", name)
			}
		}
	}
	s.prepare(t)
	t.Run("together", func(t *testing.T) {
		for _, tc := range cases() {
			if tc.needs&alone == 0 {
				t.Run(tc.name, func(t *testing.T) {
					t.Parallel()
					s.test(t, tc)
				})
			}
		}
	})
	t.Run("alone", func(t *testing.T) {
		for _, tc := range cases() {
			if tc.needs&alone != 0 {
				t.Run(tc.name, func(t *testing.T) { s.test(t, tc) })
			}
		}
	})
}

// prepare pulls the images.
func (s *suite) prepare(t *testing.T) {
	is := v1.NewImageServiceClient(s.cc)
	for _, ref := range []string{s.image, s.second} {
		if ref == "" {
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), caseTimeout)
		st, err := is.ImageStatus(ctx, &v1.ImageStatusRequest{Image: &v1.ImageSpec{Image: ref}})
		if err == nil && st.GetImage() == nil {
			_, err = is.PullImage(ctx, &v1.PullImageRequest{Image: &v1.ImageSpec{Image: ref}})
		}
		cancel()
		if err != nil {
			t.Fatalf("get image %s: %v", ref, err)
		}
	}
}

// test runs one case and judges it.
func (s *suite) test(t *testing.T, tc testCase) {
	switch {
	case tc.needs&processes != 0 && s.simulated:
		t.Skip("needs real processes")
	case tc.needs&limits != 0 && s.unlimited:
		t.Skip("needs resource limits")
	case tc.needs&twoImages != 0 && s.second == "":
		t.Skip("needs an image that may be removed: give SecondImage")
	case tc.needs&aRestart != 0 && s.restart == nil:
		t.Skip("needs a way to restart the runtime: give Restart")
	}
	ctx, cancel := context.WithTimeout(t.Context(), caseTimeout)
	defer cancel()
	c := &CaseT{
		t: t, s: s, ctx: ctx, rs: v1.NewRuntimeServiceClient(s.cc), is: v1.NewImageServiceClient(s.cc),
		ns: fmt.Sprintf("sublet-test-%s-%08x", s.id, rand.Uint32()),
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				c.Errorf("panic: %v\n%s", p, debug.Stack())
			}
		}()
		tc.run(c)
	}()
	<-done
	c.clean(context.WithoutCancel(ctx))

	why, known := s.deviations[tc.name]
	flaky, sometimes := s.flaky[tc.name]
	faults := strings.Join(c.faults, "\n")
	switch {
	case len(c.faults) > 0 && known:
		t.Skipf("known deviation: %s\n%s", why, faults)
	case len(c.faults) > 0 && sometimes:
		t.Skipf("known deviation, not always seen: %s\n%s", flaky, faults)
	case len(c.faults) > 0:
		t.Errorf("%s\nA kubelet would suffer: %s", faults, tc.suffers)
	case c.skip != "":
		t.Skip(c.skip)
	case known:
		t.Errorf("passes, but is listed as a deviation (%s): take it off the list", why)
	}
}

// CaseT is one case at work. Its methods that fail end the case's goroutine.
type CaseT struct {
	t   *testing.T
	s   *suite
	ctx context.Context
	rs  v1.RuntimeServiceClient
	is  v1.ImageServiceClient
	ns  string // of all the case's pods

	mu     sync.Mutex // guards the rest
	faults []string
	skip   string
}

// Errorf notes a fault.
func (c *CaseT) Errorf(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, fmt.Sprintf(format, args...))
}

// fatal notes a fault and ends the case.
func (c *CaseT) fatal(format string, args ...any) {
	c.Errorf(format, args...)
	runtime.Goexit()
}

// ok ends the case if err is not nil.
func (c *CaseT) ok(err error, what string) {
	if err != nil {
		c.fatal("%s: %v", what, err)
	}
}

// implemented ends the case, well, if a call is not implemented.
func (c *CaseT) implemented(err error, what string) {
	if status.Code(err) == codes.Unimplemented {
		c.mu.Lock()
		c.skip = what + " is not implemented"
		c.mu.Unlock()
		runtime.Goexit()
	}
	c.ok(err, what)
}

// refused wants an error, with one of the codes if any are given.
func (c *CaseT) refused(err error, what string, want ...codes.Code) {
	if err == nil {
		c.Errorf("%s: was not refused", what)
		return
	}
	if len(want) > 0 && !slices.Contains(want, status.Code(err)) {
		c.Errorf("%s: refused with code %s, want %v: %v", what, status.Code(err), want, err)
	}
}

// same wants two values to be equal.
func same[T comparable](c *CaseT, want, got T, what string) {
	if want != got {
		c.Errorf("%s: is %v, want %v", what, got, want)
	}
}

// check wants cond to be true.
func (c *CaseT) check(cond bool, format string, args ...any) {
	if !cond {
		c.Errorf(format, args...)
	}
}

// until polls cond, and ends the case if it has not come true in time.
func (c *CaseT) until(within time.Duration, what string, cond func() bool) {
	deadline := time.Now().Add(within)
	for !cond() {
		if time.Now().After(deadline) {
			c.fatal("%s: not within %s", what, within)
		}
		if err := pause(c.ctx, 10*time.Millisecond); err != nil {
			c.fatal("%s: %v", what, err)
		}
	}
}

// wait lets time pass.
func (c *CaseT) wait(d time.Duration) { c.ok(pause(c.ctx, d), "wait") }

// clean removes all pods of the case, whatever state they are in.
func (c *CaseT) clean(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, caseTimeout)
	defer cancel()
	list, err := c.rs.ListPodSandbox(ctx, &v1.ListPodSandboxRequest{Filter: &v1.PodSandboxFilter{
		LabelSelector: map[string]string{runLabel: c.s.id},
	}})
	if err != nil {
		c.Errorf("clean up: list pods: %v", err)
		return
	}
	for _, p := range list.GetItems() {
		if p.GetMetadata().GetNamespace() != c.ns {
			continue
		}
		if _, err := c.rs.StopPodSandbox(ctx, &v1.StopPodSandboxRequest{PodSandboxId: p.GetId()}); err != nil {
			c.Errorf("clean up: stop pod %s: %v", p.GetMetadata().GetName(), err)
		}
		if _, err := c.rs.RemovePodSandbox(ctx, &v1.RemovePodSandboxRequest{PodSandboxId: p.GetId()}); err != nil {
			c.Errorf("clean up: remove pod %s: %v", p.GetMetadata().GetName(), err)
		}
	}
	_ = os.RemoveAll(c.logDir("")) // the logs may be root's
}
