//go:build linux

package vmtest_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/internal/vmtest"
)

// suiteTimeout is that of one suite on a quiet host.
const suiteTimeout = 4 * time.Minute

// suite is a run of a test binary in the machine.
type suite struct {
	name string // of the subtest
	pkg  string // whose directory has its testdata
	env  string // settings of its environment
	run  string // the pattern of its tests
}

// test runs the suite, shows how each test ended and what was measured, and fails with its
// output if it has failed, or if it has skipped a test: the machine has all that it needs.
func (s suite) test(t *testing.T, m *vmtest.Machine) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), m.Scale(suiteTimeout+time.Minute))
	defer cancel()
	var out bytes.Buffer
	base := filepath.Base(s.pkg)
	code, err := m.Run(ctx, "mkdir -p /root/"+s.pkg+"; cd /root/"+s.pkg+" && cp -rn /host/testdata/"+base+" testdata 2>/dev/null; "+
		fmt.Sprintf("export CI=true SUBLET_PAUSE=/host/pause SUBLET_TIMEOUT_FACTOR=%d %s; /host/%s.test -test.v -test.timeout=%v -test.run '%s'", m.Pace(), s.env, base, m.Scale(suiteTimeout), s.run), &out)
	for line := range strings.Lines(out.String()) {
		if strings.Contains(line, "--- ") || strings.Contains(line, ": measured") {
			t.Log(strings.TrimRight(line, "\n"))
		}
	}
	require.NoError(t, err, out.String())
	require.Zero(t, code, out.String())
	require.Contains(t, out.String(), "--- PASS", "no test matches")
	require.NotContains(t, out.String(), "--- SKIP", out.String())
}

// somePods are pods that have to do with cgroups, with mounts, or with both. All sixty at once take the emulated machine longer than
// their probes and deadlines allow.
const somePods = "multi-container|init-containers|users-and-groups|downward-files|resources|guaranteed|memory-exceeded|host-network|" +
	"emptydir-disk|emptydir-memory|subpath|liveness-exec|privileged|mount-propagation|pod-resources|process"

// The limits of pods, their statistics, resizes, evictions and garbage collections, on
// cgroup v2 with both drivers.
func TestVM_CgroupV2(t *testing.T) {
	vmtest.Require(t)
	share := t.TempDir()
	vmtest.Build(t, share, "internal/containerdtest/testdata/pause", "cgroup.test", "e2e.test")
	require.NoError(t, os.CopyFS(filepath.Join(share, "testdata/e2e"), os.DirFS("../../e2e/testdata")))
	m := vmtest.Start(t, vmtest.Config{Share: share})
	const fewStarts = " SUBLET_STARTS_TIME=20s SUBLET_PODS='" + somePods + "'" // each start pulls and unpacks an image
	suites := []suite{{name: "slices", pkg: "cgroup", run: "TestVM_"}}
	for _, driver := range []string{"systemd", "cgroupfs"} {
		for _, run := range []string{"TestEvictionOnContainerd", "TestPods", "TestResizeInPlace", "TestStartsAgainstImageCollection"} {
			suites = append(suites, suite{name: driver + "/" + run, pkg: "e2e", env: "SUBLET_CGROUP_DRIVER=" + driver + fewStarts, run: run})
		}
	}
	for _, s := range suites {
		t.Run(s.name, func(t *testing.T) { s.test(t, m) })
	}
	require.Empty(t, m.MustRun(t, "ls -d /sys/fs/cgroup/sublet* 2>/dev/null; systemctl list-units --all --no-legend 'sublet*'; "+
		"grep sublet /proc/mounts; pgrep -a 'containerd|runc|pause|busybox|sleep'; ls -d /tmp/sublet* 2>/dev/null; true"), "left over")
}
