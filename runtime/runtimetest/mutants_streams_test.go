package runtimetest

import (
	"context"
	"io"
	"net"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded"
)

func mutantsOfStreams() []mutant {
	const input, apart, terminal, port = "a command reads its input to the end", "output, errors and exit code of a streamed command are kept apart",
		"a command has a terminal that can be resized", "data passes a forwarded port"
	exec := func(change func(context.Context, *embedded.Exec)) func(embedded.Executor) embedded.Executor {
		return func(e embedded.Executor) embedded.Executor { return execExecutor{e, change} }
	}
	return []mutant{
		{
			defect: "the exec URL names no server", caseName: input, report: "names no server",
			response: onResponse(func(r *v1.ExecResponse) { r.Url = "/exec/token" }),
		},
		{
			defect: "the exec URL is not known to the server", caseName: input, report: "refuses SPDY: status 404",
			response: onResponse(func(r *v1.ExecResponse) { r.Url += "x" }),
		},
		{
			defect: "the input of a streamed command never ends", caseName: input, report: "without the result of cat, whose input has ended",
			executor: exec(func(ctx context.Context, x *embedded.Exec) {
				if x.Stdin != nil {
					x.Stdin = endless{ctx, x.Stdin}
				}
			}),
		},
		{
			defect: "a streamed command has no input", caseName: input, report: "exec over SPDY",
			executor: exec(func(_ context.Context, x *embedded.Exec) { x.Stdin = eof{} }),
		},
		{
			defect: "a streamed command's errors are in its output", caseName: apart, report: `exec over SPDY: stdout is "out`,
			executor: exec(func(_ context.Context, x *embedded.Exec) {
				if x.Stdout != nil {
					x.Stderr = x.Stdout
				}
			}),
		},
		{
			defect: "a streamed command's errors are lost", caseName: apart, report: "exec over SPDY: stderr is ",
			executor: exec(func(_ context.Context, x *embedded.Exec) {
				if x.Stderr != nil {
					x.Stderr = io.Discard
				}
			}),
		},
		{
			defect: "a streamed command's exit code is 1 or 0", caseName: apart, report: "result of a command that exits with 3",
			request: onRequest(func(r *v1.ExecRequest) { r.Cmd = sh("echo out; echo err >&2; exit 1") }),
		},
		{
			defect: "exec ignores tty", caseName: terminal, report: "exec with a terminal", runs: hostProcesses,
			executor: exec(func(_ context.Context, x *embedded.Exec) { x.TTY = false }),
		},
		{
			defect: "the size of a command's terminal is ignored", caseName: terminal, report: "ended without the result of a command that waits for this size", runs: hostProcesses,
			executor: exec(func(_ context.Context, x *embedded.Exec) { x.Resize = nil }),
		},
		{
			defect: "width and height of a terminal are mixed up", caseName: terminal, report: "ended without the result of a command that waits for this size", runs: hostProcesses,
			executor: exec(func(_ context.Context, x *embedded.Exec) {
				if x.Resize == nil {
					return
				}
				from, to := x.Resize, make(chan embedded.TerminalSize)
				go func() { // ends with the stream
					defer close(to)
					for s := range from {
						to <- embedded.TerminalSize{Width: s.Height, Height: s.Width}
					}
				}()
				x.Resize = to
			}),
		},
		{
			defect: "the terminal of a container cannot be resized", caseName: "a client attaches to a terminal and resizes it", report: "does not see its size", runs: hostProcesses,
			executor: func(e embedded.Executor) embedded.Executor { return fixedSizeExecutor{e} },
		},
		{
			defect: "attach sends no input", caseName: "a client attaches over SPDY", report: "attach over SPDY", runs: hostProcesses,
			request: onContainer(func(cfg *v1.ContainerConfig) { cfg.Stdin = false }),
		},
		{
			defect: "stdin_once is ignored", caseName: "the input of a container ends with its first client", report: "stdin_once: the exit",
			request: onContainer(func(cfg *v1.ContainerConfig) { cfg.StdinOnce = false }),
		},
		{
			defect: "port-forward connects to another port", caseName: port, report: "port-forward over SPDY: the pod does not answer at its port",
			executor: func(e embedded.Executor) embedded.Executor {
				return dialExecutor{e, func(p int32) int32 { return p + 1 }, nil}
			},
		},
		{
			defect: "a forwarded port transfers nothing", caseName: port, report: "port-forward over SPDY: the pod does not answer at its port",
			executor: func(e embedded.Executor) embedded.Executor {
				return dialExecutor{e, func(p int32) int32 { return p }, func(c net.Conn) net.Conn { return silent{c} }}
			},
		},
		{
			defect: "streams of unknown containers are opened", caseName: "streams of unknown containers are refused", report: "exec in what does not exist: succeeded",
			call: losesErrors("Exec"),
		},
		{
			defect: "an unknown pod's ports are forwarded", caseName: "streams of unknown containers are refused", report: "port-forward in what does not exist: succeeded",
			call: losesErrors("PortForward"),
		},
		{
			defect: "attach needs a terminal", caseName: "a client attaches over SPDY", report: "Attach", runs: hostProcesses,
			call: onCalls("Attach", func(c rpcCall) error {
				if !c.req.(*v1.AttachRequest).GetTty() {
					return status.Error(codes.InvalidArgument, "no terminal")
				}
				return c.next()
			}),
		},
	}
}

