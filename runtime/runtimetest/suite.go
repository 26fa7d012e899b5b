package runtimetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/hugepages"
	"github.com/sublet-dev/agent/internal/sleep"
)

// caseTimeout bounds one case. No call sequence of a case takes that long on a
// healthy runtime, be the machine ever so busy.
const caseTimeout = 4 * time.Minute

// Option configures TestRuntime and Run.
type Option func(*suite)

// Image sets the image of the containers. It must have the programs of busybox. It is
// pulled if the runtime does not have it. Default: docker.io/library/busybox:1.36.
func Image(ref string) Option { return func(s *suite) { s.image = ref } }

// SecondImage is an image with sh and sleep that the suite may remove and pull again, and whose
// stop signal, if it has one, is tested. Without it the cases that do so are skipped.
func SecondImage(ref string) Option { return func(s *suite) { s.second = ref } }

// EditPod is called with the configuration of each pod before it is used, for
// example to set a cgroup parent.
func EditPod(edit func(*v1.PodSandboxConfig)) Option { return func(s *suite) { s.edit = edit } }

// KnownFailures are cases, by name, that this runtime is known to fail, with the
// reason. They run, and one that fails is a Deviation, which go test shows as skipped. One
// that passes is reported as a failure, so that the list stays true.
func KnownFailures(reasons map[string]string) Option {
	return func(s *suite) { s.knownFailures = reasons }
}

// KnownFlakes are cases, by name, that this runtime fails at times, with the
// reason. One that fails is a Deviation, which go test shows as skipped.
func KnownFlakes(reasons map[string]string) Option { return func(s *suite) { s.knownFlakes = reasons } }

// Restart is called to restart the runtime, and returns when it serves again.
// Without it the cases of a restart are skipped.
func Restart(restart func(context.Context) error) Option {
	return func(s *suite) { s.restart = restart }
}

// LogRoot is a directory for container logs and mounts that the runtime has at the same
// path. Default: a temporary directory of the test.
func LogRoot(dir string) Option { return func(s *suite) { s.logs = dir } }

// LargeListSize is the number of pods in the cases of large lists. Default: 20.
func LargeListSize(pods int) Option { return func(s *suite) { s.largeListSize = pods } }

// WithoutProcesses skips the cases that need real processes: for simulators.
func WithoutProcesses() Option {
	return func(s *suite) { s.absent |= processes | isolation | confinement }
}

// WithoutIsolation skips the cases that need mounts, host names and users of a
// container's own: for runtimes of an ordinary user without namespaces.
func WithoutIsolation() Option { return func(s *suite) { s.absent |= isolation | confinement } }

// WithoutConfinement skips the cases that need namespaces, capabilities, devices, seccomp
// and a root file system of a container's own: for runtimes whose containers are
// processes of the machine.
func WithoutConfinement() Option { return func(s *suite) { s.absent |= confinement } }

// WithoutResourceLimits skips the cases that need resource limits to be enforced:
// for runtimes without cgroups.
func WithoutResourceLimits() Option { return func(s *suite) { s.absent |= limits } }

// WithoutHostPorts skips the cases that connect to host ports of pods: for networks that do
// not serve them, as CNI networks without the plug-in portmap.
func WithoutHostPorts() Option { return func(s *suite) { s.absent |= hostPorts } }

// PrivateImage is an image that can be pulled only with these credentials. The suite
// removes it and pulls it again. Without it the cases of credentials are skipped.
func PrivateImage(ref, username, password string) Option {
	return func(s *suite) {
		s.private, s.credentials = ref, &v1.AuthConfig{Username: username, Password: password}
	}
}

// CDISpecDir is a directory where the runtime finds CDI specifications. The suite writes one
// of its own there and removes it. Without it the cases of CDI devices are skipped.
func CDISpecDir(dir string) Option { return func(s *suite) { s.cdi = dir } }

// suite is one run of TestRuntime.
type suite struct {
	image, second string
	private       string
	credentials   *v1.AuthConfig // of private
	cdi           string
	nodeHas       func(nodeFeature) bool
	hugePages     func() []int64
	isMountShared func(dir string) bool
	edit          func(*v1.PodSandboxConfig)
	knownFailures map[string]string
	knownFlakes   map[string]string
	restart       func(context.Context) error
	logs          string
	largeListSize int
	absent        need // what the runtime does not have
	knownRuntimes bool
	maxParallel   int
	isSelected    func(name string) bool
	onCase        func(CaseResult)
	onRunning     func(string, time.Duration)
	onReport      func(Report)

	cc   *grpc.ClientConn
	id   string                                          // of this run, in labels and namespaces
	dial func(context.Context, string) (net.Conn, error) // to the streaming server; nil is the network

	// reserve is what waits may take on a busy machine beyond what a case expects. It costs nothing where
	// the runtime does what is waited for.
	reserve time.Duration

	mu     sync.Mutex // guards report, and calls of onCase and onRunning
	report Report
}

