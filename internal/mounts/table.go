// Package mounts finds mounts, and deletes directories without crossing a mount point,
// because mounted data must not be deleted.
//
// The mount table of the kernel has a line for each container on the node, so reading
// it for each directory of each pod has quadratic cost. Kernels from 5.8 on are queried
// for each directory instead; the table is read only if that query finds a mount or is
// not supported.
package mounts

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// Point is one entry of the mount table.
type Point struct {
	Path     string
	FSType   string
	Source   string // such as the path of a device
	ReadOnly bool
	// HasLabels is true if files have SELinux labels of their own, which can be changed. It is false
	// without SELinux, and for a mount with one label for all.
	HasLabels bool
}

const table = "/proc/self/mountinfo"

// maxLine bounds a line of the table. Overlay mounts list all their layers in one line.
const maxLine = 1 << 20

// Below returns the mounts at or below dir from the mount table, in the order in which
// they were made. dir is an absolute path without symbolic links.
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
		if !ok || len(fields) < 6 {
			continue
		}
		path := unescape(fields[4])
		if path == dir || strings.HasPrefix(path, below) {
			fsType, rest, _ := strings.Cut(after, " ")
			source, options, _ := strings.Cut(rest, " ")
			ofFileSystem, ofMount := strings.Split(options, ","), strings.Split(fields[5], ",")
			found = append(found, Point{
				Path: path, FSType: fsType, Source: unescape(source),
				ReadOnly: slices.Contains(ofFileSystem, "ro") || slices.Contains(ofMount, "ro"), HasLabels: slices.Contains(ofFileSystem, "seclabel"),
			})
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	return found, nil
}

// unescape replaces the octal escapes such as \040 that the kernel uses for blanks,
// newlines and backslashes.
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
