package podlogs

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"slices"

	"github.com/sublet-dev/agent/internal/crilog"
)

// position is a place in the files of a log: that of older with this index, or the newest
// one, and an offset in its decompressed text.
type position struct {
	file   int
	offset int64
}

// tail finds where the last lines begin. It is given the entries backwards.
type tail struct {
	filter filter
	left   int64 // lines
	begun  bool  // an entry was seen
}

// isStart reports whether the last lines begin after this entry.
func (t *tail) isStart(entry []byte) bool {
	h, _, ok := crilog.ParseHeader(bytes.TrimSuffix(entry, []byte{'\n'}))
	if !ok || !t.filter.hasStream(h.Stream) || h.Partial && t.begun {
		return false // it does not end a line
	}
	// The last line counts although it may go on.
	t.begun = true
	t.left--
	return t.left < 0
}

// tailStart returns where the last n lines of a log begin, whose newest file ends at end.
func (c *copier) tailStart(older []rotation, newest *file, end, n int64) (position, error) {
	t := &tail{filter: c.out.filter, left: n}
	offset, found, err := c.tailOf(newest, end, t)
	if err == nil && newest.isCompressed() {
		err = newest.rewind()
	}
	if err != nil || found {
		return position{len(older), offset}, err
	}
	for i, r := range slices.Backward(older) {
		f, err := c.dir.openRotated(r)
		if err != nil {
			continue // it was removed, or is damaged
		}
		offset, found, err := c.tailOf(f, f.info.Size(), t)
		closeFile(f)
		if err != nil || found {
			return position{i, offset}, err
		}
	}
	return position{}, nil
}

// tailOf returns where in a file the last lines begin, or false if all of it belongs to
// them.
func (c *copier) tailOf(f *file, size int64, t *tail) (offset int64, found bool, err error) {
	if f.isCompressed() {
		return tailOfCompressed(c.ctx, f, t)
	}
	return tailOfPlain(c.ctx, f, size, t)
}

// tailOfPlain reads a file backwards in blocks.
func tailOfPlain(ctx context.Context, f io.ReaderAt, size int64, t *tail) (offset int64, found bool, err error) {
	const block = bufferSize
	buf := make([]byte, block+crilog.MaxHeader) // the header of an entry may go on in the later block
	entryEnd := size
	for blockEnd := size; blockEnd > 0; {
		if ctx.Err() != nil {
			return 0, false, context.Cause(ctx)
		}
		begin := max(blockEnd-block, 0)
		n, err := f.ReadAt(buf[:min(blockEnd+crilog.MaxHeader, size)-begin], begin)
		if n < int(blockEnd-begin) {
			return 0, false, err
		}
		for at := blockEnd - begin; at >= 0; {
			at = int64(bytes.LastIndexByte(buf[:at], '\n'))
			start := begin + at + 1
			if at < 0 && begin > 0 {
				break // it begins in an earlier block
			}
			if start < entryEnd && t.isStart(buf[start-begin:min(int64(n), entryEnd-begin)]) {
				return entryEnd, true, nil
			}
			entryEnd = start
		}
		blockEnd = begin
	}
	return 0, false, nil
}

// tailOfCompressed reads a compressed file twice, because there is no way back in it.
func tailOfCompressed(ctx context.Context, f *file, t *tail) (offset int64, found bool, err error) {
	var lines, size int64
	isOpen := false // the last line goes on
	err = eachEntry(ctx, f, t.filter, func(h crilog.Header, end int64) bool {
		if isOpen = h.Partial; !isOpen {
			lines++
		}
		size = end
		return true
	})
	if err != nil {
		return 0, false, err
	}
	if isOpen && !t.begun {
		if t.left == 0 {
			return size, true, nil
		}
		t.left--
	}
	t.begun = t.begun || size > 0
	if lines <= t.left {
		t.left -= lines
		return 0, false, nil
	}
	before := lines - t.left
	err = eachEntry(ctx, f, t.filter, func(h crilog.Header, end int64) bool {
		if !h.Partial {
			before--
		}
		offset = end
		return before > 0
	})
	return offset, true, err
}

// eachEntry calls visit with each selected entry of a compressed file and the offset of
// its end, until visit returns false. It reads what is there before damage.
func eachEntry(ctx context.Context, f *file, sel filter, visit func(h crilog.Header, end int64) bool) error {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	text, err := gzip.NewReader(f.File)
	if err != nil {
		return nil //nolint:nilerr // damaged
	}
	var h crilog.Header
	var ok, inEntry bool
	var offset int64
	for lines := newLineReader(text); ctx.Err() == nil; {
		piece, isEnd, err := lines.next()
		if err != nil { // the end, or damaged
			if piece = lines.rest(); len(piece) == 0 && !inEntry {
				return nil // no entry was cut off
			}
			isEnd = true
		}
		if !inEntry {
			h, _, ok = crilog.ParseHeader(piece)
		}
		offset += int64(len(piece))
		if inEntry = !isEnd; inEntry {
			continue
		}
		if err == nil {
			offset++ // the newline
		}
		if ok && sel.hasStream(h.Stream) && !visit(h, offset) {
			return nil
		}
	}
	return context.Cause(ctx)
}