// testCase is one sequence of calls.
type testCase struct {
	name        string
	consequence string // for a kubelet on a runtime that fails this
	needs       need
	run         func(*CaseT)
}

// need is a set of what a case requires.
type need uint16

const (
	processes     need = 1 << iota // real ones
	isolation                      // mounts, host names and users of a container's own
	limits                         // that are enforced
	confinement                    // namespaces, capabilities, devices and files of a container's own
	twoImages                      // SecondImage
	aRestart                       // Restart
	hostPorts                      // that are served
	aPrivateImage                  // PrivateImage
	cdiSpecs                       // CDISpecDir
	alone                          // no other case at the same time
)

// Cases returns the names of all cases, as KnownFailures and KnownFlakes take them.
func Cases() []string {
	var names []string
	for _, tc := range cases() {
		names = append(names, tc.name)
	}
	return names
}

// newSuite returns a suite with defaults for what opts leave out.
func newSuite(opts ...Option) *suite {
	s := &suite{image: "docker.io/library/busybox:1.36", largeListSize: 20, maxParallel: 4, nodeHas: nodeHas, hugePages: func() []int64 { return hugepages.Sizes(os.DirFS("/")) }, isMountShared: isMountShared, reserve: 40 * time.Second, id: fmt.Sprintf("%08x", rand.Uint32())}
	for _, o := range opts {
		o(s)
	}
	return s
}

// TestRuntime runs the conformance suite against the runtime that dial connects
// to, each case as a subtest.
func TestRuntime(t *testing.T, dial func(testing.TB) *grpc.ClientConn, opts ...Option) {
	t.Helper()
	s := newSuite(opts...)
	if s.logs == "" {
		s.logs = t.TempDir()
	}
	s.cc = dial(t)
	if err := s.begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := untilDeadline(t.Context(), t.Deadline)
	defer cancel()
	together, single := s.selected()
	t.Run("together", func(t *testing.T) {
		for _, tc := range together {
			t.Run(tc.name, func(t *testing.T) {
				t.Parallel()
				s.test(ctx, t, tc)
			})
		}
	})
	t.Run("alone", func(t *testing.T) {
		for _, tc := range single {
			t.Run(tc.name, func(t *testing.T) { s.test(ctx, t, tc) })
		}
	})
	s.end()
}

// getImages pulls the images that the runtime does not have.
func (s *suite) getImages(ctx context.Context) error {
	is := v1.NewImageServiceClient(kubeletConn{s.cc})
	for _, ref := range []string{s.image, s.second} {
		if ref == "" {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, caseTimeout)
		st, err := is.ImageStatus(ctx, &v1.ImageStatusRequest{Image: &v1.ImageSpec{Image: ref}})
		if err == nil && st.GetImage() == nil {
			_, err = is.PullImage(ctx, &v1.PullImageRequest{Image: &v1.ImageSpec{Image: ref}})
		}
		cancel()
		if err != nil {
			return fmt.Errorf("get image %s: %w", ref, err)
		}
	}
	return nil
}

// missing returns why a case cannot run here, or "".
func (s *suite) missing(tc testCase) string {
	switch {
	case tc.needs&s.absent&processes != 0:
		return "needs real processes"
	case tc.needs&s.absent&isolation != 0:
		return "needs isolated containers"
	case tc.needs&s.absent&confinement != 0:
		return "needs confined containers"
	case tc.needs&s.absent&limits != 0:
		return "needs resource limits"
	case tc.needs&s.absent&hostPorts != 0:
		return "needs a network that serves host ports"
	case tc.needs&aPrivateImage != 0 && s.private == "":
		return "needs an image of a registry that demands credentials: set PrivateImage"
	case tc.needs&cdiSpecs != 0 && s.cdi == "":
		return "needs a directory of CDI specifications: set CDISpecDir"
	case tc.needs&twoImages != 0 && s.second == "":
		return "needs an image that may be removed: set SecondImage"
	case tc.needs&aRestart != 0 && s.restart == nil:
		return "needs a way to restart the runtime: set Restart"
	}
	return ""
}

