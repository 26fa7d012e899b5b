//go:build linux || darwin

package hostprocess

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// outputDrainTimeout bounds the wait for output after the exit of a process while
	// others have its pipe open.
	outputDrainTimeout = time.Second
	// outputTakenTimeout bounds the wait after that for the log of a container, or the
	// client of a command, to take what is in the pipe.
	outputTakenTimeout = time.Minute
	// maxOutputRest bounds what is taken of that. No pipe holds more, except for those of
	// privileged processes.
	maxOutputRest = 1 << 20
)

// outputs are the pipes and terminals that a job prints to.
type outputs struct {
	from   []*os.File
	copies sync.WaitGroup
}

// copy begins to copy one of them. The copy ends with the output, or with what is there
// once its deadline has passed. When it cannot be written, because a client is gone, from is
// closed: the job gets SIGPIPE or SIGHUP then, and does not wait for a reader indefinitely.
func (o *outputs) copy(to io.Writer, from *os.File) {
	o.from = append(o.from, from)
	o.copies.Go(func() {
		out := &receiver{Writer: to}
		if _, err := io.Copy(out, from); errors.Is(err, os.ErrDeadlineExceeded) {
			_, _ = io.Copy(out, io.LimitReader(available{from}, maxOutputRest))
		}
		if out.hasFailed {
			_ = from.Close()
		}
	})
}

// receiver is who gets output.
type receiver struct {
	io.Writer
	hasFailed bool // a write has failed
}

// Write implements io.Writer.
func (r *receiver) Write(b []byte) (int, error) {
	n, err := r.Writer.Write(b)
	r.hasFailed = r.hasFailed || err != nil
	return n, err
}

// finish waits for the rest of the output of a job that has exited. What is not taken in
// time is lost, and soon after abandoned is closed.
func (o *outputs) finish(abandoned <-chan struct{}) {
	copied := make(chan struct{})
	go func() {
		o.copies.Wait()
		close(copied)
	}()
	t := time.NewTimer(outputDrainTimeout)
	defer t.Stop()
	select {
	case <-copied:
		return
	case <-t.C: // another process has the pipe open, or who gets the output does not take it
	}
	for _, f := range o.from {
		if f.SetReadDeadline(time.Unix(1, 0)) != nil {
			_ = f.Close()
		}
	}
	o.awaitTaken(copied, abandoned)
}

// awaitTaken waits until who gets the output has taken what is there.
func (o *outputs) awaitTaken(copied, abandoned <-chan struct{}) {
	t := time.NewTimer(outputTakenTimeout)
	defer t.Stop()
	select {
	case <-copied:
		return
	case <-abandoned:
	case <-t.C:
	}
	for _, f := range o.from {
		_ = f.Close()
	}
	t.Reset(outputDrainTimeout)
	select {
	case <-copied:
	case <-t.C: // it blocks still
	}
}

// available reads what is in a pipe or terminal without waiting for more, also after its
// deadline.
type available struct{ *os.File }

// Read implements io.Reader.
func (a available) Read(b []byte) (n int, err error) {
	conn, err := a.SyscallConn()
	if err != nil {
		return 0, err
	}
	var rerr error
	err = conn.Control(func(fd uintptr) {
		for n, rerr = unix.Read(int(fd), b); rerr == unix.EINTR; {
			n, rerr = unix.Read(int(fd), b)
		}
	})
	switch {
	case err != nil:
		return 0, err
	case rerr != nil:
		return 0, rerr // EAGAIN: nothing is left
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}
