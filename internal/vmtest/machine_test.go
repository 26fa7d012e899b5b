//go:build linux

package vmtest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/internal/vmtest"
)

// The machine is what it is for: systemd, cgroup v2 and pressure figures. Scripts get
// their output and exit code back to the byte, whatever they print. What is on the disk
// outlives a cut of the power. TestVM_Service of examples/nodeagent has a machine reboot.
func TestVM_RunsScripts(t *testing.T) {
	share := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(share, "file"), []byte("shared\n"), 0o600))
	m := vmtest.Start(t, vmtest.Config{Share: share, Durable: true})
	assert.Equal(t, "systemd\ncgroup2fs\nshared\n", m.MustRun(t, "cat /proc/1/comm; stat -f -c %T /sys/fs/cgroup; cat /host/file"))
	assert.Contains(t, m.MustRun(t, "cat /proc/pressure/memory"), "some avg10=")
	for _, out := range []string{"", "\n", "no end of line", "one\n", "one\n\n", "\n\none"} {
		assert.Equal(t, out, m.MustRun(t, "printf '"+out+"'"))
	}
	var out strings.Builder
	code, err := m.Run(t.Context(), "echo failed >&2; exit 3", &out)
	require.NoError(t, err)
	assert.Equal(t, 3, code)
	assert.Equal(t, "failed\n", out.String())

	m.MustRun(t, "echo kept >/root/kept; sync; mount -t tmpfs none /mnt; echo lost >/mnt/lost")
	require.NoError(t, m.Kill())
	_, err = m.Run(t.Context(), "true", &out)
	require.Error(t, err)
	m.MustBoot(t)
	assert.Equal(t, "kept\n", m.MustRun(t, "cat /root/kept; ls /mnt"))
}

func TestNew_NeedsAnImage(t *testing.T) {
	t.Setenv(vmtest.Env, "")
	_, err := vmtest.New(vmtest.Config{})
	require.ErrorContains(t, err, "SUBLET_VM must name a directory filled by internal/vmtest/image.sh")
}
