package crilog_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/internal/crilog"
)

func TestParseHeader(t *testing.T) {
	at := time.Date(2026, 11, 21, 4, 5, 6, 7e8, time.UTC)
	long := strings.Repeat("x", 2*crilog.MaxHeader)
	for line, want := range map[string]struct {
		h    crilog.Header
		text string
	}{
		"2026-11-21T04:05:06.7Z stdout F the text":          {crilog.Header{At: at, Stream: crilog.Stdout}, "the text"},
		"2026-11-21T05:05:06.7+01:00 stderr P  x ":          {crilog.Header{At: at, Stream: crilog.Stderr, Partial: true}, " x "},
		"2026-11-21T04:05:06.7Z stderr F:later:tags y":      {crilog.Header{At: at, Stream: crilog.Stderr}, "y"},
		"2026-11-21T04:05:06.7Z stdout F":                   {crilog.Header{At: at}, ""},
		"2026-11-21T04:05:06.7Z stdout F ":                  {crilog.Header{At: at}, ""},
		"2026-11-21T04:05:06.7Z stdout P " + long:           {crilog.Header{At: at, Partial: true}, long},
		"2026-11-21T04:05:06.7Z stdout P:a" + " " + "tag P": {crilog.Header{At: at, Partial: true}, "tag P"},
	} {
		h, text, ok := crilog.ParseHeader([]byte(line))
		require.True(t, ok, line)
		assert.True(t, want.h.At.Equal(h.At), line)
		h.At = want.h.At
		assert.Equal(t, want.h, h, line)
		assert.Equal(t, want.text, string(text), line)
	}
	for _, line := range []string{
		"", "no entry", "2026-11-21T04:05:06.7Z stdout", "2026-11-21 stdout F x", "2026-11-21T04:05:06.7Z stdin F x",
		"2026-11-21T04:05:06.7Z stdout X x", "2026-11-21T04:05:06.7Z stdout F" + strings.Repeat(":x", crilog.MaxHeader) + " x",
	} {
		_, _, ok := crilog.ParseHeader([]byte(line))
		assert.False(t, ok, line)
	}
}

func FuzzParseHeader(f *testing.F) {
	f.Add([]byte("2026-11-21T04:05:06.1Z stdout F x"))
	f.Add([]byte("2026-11-21T04:05:06.1+01:00 stderr P:x "))
	f.Fuzz(func(t *testing.T, line []byte) {
		h, text, ok := crilog.ParseHeader(line)
		if !ok {
			require.Empty(t, text)
			return
		}
		require.Less(t, h.Stream, crilog.NumStreams)
		require.True(t, bytes.HasSuffix(line, text))
	})
}
