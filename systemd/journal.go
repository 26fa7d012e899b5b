//go:build unix

package systemd

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// IsJournal reports whether f is the stream to the journal that the service was started with, JOURNAL_STREAM in its environment.
func IsJournal(f *os.File, journalStream string) bool {
	var device, inode uint64
	if _, err := fmt.Sscanf(journalStream, "%d:%d", &device, &inode); err != nil {
		return false
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil { //nolint:gosec // a file descriptor
		return false
	}
	return uint64(st.Dev) == device && st.Ino == inode //nolint:gosec,unconvert // its type depends on the system
}

// NewJournalHandler returns a handler that begins each line with the priority of its level, as the journal reads it from a stream
// (sd-daemon(3)), and leaves the time to the journal. newHandler makes the handler of the lines, such as a slog.TextHandler, with
// the writer and the options that it gets; it must write each record with one call of Write.
func NewJournalHandler[H slog.Handler](w io.Writer, level slog.Leveler, newHandler func(io.Writer, *slog.HandlerOptions) H) slog.Handler {
	out := &prefixWriter{w: w}
	opts := &slog.HandlerOptions{Level: level, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}
	return journalHandler{newHandler(out, opts), out}
}

type journalHandler struct {
	slog.Handler
	out *prefixWriter
}

// prefixWriter writes lines with the priority of the record that is being handled.
type prefixWriter struct {
	mu     sync.Mutex // held while a record is handled
	w      io.Writer
	prefix string
}

func (w *prefixWriter) Write(line []byte) (int, error) {
	if _, err := w.w.Write(append([]byte(w.prefix), line...)); err != nil {
		return 0, err
	}
	return len(line), nil
}

// Handle implements slog.Handler.
func (h journalHandler) Handle(ctx context.Context, r slog.Record) error {
	h.out.mu.Lock()
	defer h.out.mu.Unlock()
	h.out.prefix = fmt.Sprintf("<%d>", priority(r.Level))
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h journalHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return journalHandler{h.Handler.WithAttrs(attrs), h.out}
}

// WithGroup implements slog.Handler.
func (h journalHandler) WithGroup(name string) slog.Handler {
	return journalHandler{h.Handler.WithGroup(name), h.out}
}

// priority is the level of syslog(3).
func priority(l slog.Level) int {
	switch {
	case l >= slog.LevelError:
		return 3
	case l >= slog.LevelWarn:
		return 4
	case l >= slog.LevelInfo:
		return 6
	default:
		return 7
	}
}
