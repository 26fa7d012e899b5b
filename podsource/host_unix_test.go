//go:build unix

package podsource_test

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Files whose content never ends or never begins are not read.
func TestFile_EndlessFiles(t *testing.T) {
	d := onDisk(t, "m")
	d.comes()
	d.do(os.Symlink("/dev/zero", d.path("m/zero.yaml")))
	d.do(syscall.Mkfifo(d.path("m/fifo.yaml"), 0o600))
	d.do(os.Symlink("loop.yaml", d.path("m/loop.yaml")))
	d.do(os.Symlink("/", d.path("m/root.yaml")))
	d.do(os.Truncate(create(t, d.path("m/huge.yaml")), 100<<20))
	d.write("m/x.yaml", manifest("x", "1"))
	d.comes("x=1")
	var faults strings.Builder
	for len(d.last.Errors) < 4 {
		d.last = <-d.sets
	}
	for _, f := range d.last.Errors {
		fmt.Fprintln(&faults, f)
	}
	for _, want := range []string{
		"zero.yaml: not a regular file but a device", "fifo.yaml: not a regular file but a named pipe", "huge.yaml: manifest exceeds 10485760 bytes",
		"loop.yaml: stat: too many levels",
	} {
		assert.Contains(t, faults.String(), want)
	}
	assert.NotContains(t, faults.String(), "root.yaml", "a manifestDir is left out")
}
