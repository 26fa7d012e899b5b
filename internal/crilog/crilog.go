// Package crilog parses the entries of container logs in the CRI's format.
package crilog

import (
	"bytes"
	"time"
)

// Stream is where a container wrote an entry.
type Stream uint8

// The streams of a container.
const (
	Stdout Stream = iota
	Stderr
	NumStreams
)

// MaxHeader is more than the longest header that a runtime writes.
const MaxHeader = 256

// Header is what precedes the text of an entry:
//
//	2026-11-21T04:05:06.789Z stdout F the text
//
// The text of a partial entry, with tag P, is continued by the next entry of its stream.
type Header struct {
	At      time.Time
	Stream  Stream
	Partial bool
}

// ParseHeader parses the header of an entry, of which b has at least MaxHeader bytes or
// all without the newline, and returns the rest of b. It reports false if b is not in the
// format.
func ParseHeader(b []byte) (h Header, text []byte, ok bool) {
	stamp, rest, ok := bytes.Cut(b[:min(len(b), MaxHeader)], []byte{' '})
	if !ok {
		return h, nil, false
	}
	name, rest, ok := bytes.Cut(rest, []byte{' '})
	if !ok {
		return h, nil, false
	}
	switch string(name) {
	case "stdout":
		h.Stream = Stdout
	case "stderr":
		h.Stream = Stderr
	default:
		return h, nil, false
	}
	tags, _, separated := bytes.Cut(rest, []byte{' '})
	first, _, _ := bytes.Cut(tags, []byte{':'}) // further tags are for later versions
	switch string(first) {
	case "P":
		h.Partial = true
	case "F":
	default:
		return h, nil, false
	}
	if err := h.At.UnmarshalText(stamp); err != nil { // of RFC 3339
		return h, nil, false
	}
	text = b[len(stamp)+1+len(name)+1+len(tags):]
	if separated {
		text = text[1:]
	} else if len(text) > 0 {
		return h, nil, false // the tags are longer than any header
	}
	return h, text, true
}
