package podlogs

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/crilog"
)

// randomLog has entries of both streams, parts of lines, what is no entry, and lines that are
// longer than a block.
func randomLog(r *rand.Rand) []byte {
	var b bytes.Buffer
	for range r.IntN(60) {
		length := r.IntN(200)
		if r.IntN(8) == 0 {
			length = r.IntN(3 * bufferSize)
		}
		stream, tag := []string{"stdout", "stderr"}[r.IntN(2)], []string{"F", "F", "P"}[r.IntN(3)]
		fmt.Fprintf(&b, "2026-05-01T12:00:00Z %s %s %s\n", stream, tag, strings.Repeat("x", length))
		if r.IntN(10) == 0 {
			b.WriteString("no entry\n")
		}
	}
	if text := b.Bytes(); r.IntN(4) == 0 && len(text) > 0 {
		return text[:len(text)-1]
	}
	return b.Bytes()
}

// simpleTail is tailOfPlain in the simplest way.
func simpleTail(text []byte, t *tail) (offset int64, found bool) {
	var starts []int
	at := 0
	for line := range bytes.Lines(text) {
		starts = append(starts, at)
		at += len(line)
	}
	end := len(text)
	for _, start := range slices.Backward(starts) {
		if t.isStart(text[start:end]) {
			return int64(end), true
		}
		end = start
	}
	return 0, false
}

// compressedFile returns a file with a compressed text.
func compressedFile(t *testing.T, text []byte) *file {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(text)
	require.NoError(t, errors.Join(err, w.Close()))
	name := filepath.Join(t.TempDir(), "log.gz")
	require.NoError(t, os.WriteFile(name, b.Bytes(), 0o600))
	f, err := os.Open(name)
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return &file{File: f}
}

// The blocks and the compression of a file make no difference for where its last lines begin.
func TestTail_RandomLogs(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 10
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // reproducible
		text := randomLog(r)
		zipped := compressedFile(t, text)
		for _, stream := range []crilog.Stream{anyStream, crilog.Stdout} {
			for _, n := range []int64{0, 1, 2, r.Int64N(40), 100} {
				newTail := func() *tail { return &tail{filter: filter{stream: stream}, left: n, begun: seed%3 == 0} }
				want := newTail()
				offset, found := simpleTail(text, want)
				plain := newTail()
				gotOffset, gotFound, err := tailOfPlain(t.Context(), bytes.NewReader(text), int64(len(text)), plain)
				require.NoError(t, err)
				require.Equal(t, []any{offset, found, want}, []any{gotOffset, gotFound, plain}, "seed %d, %d lines", seed, n)
				compressed := newTail()
				gotOffset, gotFound, err = tailOfCompressed(t.Context(), zipped, compressed)
				require.NoError(t, err)
				require.Equal(t, []any{offset, found}, []any{gotOffset, gotFound}, "compressed, seed %d, %d lines", seed, n)
				require.True(t, found || *want == *compressed, "compressed, seed %d, %d lines", seed, n)
			}
		}
	}
}

func TestTailOfCompressed(t *testing.T) {
	const full, part = "2026-05-01T12:00:00Z stdout F x\n", "2026-05-01T12:00:00Z stdout P x\n"
	size := int64(len(full))
	for name, c := range map[string]struct {
		text   string
		left   int64
		begun  bool
		offset int64
		found  bool
		after  int64 // lines that are left for older files
	}{
		"nothing":                            {"", 2, false, 0, false, 2},
		"fewer lines":                        {full, 2, false, 0, false, 1},
		"as many lines":                      {full + full, 2, false, 0, false, 0},
		"more lines":                         {full + full + full, 2, false, size, true, 2},
		"none":                               {full, 0, false, size, true, 0},
		"a line that goes on":                {full + part, 1, false, size, true, 0},
		"a line that goes on, none":          {full + part, 0, false, 2 * size, true, 0},
		"a line that goes on in a newer one": {full + part, 0, true, size, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f := compressedFile(t, []byte(c.text))
			tl := &tail{filter: filter{stream: anyStream}, left: c.left, begun: c.begun}
			offset, found, err := tailOfCompressed(t.Context(), f, tl)
			require.NoError(t, err)
			assert.Equal(t, []any{c.offset, c.found, c.after}, []any{offset, found, tl.left})
			if !found {
				assert.Equal(t, c.begun || c.text != "", tl.begun)
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			stop := errors.New("stopped")
			cancel(stop)
			_, _, err = tailOfCompressed(ctx, f, &tail{left: 1})
			require.ErrorIs(t, err, stop)
		})
	}
	closed := compressedFile(t, nil)
	require.NoError(t, closed.Close())
	_, _, err := tailOfCompressed(t.Context(), closed, &tail{left: 1})
	require.ErrorIs(t, err, os.ErrClosed)
}

