//go:build linux

package e2e

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/internal/containerdtest"
)

// The benchmarks run once, cheap variants of them, and report what the table of docs/benchmarks.md is made of.
func TestBenchmarks(t *testing.T) {
	run := func(t *testing.T, benchmark string, units ...string) (output string) {
		t.Helper()
		cmd := exec.Command(os.Args[0], "-test.run", "^$", "-test.bench", "^Benchmark"+benchmark, "-test.benchtime", "1x") //nolint:gosec // this program
		cmd.Env = append(os.Environ(), envBesidePods+"=2", envSteady+"=1s", envSmoke+"=yes")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		for _, unit := range units {
			assert.Contains(t, string(out), " "+unit)
		}
		assert.Contains(t, string(out), strings.NewReplacer("^", "", "$", "").Replace("Benchmark"+benchmark))
		return string(out)
	}
	t.Run("bursts", func(t *testing.T) {
		run(t, "Burst/embedded/simulated/pods=30/busy=0", "throughput/raw", "first/single", "median/last", "deletion/raw", "throughput/raw30", "raw-up-ms", "last-ms",
			"idle-ms", "raw4-idle-ms")
	})
	t.Run("a rich pod", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("needs root: one of its volumes is in memory")
		}
		run(t, "RichPod/embedded/simulated", "agent/raw", "agent-down/raw")
	})
	t.Run("beside the kubelet", func(t *testing.T) {
		containerdtest.Require(t)
		out := run(t, "BesideKubelet/^containerd-2", "none-MB", "steady-%core", "start-calls/pod", "stop-calls/pod", "deleted-ms", "anonymous-MB")
		for _, program := range []string{"client", "agent", "pageout"} {
			assert.Contains(t, out, "program="+program)
		}
	})
}
