package embedded

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/capability"
)

// maxExecOutput bounds the output of ExecSync, as the CRI demands: both streams together, so
// that the response is no larger than the messages that clients take.
const maxExecOutput = maxMessage - 1<<10

// ownExecOutput is what each stream may have of that, whatever the other one has.
const ownExecOutput = 64 << 10

// StreamingServer returns the URLs for clients of exec, attach and port-forward. It
// serves them by ExecStreams, AttachStreams and DialPort of its Runtime; see package
// stream.
type StreamingServer interface {
	GetExec(*v1.ExecRequest) (*v1.ExecResponse, error)
	GetAttach(*v1.AttachRequest) (*v1.AttachResponse, error)
	GetPortForward(*v1.PortForwardRequest) (*v1.PortForwardResponse, error)
}

// SetStreamingServer sets the server of Exec, Attach and PortForward, which are
// Unimplemented without it. It is called before the runtime is used.
func (r *Runtime) SetStreamingServer(s StreamingServer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.streams = s
}

// process finds the process of a running container.
func (r *Runtime) process(id string) (*container, Process, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, err := r.running(id)
	if err != nil {
		return nil, nil, err
	}
	return c, c.proc, nil
}

// ExecSync implements the CRI. A command that outlives its timeout is killed and
// the call fails with DeadlineExceeded.
func (r *Runtime) ExecSync(ctx context.Context, req *v1.ExecSyncRequest) (*v1.ExecSyncResponse, error) {
	if err := checkCommand(req.GetCmd()); err != nil {
		return nil, err
	}
	c, proc, err := r.process(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	if req.GetTimeout() > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(req.GetTimeout())*time.Second)
		defer cancel()
	}
	output := &budget{left: maxExecOutput - 2*ownExecOutput}
	stdout, stderr := capped{budget: output}, capped{budget: output}
	code, err := proc.Exec(ctx, Exec{Cmd: req.GetCmd(), IO: IO{Stdout: &stdout, Stderr: &stderr}})
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			return nil, status.Errorf(codes.DeadlineExceeded, "exec in container %s: command %q timed out", c.ID, req.GetCmd()[0])
		}
		return nil, statusError("exec in container "+c.ID, err)
	}
	return &v1.ExecSyncResponse{Stdout: stdout.b.Bytes(), Stderr: stderr.b.Bytes(), ExitCode: code}, nil
}

// checkCommand validates what no executor can run.
func checkCommand(cmd []string) error {
	if len(cmd) == 0 {
		return status.Error(codes.InvalidArgument, "exec: cmd is empty")
	}
	return nil
}

// budget is the number of bytes that streams may still keep together.
type budget struct {
	mu   sync.Mutex
	left int
}

func (b *budget) take(n int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n = min(n, b.left)
	b.left -= n
	return n
}

// capped keeps ownExecOutput bytes, and beyond that what its budget has room for.
type capped struct {
	budget *budget
	b      bytes.Buffer
}

func (w *capped) Write(p []byte) (int, error) {
	own := min(len(p), max(0, ownExecOutput-w.b.Len()))
	w.b.Write(p[:own+w.budget.take(len(p)-own)])
	return len(p), nil
}

// ExecStreams runs a command in a running container with the streams of the caller. It
// blocks until the command exits or ctx ends.
func (r *Runtime) ExecStreams(ctx context.Context, id string, e Exec) (int32, error) {
	if err := checkCommand(e.Cmd); err != nil {
		return 0, err
	}
	_, proc, err := r.process(id)
	if err != nil {
		return 0, err
	}
	return proc.Exec(ctx, e)
}

// AttachStreams connects the caller to the streams of a running container. It blocks
// until the container's status has its exit, ctx ends, or a write fails. The caller
// closes sio.Stdin afterwards.
func (r *Runtime) AttachStreams(ctx context.Context, id string, sio IO, resize <-chan TerminalSize) error {
	c, proc, err := r.process(id)
	if err != nil {
		return err
	}
	t := newAttachedClient()
	c.console.attach(t)
	defer c.console.detach(t)
	if sio.Stdin != nil && c.console.input != nil {
		attached, leave := context.WithCancel(ctx)
		defer leave()
		go func() { // ends with the client's stream, or when the process does not read what a client has sent that left
			_, _ = io.Copy(c.console.input.from(attached), sio.Stdin)
			if c.console.isOnce {
				_ = c.console.input.Close()
			}
		}()
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.more:
			if _, err := c.console.pass(t, sio); err != nil {
				return err
			}
		case <-t.end:
			for more := true; more; {
				if more, err = c.console.pass(t, sio); err != nil {
					return err
				}
			}
			select { // the output ends before the exit is recorded
			case <-c.done:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		case size, ok := <-resize:
			if !ok {
				resize = nil
				continue
			}
			if term, can := capability.Of[TerminalResizer](proc); can {
				_ = term.Resize(size.Width, size.Height) // the container may have exited
			}
		}
	}
}

