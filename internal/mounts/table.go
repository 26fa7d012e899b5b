// Package mounts tells what is mounted where, and deletes folders without going
// through a mount point: what is mounted is somebody's data, and not ours to
// delete.
//
// The kernel's mount table has a line for each container of the node, so that
// reading it for each folder of each pod costs the square of their number. Where
// the kernel can (5.8 and later) it is asked about each folder instead; the table
// is read when that shows something, or cannot.
package mounts

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
)

// Point is one line of the kernel's mount table.
type Point struct {
	Path   string
	FSType string
}

const table = "/proc/self/mountinfo"

// maxLine bounds a line of the table: overlay mounts list all their layers in one.
const maxLine = 1 << 20

// Below reads the mount table and returns what is mounted at or below dir, an
// absolute path without links, in the order in which it was mounted.
func Below(dir string) ([]Point, error) {
	f, err := os.Open(table)
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	return parse(f, dir)
}

func parse(r io.Reader, dir string) ([]Point, error) {
	var found []Point
	below := strings.TrimSuffix(dir, "/") + "/"
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		before, after, ok := strings.Cut(lines.Text(), " - ")
		fields := strings.Fields(before)
		if !ok || len(fields) < 5 {
			continue
		}
		path := unescape(fields[4])
		if path == dir || strings.HasPrefix(path, below) {
			fsType, _, _ := strings.Cut(after, " ")
			found = append(found, Point{Path: path, FSType: fsType})
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	return found, nil
}

// unescape turns \040 and the like, as which the kernel writes blanks,
// newlines and backslashes, into what they stand for.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) && isOctal(s[i+1:i+4]) {
			b.WriteByte((s[i+1]-'0')<<6 | (s[i+2]-'0')<<3 | (s[i+3] - '0'))
			i += 3
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func isOctal(s string) bool { return strings.Trim(s, "01234567") == "" }
