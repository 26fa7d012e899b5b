package embedded

import (
	"bytes"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxLine is the longest piece of a line that is written as one log entry.
const maxLine = 16 << 10

// logTime is RFC 3339 with all nine digits, so that lines sort as text.
const logTime = "2006-01-02T15:04:05.000000000Z07:00"

// containerStreams is where a container's output goes: to its log file in CRI format and
// to whoever is attached; and where its input comes from.
type containerStreams struct {
	path string
	tty  bool

	stdin  *io.PipeReader // nil: the container has none
	input  *io.PipeWriter
	isOnce bool

	mu       sync.Mutex // guards the rest
	file     *os.File   // nil until something is written
	err      error      // of the log file; output is never held up by it
	partial  [2][]byte  // stdout, stderr: what no newline has ended yet
	attached map[*attachedClient]struct{}
	closed   bool
}

// attachedClient is one attached client. A slow one slows the container down, as a slow
// terminal does; one that has gone is passed over.
type attachedClient struct {
	chunks chan chunk
	end    chan struct{} // closed when the container's output ends
	gone   chan struct{} // closed by detach
}

// chunk is a piece of output on its way to an attached client.
type chunk struct {
	stream int
	data   []byte
}

func newTap() *attachedClient {
	return &attachedClient{chunks: make(chan chunk, 16), end: make(chan struct{}), gone: make(chan struct{})}
}

func newConsole(path string, cfg *v1.ContainerConfig) *containerStreams {
	c := &containerStreams{path: path, tty: cfg.GetTty(), isOnce: cfg.GetStdinOnce()}
	if cfg.GetStdin() {
		c.stdin, c.input = io.Pipe()
	}
	return c
}

// io is what the executor gets.
func (c *containerStreams) io() IO {
	sio := IO{Stdout: output{c, 0}, Stderr: output{c, 1}, TTY: c.tty}
	if c.stdin != nil {
		sio.Stdin = c.stdin
	}
	return sio
}

// output is one of the two output streams of a console.
type output struct {
	c      *containerStreams
	stream int
}

// Write logs and shows p. It never fails: a container does not die of a full disk.
func (o output) Write(p []byte) (int, error) {
	o.c.mu.Lock()
	if o.c.closed {
		o.c.mu.Unlock()
		return len(p), nil
	}
	o.c.log(o.stream, p)
	taps := slices.Collect(maps.Keys(o.c.attached))
	o.c.mu.Unlock()
	if len(taps) == 0 {
		return len(p), nil
	}
	data := bytes.Clone(p)
	for _, t := range taps {
		select {
		case t.chunks <- chunk{o.stream, data}:
		case <-t.gone:
		}
	}
	return len(p), nil
}

// rest closes the log file until the next output, for who seldom speaks.
func (o output) rest() { o.c.rest() }

// log writes the whole lines of p and keeps the rest. The caller holds mu.
func (c *containerStreams) log(stream int, p []byte) {
	if c.path == "" {
		return
	}
	var b bytes.Buffer
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		room := maxLine - len(c.partial[stream])
		switch {
		case i >= 0 && i <= room:
			c.entry(&b, stream, 'F', p[:i])
			p = p[i+1:]
		case len(p) > room:
			c.entry(&b, stream, 'P', p[:room])
			p = p[room:]
		default:
			c.partial[stream] = append(c.partial[stream], p...)
			p = nil
		}
	}
	c.flush(b.Bytes())
}

// entry puts one log entry into b: what was kept, then text.
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

// flush writes entries to the file. The caller holds mu.
func (c *containerStreams) flush(b []byte) {
	if len(b) == 0 || c.err != nil {
		return
	}
	if c.file == nil {
		if c.err = c.open(); c.err != nil {
			return
		}
	}
	_, c.err = c.file.Write(b)
}

// open opens the log file anew. The caller holds mu.
func (c *containerStreams) open() error {
	if err := os.MkdirAll(filepath.Dir(c.path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(c.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	if c.file != nil {
		_ = c.file.Close()
	}
	c.file = f
	return nil
}

// touch makes the log file, so that it is there before the first output.
func (c *containerStreams) touch() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.path == "" || c.file != nil {
		return nil
	}
	return c.open()
}

// rest closes the file until the next output, for containers that seldom speak.
func (c *containerStreams) rest() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file != nil {
		_ = c.file.Close()
		c.file = nil
	}
}

// reopen goes on in a new file of the same name, after a rotation.
func (c *containerStreams) reopen() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.path == "" || c.closed {
		return nil
	}
	c.err = c.open()
	return c.err
}

// attach shows further output on t until detach or the end of the container,
// which closes t.end.
func (c *containerStreams) attach(t *attachedClient) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		close(t.end)
		return
	}
	if c.attached == nil {
		c.attached = map[*attachedClient]struct{}{}
	}
	c.attached[t] = struct{}{}
}

func (c *containerStreams) detach(t *attachedClient) {
	close(t.gone)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.attached, t)
}

// close writes what no newline has ended, closes the file and lets the attached
// go. It may be called more than once.
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
	if c.input != nil {
		_ = c.stdin.Close()
		_ = c.input.Close()
	}
}
