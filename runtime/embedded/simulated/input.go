package simulated

import (
	"bufio"
	"context"
	"io"
	"path"
	"slices"
	"syscall"
	"time"

	"github.com/sublet-dev/agent/internal/sleep"
	"github.com/sublet-dev/agent/runtime/embedded"
)

// maxInput is the longest line of input that a shell reads.
const maxInput = 16 << 10

// play runs a script to its end, with its output on sio, and returns its exit code.
func play(ctx context.Context, s Script, sio embedded.IO) (int32, error) {
	var now time.Duration
	for _, l := range s.Output {
		if err := sleep.For(ctx, l.At-now); err != nil {
			return 0, err
		}
		now = l.At
		printLine(sio, l)
	}
	if err := sleep.For(ctx, s.RunFor-now); err != nil {
		return 0, err
	}
	return s.ExitCodes[0], nil
}

// interpreter returns the function of a command that reads its input, if any: a shell
// without arguments runs it line by line, cat repeats it.
func interpreter(argv []string) func(context.Context, embedded.IO) (int32, error) {
	if len(argv) == 0 {
		return nil
	}
	name, args := path.Base(argv[0]), argv[1:]
	switch {
	case slices.Contains([]string{"sh", "bash"}, name) && (len(args) == 0 || len(args) == 1 && (args[0] == "-i" || args[0] == "-s")):
		return shell
	case name == "cat" && (len(args) == 0 || len(args) == 1 && args[0] == "-"):
		return repeat
	}
	return nil
}

// shell runs the lines of its input until it ends or one of them exits.
func shell(ctx context.Context, sio embedded.IO) (code int32, err error) {
	lines := bufio.NewScanner(sio.Stdin)
	lines.Buffer(nil, maxInput)
	for lines.Scan() {
		steps, ok := split(lines.Text())
		if ok && len(steps) == 0 {
			continue
		}
		script, exits, understood := compileSteps(steps)
		if !ok || !understood {
			printLine(sio, OutputLine{Stderr: true, Text: "sh: command not simulated: " + lines.Text()})
			code = 127
			continue
		}
		if code, err = play(ctx, script, sio); err != nil {
			return 0, err
		}
		if exits {
			return code, nil
		}
	}
	return code, ctx.Err()
}

// repeat writes its input to its output.
func repeat(ctx context.Context, sio embedded.IO) (int32, error) {
	out := sio.Stdout
	if out == nil {
		out = io.Discard
	}
	_, _ = io.Copy(out, sio.Stdin) // ends with the input or the reader of the output
	return 0, ctx.Err()
}

// readStdin reads the input of a container with stdin, in a goroutine that ends with the
// input or the container. A container that does not use its input discards it, so that
// writers do not block.
func (p *process) readStdin(ctx context.Context, sio embedded.IO) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // it outlives the call
	p.stopReading = cancel
	argv, _ := p.c.Argv() // none: it reads nothing
	read := interpreter(argv)
	go func() {
		if read == nil {
			_, _ = io.Copy(io.Discard, sio.Stdin)
			return
		}
		if code, err := read(ctx, sio); err == nil {
			p.end(embedded.Exit{Code: code})
		}
	}()
}

// command runs a command until it ends, ctx is done, or the container ends, which kills it.
func (p *process) command(ctx context.Context, run func(context.Context) (int32, error)) (int32, error) {
	const killed = 128 + int32(syscall.SIGKILL)
	containerCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	command := &closeFunc{cancel}
	p.mu.Lock()
	runs := p.endsWith(command)
	p.mu.Unlock()
	if !runs {
		return killed, nil
	}
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.closers, command)
	}()
	code, err := run(containerCtx)
	if err != nil && containerCtx.Err() != nil && ctx.Err() == nil {
		return killed, nil
	}
	return code, err
}

// interpret runs a command that reads its input, which may have no end, until it ends or ctx is done.
func interpret(ctx context.Context, read func(context.Context, embedded.IO) (int32, error), sio embedded.IO) (int32, error) {
	type result struct {
		code int32
		err  error
	}
	ended := make(chan result, 1)
	go func() {
		code, err := read(ctx, sio)
		ended <- result{code, err}
	}()
	select {
	case r := <-ended:
		return r.code, r.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// closeFunc is an io.Closer of a function.
type closeFunc struct{ do func() }

func (c *closeFunc) Close() error {
	c.do()
	return nil
}

// end exits the container by itself.
func (p *process) end(e embedded.Exit) {
	p.mu.Lock()
	ended := p.ended
	p.ended = true
	p.mu.Unlock()
	if !ended {
		p.finish(e)
	}
}