// test runs one case as a test.
func (s *suite) test(ctx context.Context, t *testing.T, tc testCase) {
	if ctx.Err() != nil {
		t.Fatal(errTestTimeout)
	}
	switch r := s.result(ctx, tc); r.Result {
	case Failed:
		t.Error(r)
		if errors.Is(context.Cause(ctx), errTestTimeout) {
			t.Error(errTestTimeout)
		}
	case Deviation, Skipped:
		t.Skip(r)
	case Passed:
	}
}

// execute runs one case and removes its pods.
func (s *suite) execute(ctx context.Context, tc testCase) *CaseT {
	ctx, cancel := context.WithTimeout(ctx, caseTimeout)
	defer cancel()
	c := &CaseT{
		s: s, ctx: ctx, rs: v1.NewRuntimeServiceClient(kubeletConn{s.cc}), is: v1.NewImageServiceClient(kubeletConn{s.cc}),
		ns: fmt.Sprintf("sublet-test-%s-%08x", s.id, rand.Uint32()),
	}
	done := make(chan struct{})
	go func() { // a case ends by Goexit, which must not end the test
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				c.Errorf("panic: %v\n%s", p, debug.Stack())
			}
		}()
		tc.run(c)
	}()
	<-done
	cancel() // a case that has failed may have left calls behind, which would make pods meanwhile
	c.cleanup(context.WithoutCancel(ctx))
	return c
}

// CaseT is one run of a case. Methods that end the case end its goroutine.
type CaseT struct {
	s   *suite
	ctx context.Context
	rs  v1.RuntimeServiceClient
	is  v1.ImageServiceClient
	ns  string // of all the case's pods

	mu       sync.Mutex // guards the rest
	made     []string   // the ids of pods that ran, in case no list has them
	failures []string
	skip     string
	podTime  time.Duration // the longest that running a pod took
}

// took records how long running a pod took.
func (c *CaseT) took(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.podTime = max(c.podTime, d)
}

// allow returns a bound with the time that a busy machine needs: where running a pod takes
// seconds, so does all else.
func (c *CaseT) allow(bound time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bound + 2*c.podTime
}

// Errorf records a failure; the case goes on.
func (c *CaseT) Errorf(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures = append(c.failures, fmt.Sprintf(format, args...))
}

// fatal records a failure and ends the case.
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

// implemented ends the case as skipped if a call is not implemented, and as failed
// for any other error.
func (c *CaseT) implemented(err error, what string) {
	if status.Code(err) == codes.Unimplemented {
		c.skipped(what + " is not implemented")
	}
	c.ok(err, what)
}

// skipped ends the case as skipped.
func (c *CaseT) skipped(why string) {
	c.mu.Lock()
	c.skip = why
	c.mu.Unlock()
	runtime.Goexit()
}

// rejected expects an error, with one of the codes if any are given.
func (c *CaseT) rejected(err error, what string, want ...codes.Code) {
	if err == nil {
		c.Errorf("%s: succeeded, want an error", what)
		return
	}
	if len(want) > 0 && !slices.Contains(want, status.Code(err)) {
		c.Errorf("%s: failed with code %s, want %v: %v", what, status.Code(err), want, err)
	}
}

// check expects cond to be true.
func (c *CaseT) check(cond bool, format string, args ...any) {
	if !cond {
		c.Errorf(format, args...)
	}
}

// until polls cond, which calls the runtime, and ends the case if it does not become true in the
// time that is allowed. What has taken long is polled less often, by a tenth of the time that has
// passed: a runtime that is slow may be so because it is busy.
func (c *CaseT) until(within time.Duration, what string, cond func() bool) {
	c.poll(within, what, cond, func(waited time.Duration) time.Duration {
		return min(max(10*time.Millisecond, waited/10), 200*time.Millisecond)
	})
}

// received is until for a cond that looks only at what has been received.
func (c *CaseT) received(within time.Duration, what string, cond func() bool) {
	c.poll(within, what, cond, func(time.Duration) time.Duration { return 10 * time.Millisecond })
}

func (c *CaseT) poll(within time.Duration, what string, cond func() bool, interval func(waited time.Duration) time.Duration) {
	within = c.allow(within + c.s.reserve)
	startTime := time.Now()
	for !cond() {
		waited := time.Since(startTime)
		if waited > within {
			c.fatal("%s: did not happen within %s", what, within)
		}
		if err := sleep.For(c.ctx, interval(waited)); err != nil {
			c.fatal("%s: %v", what, err)
		}
	}
}

// wait lets time pass.
func (c *CaseT) wait(d time.Duration) { c.ok(sleep.For(c.ctx, d), "wait") }