func TestTailOfPlain_Errors(t *testing.T) {
	stop := errors.New("stopped")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	_, _, err := tailOfPlain(ctx, strings.NewReader("text"), 4, &tail{left: 1})
	require.ErrorIs(t, err, stop)
	_, _, err = tailOfPlain(t.Context(), strings.NewReader("text"), 5, &tail{left: 1})
	require.ErrorIs(t, err, io.EOF, "it has become shorter")
}

// Only entries of the stream count.
func TestEachEntry_SelectsStreams(t *testing.T) {
	f := compressedFile(t, []byte("no entry\n2026-05-01T12:00:00Z stderr F x\n2026-05-01T12:00:00Z stdout F x\n"))
	var ends []int64
	require.NoError(t, eachEntry(t.Context(), f, filter{stream: crilog.Stdout}, func(_ crilog.Header, end int64) bool {
		ends = append(ends, end)
		return true
	}))
	assert.Equal(t, []int64{73}, ends)
}

func TestLineReader_Readers(t *testing.T) {
	text := strings.Repeat("x", bufferSize-1) + "\n" + strings.Repeat("y", 3*bufferSize) + "\nlast"
	for name, r := range map[string]io.Reader{
		"at once": strings.NewReader(text), "half": iotest.HalfReader(strings.NewReader(text)), "with the end": iotest.DataErrReader(strings.NewReader(text)),
	} {
		t.Run(name, func(t *testing.T) {
			l, got := newLineReader(r), strings.Builder{}
			for {
				piece, isEnd, err := l.next()
				if err != nil {
					require.ErrorIs(t, err, io.EOF)
					break
				}
				got.Write(piece)
				if isEnd {
					got.WriteByte('\n')
				}
			}
			got.Write(l.rest())
			assert.Equal(t, text, got.String())
		})
	}
	_, _, err := newLineReader(iotest.ErrReader(nil)).next()
	require.ErrorIs(t, err, io.ErrNoProgress)
}

// sliceWriter cannot be compared.
type sliceWriter []io.Writer

func (w sliceWriter) Write(b []byte) (int, error) { return w[0].Write(b) }

func TestPrinter_Writers(t *testing.T) {
	var both, out, errOut bytes.Buffer
	for name, c := range map[string]struct {
		out, errOut io.Writer
		shared      bool
	}{
		"one":         {&both, &both, true},
		"two":         {&out, &errOut, false},
		"no stdout":   {nil, &errOut, false},
		"not a value": {sliceWriter{&both}, sliceWriter{&both}, false},
		"one of both": {&both, sliceWriter{&both}, false},
	} {
		p := newPrinter(c.out, c.errOut, &corev1.PodLogOptions{}, time.Now())
		assert.Equal(t, c.shared, p.out[crilog.Stdout] == p.out[crilog.Stderr], name)
	}
	assert.Nil(t, newPrinter(&out, nil, &corev1.PodLogOptions{}, time.Now()).out[crilog.Stderr])
}

// An error of a writer ends a copy wherever it comes.
func TestPrinter_FailingWriter(t *testing.T) {
	full := errors.New("disk is full")
	long := []byte("2026-05-01T12:00:00Z stdout F " + strings.Repeat("x", 2*bufferSize))
	for _, timestamps := range []bool{true, false} {
		p := newPrinter(failing{full}, nil, &corev1.PodLogOptions{Timestamps: timestamps}, time.Now())
		require.ErrorIs(t, p.printPiece(long, true), full)
		require.ErrorIs(t, p.printPiece([]byte("2026-05-01T12:00:00Z stdout F x"), true), full, "and every later one")
	}
	limited := newPrinter(io.Discard, nil, &corev1.PodLogOptions{Timestamps: true, LimitBytes: new(int64(10))}, time.Now())
	require.ErrorIs(t, limited.printPiece([]byte("2026-05-01T12:00:00Z stdout F x"), true), errLimit)
}

type failing struct{ err error }

func (w failing) Write([]byte) (int, error) { return 0, w.err }

// A time so far back that it has no name is everything, and that of 1970 is not.
func TestFilter_SinceSeconds(t *testing.T) {
	now := time.Unix(1000, 0)
	assert.True(t, newFilter(&corev1.PodLogOptions{SinceSeconds: new(int64(1000))}, now).since.IsZero())
	assert.Equal(t, int64(1), newFilter(&corev1.PodLogOptions{SinceSeconds: new(int64(999))}, now).since.Unix())
}
