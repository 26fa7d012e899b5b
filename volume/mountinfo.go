package volume

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
)

// mountPoint is one line of the kernel's mount table.
type mountPoint struct {
	path   string
	fsType string
}

// mountsBelow returns what is mounted at or below dir, in the order in which it
// was mounted.
func mountsBelow(dir string) ([]mountPoint, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	return parseMounts(f, dir)
}

func parseMounts(r io.Reader, dir string) ([]mountPoint, error) {
	var found []mountPoint
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20) // overlay mounts list all their layers in one line
	for lines.Scan() {
		before, after, ok := strings.Cut(lines.Text(), " - ")
		fields := strings.Fields(before)
		if !ok || len(fields) < 5 {
			continue
		}
		path := unescape(fields[4])
		if path == dir || strings.HasPrefix(path, dir+"/") {
			fsType, _, _ := strings.Cut(after, " ")
			found = append(found, mountPoint{path: path, fsType: fsType})
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
