package cri

import (
	"bytes"
	"io"
	"strings"
	"time"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// logLine is one line of a container's log in the CRI's format:
//
//	2026-11-21T04:05:06.789Z stdout F the text
//
// A partial line, tagged P, has no newline of its own: the next line goes on.
type logLine struct {
	at      time.Time
	stream  v1.LogStreamType
	partial bool
	text    []byte // a part of what was parsed
}

// parseLogLine takes one line, without its newline, apart. Lines that are not
// in the format are not ok.
func parseLogLine(line []byte) (l logLine, ok bool) {
	stamp, rest, ok := bytes.Cut(line, []byte{' '})
	if !ok {
		return l, false
	}
	stream, rest, ok := bytes.Cut(rest, []byte{' '})
	if !ok {
		return l, false
	}
	// The text may be missing altogether.
	tags, text, _ := bytes.Cut(rest, []byte{' '})
	at, err := time.Parse(time.RFC3339Nano, string(stamp))
	if err != nil {
		return l, false
	}
	l = logLine{at: at, stream: v1.LogStreamType(stream), text: text}
	if l.stream != v1.Stdout && l.stream != v1.Stderr {
		return l, false
	}
	// Further tags may follow the first one.
	first, _, _ := bytes.Cut(tags, []byte(v1.LogTagDelimiter))
	switch v1.LogTag(first) {
	case v1.LogTagFull:
	case v1.LogTagPartial:
		l.partial = true
	default:
		return l, false
	}
	return l, true
}

// logText returns what a piece of log says, both streams as they were written:
// the last lines of it, and of those the last bytes. Lines that cannot be read
// are left out, such as one that is cut off by the beginning of the piece.
func logText(piece []byte, limit, lines int) string {
	var b strings.Builder
	for line := range bytes.Lines(piece) {
		l, ok := parseLogLine(bytes.TrimSuffix(line, []byte{'\n'}))
		if !ok {
			continue
		}
		b.Write(l.text)
		if !l.partial {
			b.WriteByte('\n')
		}
	}
	text := strings.ToValidUTF8(b.String(), "�")
	return lastBytes(lastLines(text, lines), limit)
}

func lastLines(text string, lines int) string {
	from := len(text)
	if strings.HasSuffix(text, "\n") {
		from--
	}
	for range lines {
		i := strings.LastIndexByte(text[:from], '\n')
		if i < 0 {
			return text
		}
		from = i
	}
	return text[from+1:]
}

// logTail returns the end of a container's log file. It reads no more of the
// file than the answer can need, however long it is.
func logTail(path string, limit, lines int) (string, error) {
	f, err := openRegular(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	// Each line has up to 64 bytes before its text, and no more than that many
	// lines count; one more limit for the line at which the piece begins.
	piece := int64(2*limit + 64*lines)
	if _, err := f.Seek(max(info.Size()-piece, 0), io.SeekStart); err != nil {
		return "", err
	}
	raw, err := io.ReadAll(io.LimitReader(f, piece))
	if err != nil && len(raw) == 0 {
		return "", err
	}
	return logText(raw, limit, lines), nil
}
