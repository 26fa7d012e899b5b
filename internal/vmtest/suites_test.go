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
	name string // of the subtest, which begins with the driver
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
	driver, _, _ := strings.Cut(s.name, "/")
	code, err := m.Run(ctx, "mkdir -p /root/"+s.pkg+"; cd /root/"+s.pkg+" && cp -rn /host/testdata/"+base+" testdata 2>/dev/null; "+
		fmt.Sprintf("export CI=true SUBLET_PAUSE=/host/pause SUBLET_TIMEOUT_FACTOR=%d SUBLET_CGROUP_DRIVER=%s %s; /host/%s.test -test.v -test.timeout=%v -test.run '%s'", m.Pace(), driver, s.env, base, m.Scale(suiteTimeout), s.run), &out)
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

// Pods of the tests of e2e. All sixty at once take the emulated machine longer than their probes and deadlines allow.
const (
	limitedPods = "resources|guaranteed|memory-exceeded|pod-resources" // by their cgroups
	otherPods   = "process|emptydir-memory|init-containers|multi-container|users-and-groups|downward-files|host-network|" +
		"emptydir-disk|subpath|liveness-exec|privileged|mount-propagation"
)

// envAll is set for the suites that have little to do with cgroups, which take ten minutes more.
const envAll = "SUBLET_VM_ALL"

// The limits of pods, their statistics, resizes, evictions and garbage collections, on
// cgroup v2 with both drivers.
func TestVM_CgroupV2(t *testing.T) {
	vmtest.Require(t)
	share := t.TempDir()
	vmtest.Build(t, share, "internal/containerdtest/testdata/pause", "cgroup.test", "e2e.test")
	require.NoError(t, os.CopyFS(filepath.Join(share, "testdata/e2e"), os.DirFS("../../e2e/testdata")))
	m := vmtest.Start(t, vmtest.Config{Share: share})
	suites := []suite{{name: "slices", pkg: "cgroup", run: "TestVM_"}}
	for _, driver := range []string{"systemd", "cgroupfs"} {
		add := func(name, env, run string) {
			suites = append(suites, suite{name: driver + "/" + name, pkg: "e2e", env: env, run: run})
		}
		images := func() { add("images", "SUBLET_STARTS_TIME=20s", "TestStartsAgainstImageCollection") }
		add("memory eviction", "", "TestEvictionOnContainerd/./memory")
		add("pods", "SUBLET_PODS='"+limitedPods+"'", "TestPods")
		add("resize", "", "TestResizeInPlace|TestResizeOfMemoryRequestAlone|TestCPUQuotaPeriod|TestPodCgroupStats")
		if driver == "systemd" {
			images()
		}
		if os.Getenv(envAll) == "" {
			continue
		}
		add("other evictions", "", "TestEvictionOnContainerd/./disk")
		add("other pods", "SUBLET_PODS='"+otherPods+"'", "TestPods")
		if driver == "cgroupfs" {
			images()
		}
	}
	for _, s := range suites {
		t.Run(s.name, func(t *testing.T) { s.test(t, m) })
	}
	require.Empty(t, m.MustRun(t, "ls -d /sys/fs/cgroup/sublet* 2>/dev/null; systemctl list-units --all --no-legend 'sublet*'; "+
		"grep sublet /proc/mounts; pgrep -af '^[^ ]*(containerd|runc|pause|busybox|sleep)'; ls -d /tmp/sublet* 2>/dev/null; true"), "left over")
}
