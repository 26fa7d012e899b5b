package cri

import (
	"bytes"
	"io"
	"os"
	"strings"

	"github.com/sublet-dev/agent/internal/crilog"
)

// maxEntry is the length of the longest entry that runtimes write: they divide longer lines.
const maxEntry = 16<<10 + crilog.MaxHeader

// logText returns what a piece of log says, both streams as they were written:
// the last lines of it, and of those the last bytes. Lines that cannot be read
// are left out, such as one that is cut off by the beginning of the piece.
func logText(piece []byte, limit, lines int) string {
	var b strings.Builder
	for line := range bytes.Lines(piece) {
		header, text, ok := crilog.ParseHeader(bytes.TrimSuffix(line, []byte{'\n'}))
		if !ok {
			continue
		}
		b.Write(text)
		if !header.Partial {
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
	f, err := openRegular(path, os.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	// Each line has up to 64 bytes before its text, and no more than that many
	// lines count; one entry more for that at which the piece begins.
	piece := int64(limit + 64*lines + maxEntry)
	if _, err := f.Seek(max(info.Size()-piece, 0), io.SeekStart); err != nil {
		return "", err
	}
	raw, err := io.ReadAll(io.LimitReader(f, piece))
	if err != nil && len(raw) == 0 {
		return "", err
	}
	return logText(raw, limit, lines), nil
}
