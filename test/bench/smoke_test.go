package bench

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The cheap benchmarks run once, and report what the table of docs/benchmarks.md is made of.
func TestBenchmarks(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute with the race detector, and is the same for all users")
	}
	for benchmark, units := range map[string][]string{
		"ManyPods/pods=50$": {"up-ms/pod", "down-ms/pod", "change-ms", "KiB/pod"},
		"Restart/pods=50$":  {"reported-s", "calls/pod"},
		"Churn":             {"grown-KiB", "grown-goroutines", "%core"},
		"OnePod/among=0":    {"up-ms", "change-ms", "down-ms"},
		"Idle/pods=10/":     {"%core", "wakes/s"},
		"StatusLatency/pods=40/exits-per-second=20": {"exit-p99-ms"},
	} {
		t.Run(benchmark, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run", "^$", "-test.bench", "^Benchmark"+benchmark, "-test.benchtime", "1x") //nolint:gosec // this program
			cmd.Env = append(os.Environ(), benchChurn+"=2s", benchSmoke+"=yes")
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			var line string
			for l := range strings.Lines(string(out)) {
				if strings.HasPrefix(l, "Benchmark"+strings.TrimSuffix(benchmark, "$")) {
					line = l
				}
			}
			for _, unit := range units {
				assert.Contains(t, line, " "+unit, "of the output:\n%s", out)
			}
		})
	}
}
