package embedded

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxLine is the longest piece of a line that is written as one log entry.
const maxLine = 16 << 10

// logTime is RFC 3339 with all nine digits, so that lines sort as text.
const logTime = "2006-01-02T15:04:05.000000000Z07:00"

// containerStreams writes a container's output to its log file in CRI format and to the
// attached clients, and has its input.
type containerStreams struct {
	path string
	tty  bool

	input  *input // nil: the container has none
	isOnce bool

	mu       sync.Mutex // guards the rest
	file     *os.File   // nil until something is written, and after a failed write
	torn     bool       // file ends in the middle of an entry
	partial  [2][]byte  // stdout, stderr: the unterminated line
	attached map[*attachedClient]struct{}
	taken    sync.Cond // signaled when isBlocked may have changed
	drained  bool      // Drain was called
	closed   bool
}

func newContainerStreams(path string, cfg *v1.ContainerConfig) *containerStreams {
	c := &containerStreams{path: path, tty: cfg.GetTty(), isOnce: cfg.GetStdinOnce()}
	c.taken.L = &c.mu
	if cfg.GetStdin() {
		c.input = newInput()
	}
	return c
}

// io returns the streams for the executor.
func (c *containerStreams) io() IO {
	sio := IO{Stdout: output{c, 0}, Stderr: output{c, 1}, TTY: c.tty, Log: c}
	if c.input != nil {
		sio.Stdin = c.input
	}
	return sio
}

// output is one of the two output streams.
type output struct {
	c      *containerStreams
	stream int
}

// Write logs p, gives it to the attached clients, and waits while one of them reads too
// slowly. It never fails: a full disk does not end a container.
func (o output) Write(p []byte) (int, error) {
	o.c.mu.Lock()
	defer o.c.mu.Unlock()
	if o.c.closed {
		return len(p), nil
	}
	o.c.log(o.stream, p)
	if len(o.c.attached) > 0 {
		o.c.enqueue(chunk{o.stream, bytes.Clone(p)})
	}
	for o.c.isBlocked() {
		o.c.taken.Wait()
	}
	return len(p), nil
}

// log writes the terminated lines of p and keeps the rest. The caller holds mu.
func (c *containerStreams) log(stream int, p []byte) {
	if c.path == "" {
		return
	}
	var b bytes.Buffer
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		free := maxLine - len(c.partial[stream])
		switch {
		case i >= 0 && i <= free:
			c.entry(&b, stream, 'F', p[:i])
			p = p[i+1:]
		case len(p) > free:
			c.entry(&b, stream, 'P', p[:free])
			p = p[free:]
		default:
			c.partial[stream] = append(c.partial[stream], p...)
			p = nil
		}
	}
	c.flush(b.Bytes())
}

// entry appends one log entry to b: the unterminated line, then text.
func (c *containerStreams) entry(b *bytes.Buffer, stream int, tag byte, text []byte) {
	b.WriteString(time.Now().UTC().Format(logTime))
	b.WriteString([...]string{" stdout ", " stderr "}[stream])
	b.WriteByte(tag)
	b.WriteByte(' ')
	b.Write(c.partial[stream])
	b.Write(text)
	b.WriteByte('\n')
	c.partial[stream] = nil
}

// flush writes entries to the file. Those that cannot be written are lost, and the next
// ones are tried again: a disk does not stay full. The caller holds mu.
func (c *containerStreams) flush(b []byte) {
	if len(b) == 0 || c.file == nil && c.open() != nil {
		return
	}
	if c.torn {
		b = append([]byte{'\n'}, b...)
	}
	n, err := c.file.Write(b)
	if n > 0 {
		c.torn = b[n-1] != '\n'
	}
	if err != nil {
		_ = c.file.Close()
		c.file = nil
	}
}

// open opens the log file, also if it is open. The caller holds mu.
func (c *containerStreams) open() error {
	if err := os.MkdirAll(filepath.Dir(c.path), 0o755); err != nil {
		return err
	}
	// A container may have put a FIFO there, whose reader would be waited for.
	f, err := os.OpenFile(c.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY|syscall.O_NONBLOCK, 0o640)
	if err != nil {
		return err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return errors.Join(err, fmt.Errorf("log %s is not a regular file", c.path), f.Close())
	}
	if c.file != nil {
		_ = c.file.Close()
	}
	c.file = f
	return nil
}

// Create implements LogFile.
func (c *containerStreams) Create() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.path == "" || c.file != nil {
		return nil
	}
	return c.open()
}

// Release implements LogFile.
func (c *containerStreams) Release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file != nil {
		_ = c.file.Close()
		c.file = nil
	}
}

// Drain implements LogFile.
func (c *containerStreams) Drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drained = true
	c.taken.Broadcast()
}

// reopen opens a new file of the same name, after a rotation.
func (c *containerStreams) reopen() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.path == "" || c.closed {
		return nil
	}
	c.torn = false
	return c.open()
}

// close writes the unterminated lines, closes the file and ends the attached clients.
// It may be called more than once.
func (c *containerStreams) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.closed = true
	var b bytes.Buffer
	for stream := range c.partial {
		if len(c.partial[stream]) > 0 {
			c.entry(&b, stream, 'F', nil)
		}
	}
	c.flush(b.Bytes())
	if c.file != nil {
		_ = c.file.Close()
		c.file = nil
	}
	for t := range c.attached {
		close(t.end)
	}
	c.attached = nil
	c.taken.Broadcast()
	if c.input != nil {
		_ = c.input.Close()
	}
}
