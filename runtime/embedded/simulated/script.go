package simulated

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/health/grpc_health_v1"
)

// ScriptPrefix is the domain of the annotations that script simulated
// containers. On a pod, sim.sublet.dev/KEY counts for all its containers and
// NAME.sim.sublet.dev/KEY for the container NAME alone; on a container,
// sim.sublet.dev/KEY. See Script for the keys.
const ScriptPrefix = "sim.sublet.dev/"

// Script is the behaviour of a simulated container. Each field has its annotation key in
// brackets. The zero value runs until it is stopped.
type Script struct {
	// RunFor [run-for: 30s] is the time until it exits; 0 is until it is stopped.
	RunFor time.Duration
	// ExitCodes [exit-code: 1,1,0] are by attempt; the last one repeats.
	ExitCodes []int32
	// Output is printed line by line; [output: text] prints text at the start.
	Output []OutputLine
	// OutputEvery [output-every: 1s] prints Output periodically.
	OutputEvery time.Duration
	// Message [termination-message: text] is the termination message.
	Message string
	// Memory and Disk [memory: 0s=10Mi,1m=100Mi] are the use over time, linear between
	// points. When Memory reaches the container's limit, it is OOM killed.
	Memory, Disk []UsagePoint
	// CPU [cpu: 250m, or 0s=50m,1m=2] is the use over time in the same way.
	CPU []CPUPoint
	// OOMAfter [oom-after: 10s] kills it as the kernel would.
	OOMAfter time.Duration
	// IgnoreTERM [ignore-term: true] ignores all signals but SIGKILL.
	IgnoreTERM bool
	// StopAfter [stop-after: 2s] is the time from the stop signal to its exit, with
	// TermExitCode [term-exit-code: 0]. Default of TermExitCode: 128 + signal.
	StopAfter    time.Duration
	TermExitCode *int32
	// CreateError, StartError [create-error, start-error: text] fail the call.
	CreateError, StartError string
	// StartDelay [start-delay: 5s] is the duration of the start; StartHang
	// [start-hang: true] blocks it until its caller gives up.
	StartDelay time.Duration
	StartHang  bool
	// SandboxDelay, SandboxError [sandbox-delay, sandbox-error] are of the pod.
	SandboxDelay time.Duration
	SandboxError string
	// PullDelay, PullError [pull-delay: 1m, pull-error: text] are of the images that a pod
	// pulls. PullFailures [pull-failures: 2] is how often each pull fails; 0 is always.
	PullDelay    time.Duration
	PullError    string
	PullFailures int
	// Exec [exec-exit-code: 1,1,0, exec-output, exec-delay] is the result of every
	// command run in the container. Without it a few commands are simulated: true,
	// false, echo, sleep, exit, kill, and sh -c of these.
	ExecExitCodes []int32
	ExecOutput    string
	ExecDelay     time.Duration
	// Ports [ports: 80,8080 or none] are the ports on which the container listens for
	// probes, hooks and port-forward. Default: all.
	Ports []int32
	// ListenAfter [listen-after: 10s] is the time from its start until it listens, and
	// AnswerDelay [answer-delay: 2s] the duration of each connection attempt.
	ListenAfter, AnswerDelay time.Duration
	// HTTPStatus [http-status: 503,503,200] and GRPCStatus [grpc-status:
	// NOT_SERVING,SERVING] answer HTTP requests and gRPC health checks in order; the
	// last one repeats. Defaults: 200 and SERVING.
	HTTPStatus, GRPCStatus []int32
	// HTTPStatusAt and GRPCStatusAt [http-status: 10m=503,20m=200] answer by the time since
	// the start instead: each from its time on, the defaults before the first one.
	HTTPStatusAt, GRPCStatusAt []AnswerPoint
}

// AnswerPoint is the answer from a time after the start on.
type AnswerPoint struct {
	At   time.Duration
	Code int32
}

// OutputLine is one line of output.
type OutputLine struct {
	At     time.Duration // after the start
	Stderr bool
	Text   string // without the newline
	Open   bool   // no newline follows it
}

// check validates the script.
func (s *Script) check() error {
	if s == nil {
		return nil
	}
	var errs []error
	for _, d := range []time.Duration{s.RunFor, s.OutputEvery, s.OOMAfter, s.StopAfter, s.StartDelay, s.SandboxDelay, s.ExecDelay, s.ListenAfter, s.AnswerDelay, s.PullDelay} {
		if d < 0 {
			errs = append(errs, fmt.Errorf("script: negative duration %s", d))
		}
	}
	for _, curve := range [][]UsagePoint{s.Memory, s.Disk, curve(s.CPU)} {
		if !slices.IsSortedFunc(curve, func(a, b UsagePoint) int { return cmp.Compare(a.At, b.At) }) {
			errs = append(errs, errors.New("script: usage points must be in order of time"))
		}
	}
	for _, answers := range [][]AnswerPoint{s.HTTPStatusAt, s.GRPCStatusAt} {
		if !slices.IsSortedFunc(answers, func(a, b AnswerPoint) int { return cmp.Compare(a.At, b.At) }) {
			errs = append(errs, errors.New("script: answers must be in order of time"))
		}
	}
	if s.PullFailures < 0 {
		errs = append(errs, fmt.Errorf("script: negative number of failures %d", s.PullFailures))
	}
	return errors.Join(errs...)
}

