package podlogs

import (
	"bufio"
	"errors"
	"io"
	"math"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/crilog"
)

// errLimit ends a copy after LimitBytes.
var errLimit = errors.New("byte limit reached")

// timestampFormat has all digits, so that lines are aligned. It is the kubelet's.
const timestampFormat = "2006-01-02T15:04:05.000000000Z07:00"

// printer writes the text of the selected entries. It is given the lines of a file in
// pieces.
type printer struct {
	out        [crilog.NumStreams]*bufio.Writer // nil: not wanted
	filter     filter
	timestamps bool
	left       int64 // bytes that may still be written

	inEntry bool                           // the next piece continues an entry
	drop    bool                           // the entry is not selected
	entry   crilog.Header                  // of the entry
	stamp   [len(timestampFormat) + 1]byte // space for what is inserted
	lines   [crilog.NumStreams]lineState
}

// lineState is the state of the line of a stream that may have several entries.
type lineState struct {
	open bool // it goes on with the next entry
	drop bool // it began with an entry that is not selected
}

func newPrinter(out, errOut io.Writer, o *corev1.PodLogOptions, now time.Time) *printer {
	p := &printer{filter: newFilter(o, now), timestamps: o.Timestamps, left: math.MaxInt64}
	if o.LimitBytes != nil {
		p.left = *o.LimitBytes
	}
	if out != nil {
		p.out[crilog.Stdout] = bufio.NewWriterSize(out, bufferSize)
	}
	switch {
	case errOut == nil:
	case out != nil && reflect.ValueOf(out).Comparable() && reflect.ValueOf(errOut).Comparable() && out == errOut:
		p.out[crilog.Stderr] = p.out[crilog.Stdout] // which keeps the order
	default:
		p.out[crilog.Stderr] = bufio.NewWriterSize(errOut, bufferSize)
	}
	return p
}

// flush writes what is buffered.
func (p *printer) flush() error {
	var errs []error
	for _, w := range p.out {
		if w != nil {
			errs = append(errs, w.Flush())
		}
	}
	return errors.Join(errs...)
}

// printPiece writes a piece of a line. isEnd tells that the line ends with it.
func (p *printer) printPiece(piece []byte, isEnd bool) error {
	if !p.inEntry {
		var ok bool
		if p.entry, piece, ok = crilog.ParseHeader(piece); ok {
			p.drop = !p.begin()
		} else {
			p.entry, p.drop = crilog.Header{Partial: true}, true // it neither begins nor ends a line
		}
		if !p.drop && p.timestamps && !p.lines[p.entry.Stream].open {
			if err := p.write(append(p.entry.At.AppendFormat(p.stamp[:0], timestampFormat), ' ')); err != nil {
				return err
			}
		}
		if ok {
			p.lines[p.entry.Stream].open = p.entry.Partial
		}
	}
	p.inEntry = !isEnd
	if p.drop {
		return nil
	}
	if err := p.write(piece); err != nil {
		return err
	}
	if isEnd && !p.entry.Partial {
		return p.write(append(p.stamp[:0], '\n'))
	}
	return nil
}

// begin reports whether an entry is selected. The entries of one line have the fate of
// the first one.
func (p *printer) begin() bool {
	if p.out[p.entry.Stream] == nil || !p.filter.hasStream(p.entry.Stream) {
		return false
	}
	line := &p.lines[p.entry.Stream]
	if !line.open {
		line.drop = !p.filter.since.IsZero() && p.entry.At.Before(p.filter.since)
	}
	return !line.drop
}

func (p *printer) write(b []byte) error {
	n := min(int64(len(b)), p.left)
	p.left -= n
	if _, err := p.out[p.entry.Stream].Write(b[:n]); err != nil {
		return err
	}
	if p.left == 0 {
		return errLimit
	}
	return nil
}
