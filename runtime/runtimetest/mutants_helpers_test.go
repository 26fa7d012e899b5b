package runtimetest

import (
	"bytes"
	"context"
	"io"
	"os"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded"
)

// onRequest returns a mutation of the requests of one type.
func onRequest[R any](mutate func(*R)) func(any) {
	return func(req any) {
		if r, ok := req.(*R); ok {
			mutate(r)
		}
	}
}

// onResponse returns a mutation of the responses of one type.
func onResponse[R any](mutate func(*R)) func(string, proto.Message) {
	return func(_ string, resp proto.Message) {
		if r, ok := any(resp).(*R); ok {
			mutate(r)
		}
	}
}

// onContainer returns a mutation of the configurations of containers.
func onContainer(mutate func(*v1.ContainerConfig)) func(any) {
	return onRequest(func(r *v1.CreateContainerRequest) {
		if r.GetConfig() != nil {
			mutate(r.Config)
		}
	})
}

// onStatus returns a mutation of the statuses of containers.
func onStatus(mutate func(*v1.ContainerStatus)) func(string, proto.Message) {
	return onResponse(func(r *v1.ContainerStatusResponse) {
		if r.GetStatus() != nil {
			mutate(r.Status)
		}
	})
}

// lineExecutor loses what follows the last newline of a container's output.
type lineExecutor struct{ embedded.Executor }

func (e lineExecutor) Unwrap() any { return e.Executor }

func (e lineExecutor) Start(ctx context.Context, c *embedded.Container, sio embedded.IO, exited func(embedded.Exit)) (embedded.Process, error) {
	sio.Stdout = &lineWriter{to: sio.Stdout}
	return e.Executor.Start(ctx, c, sio, exited)
}

// lineWriter passes only whole lines on.
type lineWriter struct {
	to   io.Writer
	rest []byte
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	end := bytes.LastIndexByte(w.rest, '\n') + 1
	_, err := w.to.Write(w.rest[:end])
	w.rest = w.rest[end:]
	return len(p), err
}

// detachingExecutor does not kill commands whose callers have given up.
type detachingExecutor struct{ embedded.Executor }

func (e detachingExecutor) Unwrap() any { return e.Executor }

func (e detachingExecutor) Start(ctx context.Context, c *embedded.Container, sio embedded.IO, exited func(embedded.Exit)) (embedded.Process, error) {
	p, err := e.Executor.Start(ctx, c, sio, exited)
	if err != nil {
		return nil, err
	}
	return detachingProcess{p}, nil
}

type detachingProcess struct{ embedded.Process }

func (p detachingProcess) Unwrap() any { return p.Process }

