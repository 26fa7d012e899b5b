//go:build linux

package vmtest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

const (
	runTimeout = 4 * time.Minute  // of MustRun on a quiet machine, so that a hung one ends in a failure with its console
	quietBoot  = 25 * time.Second // of the emulated machine on two quiet processors
	maxPace    = 12
)

// Pace says how many times longer than on a quiet host things take, by the last boot: a whole
// number from 1.
func (m *Machine) Pace() int { return max(m.pace, 1) }

// Scale returns the time limit for what may take d on a quiet host.
func (m *Machine) Scale(d time.Duration) time.Duration { return d * time.Duration(m.Pace()) }

// Require skips the test if no machine can be booted. In the stage vm of CI SUBLET_VM is
// always set, and everything else that is missing fails the test.
func Require(t testing.TB) {
	t.Helper()
	if os.Getenv(Env) == "" {
		t.Skip("no virtual machine: " + Env + " is not set; .ci/run vm builds the image and runs this test")
	}
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil && os.Getenv("CI") == "" {
		t.Skip("no virtual machine: apt-get install qemu-system-x86 qemu-utils")
	}
}

// Start boots a machine that is closed when the test ends. It skips the test as Require does.
func Start(t testing.TB, cfg Config) *Machine {
	t.Helper()
	Require(t)
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	m.MustBoot(t)
	return m
}

// MustBoot boots the machine, or ends the test.
func (m *Machine) MustBoot(t testing.TB) {
	t.Helper()
	began := time.Now()
	if err := m.Boot(t.Context()); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	m.pace = min(int((took+quietBoot-1)/quietBoot), maxPace)
	t.Logf("booted in %v: time limits are those of a quiet host, times %d", took.Round(time.Second), m.Pace())
}

// MustAwait runs a script of bash until it succeeds. If it does not within the limit of what
// may take d on a quiet host, the test ends with what the script otherwise prints.
func (m *Machine) MustAwait(t testing.TB, d time.Duration, condition, otherwise string) {
	t.Helper()
	var out strings.Builder
	ctx, cancel := context.WithTimeout(t.Context(), m.Scale(d+runTimeout))
	defer cancel()
	code, err := m.Run(ctx, fmt.Sprintf("while [ $SECONDS -lt %d ]; do\nif (%s\n) >/dev/null 2>&1; then exit 0; fi\nsleep 0.5\ndone\n%s\nexit 1",
		int(m.Scale(d).Seconds()), condition, otherwise), &out)
	if err != nil || code != 0 {
		t.Fatalf("%s: not within %v: %v\n%s", condition, m.Scale(d), err, out.String())
	}
}

// MustRun runs a script and returns what it has printed. If it fails, the test ends.
func (m *Machine) MustRun(t testing.TB, script string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), m.Scale(runTimeout))
	defer cancel()
	var out strings.Builder
	code, err := m.Run(ctx, script, &out)
	if err != nil || code != 0 {
		t.Fatalf("exit code %d of %q: %v\n%s", code, script, err, out.String())
	}
	return out.String()
}
