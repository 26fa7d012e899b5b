package podspec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	yaml3 "go.yaml.in/yaml/v3"
)

// documentFunc processes one document that begins on the given line, or the error of
// finding it. It returns false to stop.
type documentFunc func(raw []byte, line int, isJSON bool, err error) bool

// splitYAML splits at the markers --- and ..., which are markers at the start of a line
// only, even within a scalar. Blank lines and comments before a document are left out, so
// that line is where its content begins.
func splitYAML(data []byte, process documentFunc) {
	var start, line, startLine int
	begun := false
	flush := func(end int) bool {
		if !begun {
			return true
		}
		begun = false
		return process(data[start:end], startLine, false, nil)
	}
	for at := 0; at < len(data); {
		line++
		end := at + 1 + bytes.IndexByte(data[at:], '\n')
		if end == at {
			end = len(data)
		}
		text := bytes.TrimRight(data[at:end], " \t\r\n")
		first := isMarker(text, "---")
		if (first || isMarker(text, "...")) && !flush(at) {
			return
		}
		content := !isMarker(text, "...") && !isBlank(text)
		if first {
			content = !isBlank(text[3:])
		}
		if content && !begun {
			begun, start, startLine = true, at, line
		}
		at = end
	}
	flush(len(data))
}

func isMarker(line []byte, marker string) bool {
	return bytes.HasPrefix(line, []byte(marker)) &&
		(len(line) == len(marker) || line[len(marker)] == ' ' || line[len(marker)] == '\t')
}

// isBlank reports whether a line before a document has no content: blanks, a comment, or a
// directive.
func isBlank(line []byte) bool {
	line = bytes.TrimLeft(line, " \t")
	return len(line) == 0 || line[0] == '#' || line[0] == '%'
}

// jsonFirst reports whether data, which begins with a brace, is JSON and not a
// YAML flow mapping. JSON cannot have a line of ---: strings have no newlines.
func jsonFirst(data []byte) bool {
	if bytes.Contains(data, []byte("\n---")) {
		return false
	}
	var first json.RawMessage
	return json.NewDecoder(bytes.NewReader(data)).Decode(&first) == nil
}

func splitJSON(data []byte, process documentFunc) {
	dec := json.NewDecoder(bytes.NewReader(data))
	line, counted := 1, 0
	for {
		// The decoder is at the end of the previous value; blanks follow.
		begin := int(dec.InputOffset())
		begin += len(data[begin:]) - len(bytes.TrimLeft(data[begin:], " \t\r\n"))
		line += bytes.Count(data[counted:begin], []byte("\n"))
		counted = begin

		var raw json.RawMessage
		err := dec.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return
		}
		if !process(raw, line, true, err) || err != nil {
			return
		}
	}
}

// CheckAliases returns an error if a YAML document cannot be decoded within limit bytes for what its aliases stand for: a few
// bytes of aliases can stand for gigabytes. The error for a document that is larger then wraps ErrTooLarge. Decode checks this
// itself.
func CheckAliases(raw []byte, limit int) error {
	if bytes.IndexByte(raw, '*') < 0 || bytes.IndexByte(raw, '&') < 0 {
		return nil
	}
	var root yaml3.Node
	if err := yaml3.Unmarshal(raw, &root); err != nil {
		return err
	}
	e := expansion{limit: limit, sizes: make(map[*yaml3.Node]int)}
	_, err := e.size(&root)
	return err
}

type expansion struct {
	limit int
	// sizes of nodes already measured; growing while they are being measured.
	sizes map[*yaml3.Node]int
}

const growing = -1

func (e *expansion) size(n *yaml3.Node) (int, error) {
	if n.Kind == yaml3.AliasNode {
		n = n.Alias
	}
	if size, ok := e.sizes[n]; ok {
		if size == growing {
			return 0, fmt.Errorf("line %d: anchor %q contains itself", n.Line, n.Anchor)
		}
		return size, nil
	}
	if n.Anchor != "" {
		e.sizes[n] = growing
	}
	total := len(n.Value) + 1
	for _, child := range n.Content {
		size, err := e.size(child)
		if err != nil {
			return 0, err
		}
		if total += size; total > e.limit {
			return 0, fmt.Errorf("line %d: more than %d bytes with expanded aliases: %w", n.Line, e.limit, ErrTooLarge)
		}
	}
	if n.Anchor != "" {
		e.sizes[n] = total
	}
	return total, nil
}

// absoluteLines converts the line numbers in the text of an error, which count from the
// start of the document, to those of the input.
func absoluteLines(err error, start int) error {
	text, out := err.Error(), strings.Builder{}
	for {
		before, after, found := strings.Cut(text, "line ")
		out.WriteString(before)
		if !found {
			return &lineError{text: out.String(), err: err}
		}
		out.WriteString("line ")
		digits := len(after) - len(strings.TrimLeft(after, "0123456789"))
		if n, err := strconv.Atoi(after[:digits]); err == nil {
			out.WriteString(strconv.Itoa(n + start - 1))
			after = after[digits:]
		}
		text = after
	}
}

// lineError is err with its line numbers corrected.
type lineError struct {
	text string
	err  error
}

func (e *lineError) Error() string { return e.text }
func (e *lineError) Unwrap() error { return e.err }
