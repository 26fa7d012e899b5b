package topology_test

import (
	"io/fs"
	"os"
	"testing"
)

// osRoot is the root directory of this machine. It skips the test where there is no /sys.
func osRoot(t *testing.T) fs.FS {
	t.Helper()
	if _, err := os.Stat("/sys/devices/system/cpu/online"); err != nil {
		t.Skip("needs the kernel's /sys")
	}
	return os.DirFS("/")
}
