//go:build linux

package containerdtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	cniDir  = "/usr/lib/cni"
	busybox = "/bin/busybox"
	howTo   = "run as root after: apt-get install containerd runc containernetworking-plugins busybox-static"
)

// binaries is one containerd installation.
type binaries struct {
	name       string // of the subtest: containerd-1.6
	containerd string
	shim       string // "" leaves it to PATH
	major      string
}

// find returns the installations on this machine. The error says what is missing.
func find() ([]binaries, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("containerd tests need root: " + howTo)
	}
	for _, f := range []string{busybox, filepath.Join(cniDir, "ptp"), filepath.Join(cniDir, "host-local")} {
		if _, err := os.Stat(f); err != nil {
			return nil, fmt.Errorf("containerd tests need %s: %s", f, howTo)
		}
	}
	if _, err := exec.LookPath("runc"); err != nil {
		return nil, errors.New("containerd tests need runc: " + howTo)
	}
	var found []binaries
	added := map[string]bool{}
	add := func(bin, shim string) {
		v, err := versionOf(bin)
		if err != nil || added[v] {
			return
		}
		added[v] = true
		major, _, _ := strings.Cut(v, ".")
		found = append(found, binaries{"containerd-" + v, bin, shim, major})
	}
	if p, err := exec.LookPath("containerd"); err == nil {
		add(p, "")
	}
	if dir := os.Getenv("SUBLET_CONTAINERD2"); dir != "" {
		add(filepath.Join(dir, "containerd"), filepath.Join(dir, "containerd-shim-runc-v2"))
	}
	if len(found) == 0 {
		return nil, errors.New("containerd tests need containerd: " + howTo)
	}
	return found, nil
}

// versionOf returns "1.6" for containerd 1.6.20.
func versionOf(bin string) (string, error) {
	out, err := exec.Command(bin, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", bin, err)
	}
	for f := range strings.FieldsSeq(string(out)) {
		f = strings.TrimPrefix(f, "v")
		if parts := strings.SplitN(f, ".", 3); len(parts) == 3 && parts[0] != "" && strings.Trim(parts[0]+parts[1], "0123456789") == "" {
			return parts[0] + "." + parts[1], nil
		}
	}
	return "", fmt.Errorf("%s --version: no version in %q", bin, out)
}

// Timeout multiplies a time limit by SUBLET_TIMEOUT_FACTOR, a whole number that is set where
// containerd and everything else are slow, as on an emulated machine.
func Timeout(d time.Duration) time.Duration {
	if n, err := strconv.Atoi(os.Getenv("SUBLET_TIMEOUT_FACTOR")); err == nil && n > 1 {
		return d * time.Duration(n)
	}
	return d
}

// skip ends the test: a skip on a developer's machine, a failure in CI.
func skip(t testing.TB, why error) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatal(why)
	}
	t.Skip(why)
}
