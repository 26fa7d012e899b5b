package podlogs

import (
	"bytes"
	"time"
)

// stream is where a container wrote an entry.
type stream uint8

const (
	stdout stream = iota
	stderr
	numStreams
	anyStream
)

// maxHeader is more than the longest header that a runtime writes.
const maxHeader = 256

// header is what precedes the text of an entry of a log in the CRI's format:
//
//	2026-11-21T04:05:06.789Z stdout F the text
//
// The text of a partial entry, with tag P, is continued by the next entry of its stream.
type header struct {
	at      time.Time
	stream  stream
	partial bool
}

// parseHeader parses the header of an entry, of which b has at least maxHeader bytes or
// all without the newline. It reports false if b is not in the format.
func parseHeader(b []byte) (h header, text []byte, ok bool) {
	stamp, rest, ok := bytes.Cut(b[:min(len(b), maxHeader)], []byte{' '})
	if !ok {
		return h, nil, false
	}
	name, rest, ok := bytes.Cut(rest, []byte{' '})
	if !ok {
		return h, nil, false
	}
	switch string(name) {
	case "stdout":
		h.stream = stdout
	case "stderr":
		h.stream = stderr
	default:
		return h, nil, false
	}
	tags, _, separated := bytes.Cut(rest, []byte{' '})
	first, _, _ := bytes.Cut(tags, []byte{':'}) // further tags are for later versions
	switch string(first) {
	case "P":
		h.partial = true
	case "F":
	default:
		return h, nil, false
	}
	if err := h.at.UnmarshalText(stamp); err != nil { // of RFC 3339
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