// pass writes the next chunk for t to its client. It returns false if there is none.
func (c *containerStreams) pass(t *attachedClient, client IO) (ok bool, err error) {
	k, ok := c.take(t)
	w := [...]io.Writer{client.Stdout, client.Stderr}[k.stream]
	if !ok || w == nil {
		return ok, nil
	}
	_, err = w.Write(k.data)
	return ok, err
}

// DialPort opens a connection to a port of a ready pod.
func (r *Runtime) DialPort(ctx context.Context, sandboxID string, port int32) (net.Conn, error) {
	r.mu.Lock()
	s, ok := lookup(r.sandboxes, sandboxID)
	ready := ok && s.ready()
	r.mu.Unlock()
	switch {
	case !ok:
		return nil, noSandbox(sandboxID)
	case !ready:
		return nil, status.Errorf(codes.FailedPrecondition, "port-forward: sandbox %s is not ready", sandboxID)
	}
	d, can := capability.Of[Dialer](r.cfg.Executor)
	if !can {
		return nil, status.Error(codes.Unimplemented, "port-forward: the executor does not support it")
	}
	return r.dialPod(ctx, d, s, port)
}

// streamingServer returns the server of streams, or Unimplemented.
func (r *Runtime) streamingServer() (StreamingServer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.streams == nil {
		return nil, status.Error(codes.Unimplemented, "the embedded runtime has no streaming server; package runtime/embedded/stream is one")
	}
	return r.streams, nil
}

// Exec implements the CRI.
func (r *Runtime) Exec(_ context.Context, req *v1.ExecRequest) (*v1.ExecResponse, error) {
	if err := checkCommand(req.GetCmd()); err != nil {
		return nil, err
	}
	s, err := r.streamingServer()
	if err != nil {
		return nil, err
	}
	c, _, err := r.process(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	return s.GetExec(&v1.ExecRequest{
		ContainerId: c.ID, Cmd: req.GetCmd(), Tty: req.GetTty(),
		Stdin: req.GetStdin(), Stdout: req.GetStdout(), Stderr: req.GetStderr(),
	})
}

// Attach implements the CRI.
func (r *Runtime) Attach(_ context.Context, req *v1.AttachRequest) (*v1.AttachResponse, error) {
	s, err := r.streamingServer()
	if err != nil {
		return nil, err
	}
	c, _, err := r.process(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	return s.GetAttach(&v1.AttachRequest{
		ContainerId: c.ID, Tty: req.GetTty(), Stdin: req.GetStdin(), Stdout: req.GetStdout(), Stderr: req.GetStderr(),
	})
}

// PortForward implements the CRI.
func (r *Runtime) PortForward(_ context.Context, req *v1.PortForwardRequest) (*v1.PortForwardResponse, error) {
	s, err := r.streamingServer()
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	sb, ok := lookup(r.sandboxes, req.GetPodSandboxId())
	r.mu.Unlock()
	if !ok {
		return nil, noSandbox(req.GetPodSandboxId())
	}
	return s.GetPortForward(&v1.PortForwardRequest{PodSandboxId: sb.id, Port: req.GetPort()})
}

// CheckpointContainer implements the CRI.
func (r *Runtime) CheckpointContainer(context.Context, *v1.CheckpointContainerRequest) (*v1.CheckpointContainerResponse, error) {
	return nil, noCheckpoint()
}

// CheckpointPod implements the CRI.
func (r *Runtime) CheckpointPod(context.Context, *v1.CheckpointPodRequest) (*v1.CheckpointPodResponse, error) {
	return nil, noCheckpoint()
}

// RestorePod implements the CRI.
func (r *Runtime) RestorePod(context.Context, *v1.RestorePodRequest) (*v1.RestorePodResponse, error) {
	return nil, noCheckpoint()
}

func noCheckpoint() error {
	return status.Error(codes.Unimplemented, "the embedded runtime has no process images to write or read")
}