// apply returns s overridden by the annotations for a container.
func (s Script) apply(container string, annotations map[string]string) (Script, error) {
	var errs []error
	// Keys for all containers first, so that those for one win.
	for _, prefix := range []string{ScriptPrefix, container + "." + ScriptPrefix} {
		for name, value := range annotations {
			if key, ok := strings.CutPrefix(name, prefix); ok {
				if err := s.set(key, value); err != nil {
					errs = append(errs, fmt.Errorf("annotation %s: %w", name, err))
				}
			}
		}
	}
	return s, errors.Join(append(errs, s.check())...)
}

// set sets the field of an annotation key.
func (s *Script) set(key, value string) (err error) {
	switch key {
	case "run-for":
		s.RunFor, err = time.ParseDuration(value)
	case "exit-code":
		s.ExitCodes, err = codeList(value)
	case "output":
		s.Output = lines(value)
	case "output-every":
		s.OutputEvery, err = time.ParseDuration(value)
	case "termination-message":
		s.Message = value
	case "memory":
		s.Memory, err = parseUsage(value)
	case "disk":
		s.Disk, err = parseUsage(value)
	case "cpu":
		s.CPU, err = parseCPU(value)
	case "oom-after":
		s.OOMAfter, err = time.ParseDuration(value)
	case "ignore-term":
		s.IgnoreTERM, err = strconv.ParseBool(value)
	case "stop-after":
		s.StopAfter, err = time.ParseDuration(value)
	case "term-exit-code":
		var codes []int32
		if codes, err = codeList(value); err == nil {
			s.TermExitCode = &codes[0]
		}
	default:
		return s.setFailure(key, value)
	}
	return err
}

// setFailure sets the fields of failures, delays and exec.
func (s *Script) setFailure(key, value string) (err error) {
	switch key {
	case "create-error":
		s.CreateError = value
	case "start-error":
		s.StartError = value
	case "start-delay":
		s.StartDelay, err = time.ParseDuration(value)
	case "start-hang":
		s.StartHang, err = strconv.ParseBool(value)
	case "sandbox-delay":
		s.SandboxDelay, err = time.ParseDuration(value)
	case "sandbox-error":
		s.SandboxError = value
	case "pull-delay":
		s.PullDelay, err = time.ParseDuration(value)
	case "pull-error":
		s.PullError = value
	case "pull-failures":
		s.PullFailures, err = strconv.Atoi(value)
	case "exec-exit-code":
		s.ExecExitCodes, err = codeList(value)
	case "exec-output":
		s.ExecOutput = value
	case "exec-delay":
		s.ExecDelay, err = time.ParseDuration(value)
	default:
		return s.setAnswer(key, value)
	}
	return err
}

// setAnswer sets the fields of its ports.
func (s *Script) setAnswer(key, value string) (err error) {
	switch key {
	case "ports":
		s.Ports = []int32{}
		if value != "none" {
			s.Ports, err = codeList(value)
		}
	case "listen-after":
		s.ListenAfter, err = time.ParseDuration(value)
	case "answer-delay":
		s.AnswerDelay, err = time.ParseDuration(value)
	case "http-status":
		s.HTTPStatus, s.HTTPStatusAt, err = answers(value, httpStatus)
	case "grpc-status":
		s.GRPCStatus, s.GRPCStatusAt, err = answers(value, servingStatus)
	default:
		return errors.New("unknown key")
	}
	return err
}

// answers parses answers in order, or by time if each has one.
func answers(value string, parse func(string) (int32, error)) (inOrder []int32, byTime []AnswerPoint, err error) {
	for part := range strings.SplitSeq(value, ",") {
		at, name, timed := strings.Cut(strings.TrimSpace(part), "=")
		if !timed {
			name = at
		}
		code, err := parse(name)
		if err != nil {
			return nil, nil, err
		}
		if !timed {
			inOrder = append(inOrder, code)
			continue
		}
		after, err := time.ParseDuration(at)
		if err != nil {
			return nil, nil, err
		}
		byTime = append(byTime, AnswerPoint{At: after, Code: code})
	}
	if len(inOrder) > 0 && len(byTime) > 0 {
		return nil, nil, fmt.Errorf("%q: either all answers have a time or none", value)
	}
	return inOrder, byTime, nil
}

func httpStatus(value string) (int32, error) {
	n, err := strconv.ParseInt(value, 10, 32)
	if err == nil && (n < 100 || n > 599) {
		err = fmt.Errorf("invalid HTTP status %d", n)
	}
	return int32(n), err
}

// servingStatus parses a status of the gRPC health protocol by name.
func servingStatus(name string) (int32, error) {
	n, ok := grpc_health_v1.HealthCheckResponse_ServingStatus_value[name]
	if !ok {
		return 0, fmt.Errorf("invalid serving status %q", name)
	}
	return n, nil
}

func lines(text string) []OutputLine {
	var out []OutputLine
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		out = append(out, OutputLine{Text: line})
	}
	return out
}

func codeList(value string) ([]int32, error) {
	var out []int32
	for part := range strings.SplitSeq(value, ",") {
		n, err := strconv.ParseInt(strings.TrimSpace(part), 10, 32)
		if err != nil {
			return nil, err
		}
		out = append(out, int32(n))
	}
	return out, nil
}

// byAttempt returns the n-th of codes, the last one for larger n, 0 for none.
func byAttempt(codes []int32, n int) int32 {
	if len(codes) == 0 {
		return 0
	}
	return codes[min(max(n, 0), len(codes)-1)]
}
