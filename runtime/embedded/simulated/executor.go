package simulated

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/sleep"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/internal/reference"
)

// Config is the configuration of an Executor.
type Config struct {
	// Script is the script of containers whose image, command and annotations have none.
	Script Script
	// Images are the scripts of containers by the reference of their image, in any form
	// in which it can be pulled. Such a script replaces Script.
	Images map[string]Script
	// LogsAtStart creates each container's log file when it starts, as runtimes of real
	// containers do, rather than at its first output. Clients that follow the log of a
	// silent container need it.
	LogsAtStart bool
}

// Executor plays containers from scripts. The script of a container is merged from, in
// increasing precedence: Config.Script or the script of the image, the command if it
// is a simple one, annotations of the pod, annotations of the container.
//
// It reads time from package time only, and has no goroutine for an idle container
// except the reader of its stdin. It writes no files but the logs of containers that
// print, or of all if LogsAtStart, and the mounted file of a termination message.
// Connections to its pods are in memory: every running container answers on all ports,
// unless its script has others.
type Executor struct {
	cfg Config

	mu    sync.Mutex                          // guards the rest
	pods  map[*v1.PodSandboxConfig][]*process // that run
	pulls map[string]int                      // that failed, by pod and image
}

var (
	_ embedded.Executor        = (*Executor)(nil)
	_ embedded.Checker         = (*Executor)(nil)
	_ embedded.SandboxPreparer = (*Executor)(nil)
	_ embedded.PullPreparer    = (*Executor)(nil)
	_ embedded.Dialer          = (*Executor)(nil)
	_ embedded.ResourceUpdater = (*process)(nil)
)

// New returns an executor that plays containers.
func New(cfg Config) *Executor {
	return &Executor{cfg: cfg}
}

// Check implements embedded.Checker.
func (s *Executor) Check() error {
	var errs []error
	if err := s.cfg.Script.check(); err != nil {
		errs = append(errs, fmt.Errorf("simulated: Config.Script: %w", err))
	}
	for ref, script := range s.cfg.Images {
		if _, err := reference.Parse(ref); err != nil {
			errs = append(errs, fmt.Errorf("simulated: Config.Images: %w", err))
		}
		if err := script.check(); err != nil {
			errs = append(errs, fmt.Errorf("simulated: Config.Images[%q]: %w", ref, err))
		}
	}
	return errors.Join(errs...)
}

// ofImage returns the script of containers of an image.
func (s *Executor) ofImage(image *embedded.Image) Script {
	for _, ref := range slices.Sorted(maps.Keys(s.cfg.Images)) {
		if image.IsNamed(ref) {
			return s.cfg.Images[ref]
		}
	}
	return s.cfg.Script
}

// scriptOf returns the merged script of c.
func (s *Executor) scriptOf(c *embedded.Container) (Script, error) {
	script := s.ofImage(c.Image)
	if argv, err := c.Argv(); err == nil {
		if compiled, ok := compile(argv); ok {
			script.RunFor, script.ExitCodes, script.Output = compiled.RunFor, compiled.ExitCodes, compiled.Output
			script.IgnoreTERM = script.IgnoreTERM || compiled.IgnoreTERM
			if compiled.TermExitCode != nil {
				script.TermExitCode = compiled.TermExitCode
			}
		}
	}
	name := c.Config.GetMetadata().GetName()
	script, err := script.apply(name, c.Pod.GetAnnotations())
	if err != nil {
		return script, err
	}
	return script.apply(name, c.Config.GetAnnotations())
}

// Sandbox implements embedded.SandboxPreparer: it delays or fails a sandbox by its annotations.
func (s *Executor) Sandbox(ctx context.Context, pod *v1.PodSandboxConfig) error {
	script, err := s.cfg.Script.apply("", pod.GetAnnotations())
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if err := sleep.For(ctx, script.SandboxDelay); err != nil {
		return err
	}
	if script.SandboxError != "" {
		return errors.New(script.SandboxError)
	}
	return nil
}

// Pull implements embedded.PullPreparer: it delays or fails a pull by the annotations of
// the pod that needs the image.
func (s *Executor) Pull(ctx context.Context, ref string, pod *v1.PodSandboxConfig) error {
	script, err := s.cfg.Script.apply("", pod.GetAnnotations())
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if err := sleep.For(ctx, script.PullDelay); err != nil {
		return err
	}
	if script.PullError == "" || script.PullFailures > 0 && s.countFailedPull(pod.GetMetadata().GetUid()+" "+ref, script.PullFailures) {
		return nil
	}
	return errors.New(script.PullError)
}

// countFailedPull counts a failed pull. It returns true if so many have failed before, and
// forgets them.
func (s *Executor) countFailedPull(key string, most int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pulls[key] == most {
		delete(s.pulls, key)
		return true
	}
	if s.pulls == nil {
		s.pulls = map[string]int{}
	}
	s.pulls[key]++
	return false
}

// Create implements embedded.Executor.
func (s *Executor) Create(_ context.Context, c *embedded.Container) error {
	script, err := s.scriptOf(c)
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if script.CreateError != "" {
		return errors.New(script.CreateError)
	}
	return nil
}

// Remove implements embedded.Executor.
func (s *Executor) Remove(*embedded.Container) {}

// Start implements embedded.Executor.
func (s *Executor) Start(ctx context.Context, c *embedded.Container, sio embedded.IO, exited func(embedded.Exit)) (embedded.Process, error) {
	script, err := s.scriptOf(c)
	if err != nil {
		return nil, err
	}
	if script.StartHang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if err := sleep.For(ctx, script.StartDelay); err != nil {
		return nil, err
	}
	if script.StartError != "" {
		return nil, errors.New(script.StartError)
	}
	if sio.Log != nil && s.cfg.LogsAtStart {
		if err := sio.Log.Create(); err != nil {
			return nil, fmt.Errorf("open log: %w", err)
		}
		sio.Log.Release()
	}
	p := &process{s: s, c: c, script: script, io: sio, exited: exited, start: time.Now()}
	p.limit = uint64(max(0, c.Config.GetLinux().GetResources().GetMemoryLimitInBytes()))
	p.mu.Lock()
	defer p.mu.Unlock()
	s.runs(p, true)
	p.timer = time.AfterFunc(forever, p.tick)
	p.arm()
	if sio.Stdin != nil {
		p.readStdin(ctx, sio)
	}
	return p, nil
}
