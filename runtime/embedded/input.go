package embedded

import (
	"context"
	"io"
	"sync"
)

// input passes what attached clients send to the process of a container. Nothing is kept: a client waits
// until the process reads, or until it leaves.
type input struct {
	slot  chan struct{} // has a token while a client writes
	data  chan []byte   // offered to the process
	taken chan int      // how much of data the process has taken
	end   chan struct{} // closed by Close
	once  sync.Once
}

func newInput() *input {
	return &input{slot: make(chan struct{}, 1), data: make(chan []byte), taken: make(chan int), end: make(chan struct{})}
}

// Read implements io.Reader, for the process. It returns io.EOF after Close.
func (in *input) Read(p []byte) (int, error) {
	select {
	case data := <-in.data:
		n := copy(p, data)
		in.taken <- n
		return n, nil
	case <-in.end:
		return 0, io.EOF
	}
}

// Close ends the input. It may be called more than once.
func (in *input) Close() error {
	in.once.Do(func() { close(in.end) })
	return nil
}

// from returns a writer for one client, whose writes end with ctx.
func (in *input) from(ctx context.Context) io.Writer { return clientInput{in, ctx} }

type clientInput struct {
	in  *input
	ctx context.Context //nolint:containedctx // of the client, for io.Copy
}

// Write implements io.Writer. It blocks until the process has read all of p.
func (c clientInput) Write(p []byte) (n int, err error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	select {
	case c.in.slot <- struct{}{}:
	case <-c.ctx.Done():
		return 0, c.ctx.Err()
	case <-c.in.end:
		return 0, io.ErrClosedPipe
	}
	defer func() { <-c.in.slot }()
	for n < len(p) {
		select {
		case c.in.data <- p[n:]:
			n += <-c.in.taken
		case <-c.ctx.Done():
			return n, c.ctx.Err()
		case <-c.in.end:
			return n, io.ErrClosedPipe
		}
	}
	return n, nil
}