// execExecutor changes the commands that run in containers.
type execExecutor struct {
	embedded.Executor
	change func(context.Context, *embedded.Exec)
}

func (e execExecutor) Unwrap() any { return e.Executor }

func (e execExecutor) Start(ctx context.Context, c *embedded.Container, sio embedded.IO, exited func(embedded.Exit)) (embedded.Process, error) {
	p, err := e.Executor.Start(ctx, c, sio, exited)
	if err != nil {
		return nil, err
	}
	return execProcess{p, e.change}, nil
}

type execProcess struct {
	embedded.Process
	change func(context.Context, *embedded.Exec)
}

func (p execProcess) Unwrap() any { return p.Process }

func (p execProcess) Exec(ctx context.Context, x embedded.Exec) (int32, error) {
	p.change(ctx, &x)
	return p.Process.Exec(ctx, x)
}

// fixedSizeExecutor has terminals of one size.
type fixedSizeExecutor struct{ embedded.Executor }

func (e fixedSizeExecutor) Unwrap() any { return e.Executor }

func (e fixedSizeExecutor) Start(ctx context.Context, c *embedded.Container, sio embedded.IO, exited func(embedded.Exit)) (embedded.Process, error) {
	p, err := e.Executor.Start(ctx, c, sio, exited)
	if err != nil {
		return nil, err
	}
	return fixedSizeProcess{p}, nil
}

type fixedSizeProcess struct{ embedded.Process }

func (fixedSizeProcess) Resize(uint16, uint16) error { return nil }

// endless is an input that ends with its stream only.
type endless struct {
	ctx context.Context
	io.Reader
}

func (e endless) Read(b []byte) (int, error) {
	n, err := e.Reader.Read(b)
	if err != nil {
		<-e.ctx.Done()
	}
	return n, err
}

// eof is an input that has ended.
type eof struct{}

func (eof) Read([]byte) (int, error) { return 0, io.EOF }

// dialExecutor changes the connections to ports of pods.
type dialExecutor struct {
	embedded.Executor
	port func(int32) int32
	conn func(net.Conn) net.Conn // nil: as it is
}

func (e dialExecutor) Unwrap() any { return e.Executor }

func (e dialExecutor) DialPod(ctx context.Context, pod *v1.PodSandboxConfig, port int32) (net.Conn, error) {
	conn, err := e.Executor.(embedded.Dialer).DialPod(ctx, pod, e.port(port))
	if err != nil && e.port(port) != port { // as if there were another server, which says nothing
		ours, theirs := net.Pipe()
		return silent{ours}, theirs.Close()
	}
	if err == nil && e.conn != nil {
		conn = e.conn(conn)
	}
	return conn, err
}

// silent is a connection whose peer says nothing.
type silent struct{ net.Conn }

func (silent) Read([]byte) (int, error) { return 0, io.EOF }