func (p detachingProcess) Exec(ctx context.Context, x embedded.Exec) (int32, error) {
	type result struct {
		code int32
		err  error
	}
	done := make(chan result, 1)
	go func() { // ends with the container
		code, err := p.Process.Exec(context.WithoutCancel(ctx), x)
		done <- result{code, err}
	}()
	select {
	case r := <-done:
		return r.code, r.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// onPodStatus returns a mutation of the statuses of pods.
func onPodStatus(mutate func(*v1.PodSandboxStatus)) func(string, proto.Message) {
	return onResponse(func(r *v1.PodSandboxStatusResponse) {
		if r.GetStatus() != nil {
			mutate(r.Status)
		}
	})
}

// onPodItems returns a mutation of the pods in lists.
func onPodItems(mutate func(*v1.PodSandbox)) func(string, proto.Message) {
	return onResponse(func(r *v1.ListPodSandboxResponse) {
		for _, it := range r.GetItems() {
			mutate(it)
		}
	})
}

// onItems returns a mutation of the containers in lists.
func onItems(mutate func(*v1.Container)) func(string, proto.Message) {
	return onResponse(func(r *v1.ListContainersResponse) {
		for _, it := range r.GetContainers() {
			mutate(it)
		}
	})
}

// onEvent returns a mutation of events of a type. An event of nothing is a lost one.
func onEvent(kind v1.ContainerEventType, mutate func(*v1.ContainerEventResponse)) func(string, proto.Message) {
	return onResponse(func(e *v1.ContainerEventResponse) {
		if e.GetContainerEventType() == kind {
			mutate(e)
		}
	})
}

// onCalls returns a mutation of the calls of an RPC.
func onCalls(rpc string, answer func(rpcCall) error) func(rpcCall) error {
	return func(c rpcCall) error {
		if c.rpc == rpc {
			return answer(c)
		}
		return c.next()
	}
}

// doesNothing answers an RPC with success and does nothing.
func doesNothing(rpc string) func(rpcCall) error {
	return onCalls(rpc, func(rpcCall) error { return nil })
}

// losesErrors answers an RPC with success when it fails.
func losesErrors(rpc string) func(rpcCall) error {
	return onCalls(rpc, func(c rpcCall) error {
		_ = c.next()
		return nil
	})
}

// changesCode fails an RPC with another code.
func changesCode(rpc string, from, to codes.Code) func(rpcCall) error {
	return onCalls(rpc, func(c rpcCall) error {
		err := c.next()
		if status.Code(err) == from {
			return status.Error(to, status.Convert(err).Message())
		}
		return err
	})
}

// refuses fails an RPC for requests in a state of the runtime.
func refuses(rpc string, bad func(c rpcCall) bool) func(rpcCall) error {
	return onCalls(rpc, func(c rpcCall) error {
		if bad(c) {
			return status.Error(codes.FailedPrecondition, "not in this state")
		}
		return c.next()
	})
}

// stateOf returns the state of a container behind the mutant.
func (c rpcCall) stateOf(id string) v1.ContainerState {
	r, err := v1.NewRuntimeServiceClient(c.conn).ContainerStatus(c.ctx, &v1.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return v1.ContainerState_CONTAINER_UNKNOWN
	}
	return r.GetStatus().GetState()
}

// tally counts how often it was given a key.
type tally struct {
	mu   sync.Mutex
	keys map[string]int
}

func newTally() *tally { return &tally{keys: map[string]int{}} }

// count returns how often key has been given before.
func (s *tally) count(key string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys[key]++
	return s.keys[key] - 1
}

// has reports whether key has been given.
func (s *tally) has(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keys[key] > 0
}

// cuttingExecutor loses what a line has after 16 KiB.
type cuttingExecutor struct{ embedded.Executor }

func (e cuttingExecutor) Unwrap() any { return e.Executor }

func (e cuttingExecutor) Start(ctx context.Context, c *embedded.Container, sio embedded.IO, exited func(embedded.Exit)) (embedded.Process, error) {
	sio.Stdout = &cuttingWriter{to: sio.Stdout}
	return e.Executor.Start(ctx, c, sio, exited)
}

type cuttingWriter struct {
	to   io.Writer
	line int
}

func (w *cuttingWriter) Write(p []byte) (int, error) {
	for _, b := range p {
		if w.line++; b == '\n' {
			w.line = 0
		}
		if w.line <= 16<<10 {
			if _, err := w.to.Write([]byte{b}); err != nil {
				return 0, err
			}
		}
	}
	return len(p), nil
}

// onSandbox returns a mutation of the configurations of pods.
func onSandbox(mutate func(*v1.LinuxPodSandboxConfig)) func(any) {
	return onRequest(func(r *v1.RunPodSandboxRequest) { mutate(r.GetConfig().GetLinux()) })
}

func onSecurity(mutate func(*v1.LinuxContainerSecurityContext)) func(any) {
	return onContainer(func(cfg *v1.ContainerConfig) { mutate(cfg.GetLinux().GetSecurityContext()) })
}

func onResources(mutate func(*v1.LinuxContainerResources)) func(any) {
	return onContainer(func(cfg *v1.ContainerConfig) { mutate(cfg.GetLinux().GetResources()) })
}

func onMounts(mutate func(*v1.Mount)) func(any) {
	return onContainer(func(cfg *v1.ContainerConfig) {
		for _, m := range cfg.GetMounts() {
			mutate(m)
		}
	})
}

// makeDir makes a directory that may be there.
func makeDir(path string) { _ = os.MkdirAll(path, 0o700) }

// repeatsAnswers makes a call of an RPC once for each object, and answers the others with its result.
func repeatsAnswers(rpc string, object func(rpcCall) string, copyTo func(from, to any)) func(rpcCall) error {
	lock := make(chan struct{}, 1) // not a mutex, with which the time of a bubble stands still
	answers := map[string]any{}
	return onCalls(rpc, func(c rpcCall) error {
		lock <- struct{}{}
		defer func() { <-lock }()
		if made, ok := answers[object(c)]; ok {
			copyTo(made, c.resp)
			return nil
		}
		err := c.next()
		if err == nil {
			answers[object(c)] = c.resp
		}
		return err
	})
}
