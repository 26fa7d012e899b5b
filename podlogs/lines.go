package podlogs

import (
	"bytes"
	"io"
)

// bufferSize bounds the memory for a line. It is more than crilog.MaxHeader.
const bufferSize = 64 << 10

// lineReader splits a file into lines, and lines that are longer than its buffer into
// pieces. It can go on after the end of a file that has grown.
type lineReader struct {
	r          io.Reader
	buf        []byte // of bufferSize
	start, end int    // what of buf was read and not returned
	searched   int    // no newline is before
}

func newLineReader(r io.Reader) *lineReader {
	return &lineReader{r: r, buf: make([]byte, bufferSize)}
}

// reset starts to read another file.
func (l *lineReader) reset(r io.Reader) { l.r, l.start, l.end, l.searched = r, 0, 0, 0 }

// next returns the next piece of a line, without its newline, and whether the line ends with
// it. It is valid until the next call. At the end of the file an unfinished line is kept:
// see rest.
func (l *lineReader) next() (piece []byte, isEnd bool, err error) {
	for {
		if i := bytes.IndexByte(l.buf[l.searched:l.end], '\n'); i >= 0 {
			i += l.searched
			piece = l.buf[l.start:i]
			l.start, l.searched = i+1, i+1
			return piece, true, nil
		}
		l.searched = l.end
		if l.end-l.start == len(l.buf) {
			return l.rest(), false, nil
		}
		if err := l.fill(); err != nil {
			return nil, false, err
		}
	}
}

// fill reads more into the buffer, which has space.
func (l *lineReader) fill() error {
	if l.start > 0 {
		copy(l.buf, l.buf[l.start:l.end])
		l.end -= l.start
		l.searched -= l.start
		l.start = 0
	}
	n, err := l.r.Read(l.buf[l.end:])
	l.end += n
	if n > 0 {
		return nil // err comes again
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// rest returns what was read of an unfinished line.
func (l *lineReader) rest() []byte {
	piece := l.buf[l.start:l.end]
	l.start, l.searched = l.end, l.end
	return piece
}
