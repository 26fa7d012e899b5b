//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/eviction"
)

// EV-1: the flags are read as the kubelet reads them: given twice they are
// joined, given once they replace the default, and empty they ask for nothing.
func TestEvictionFlags(t *testing.T) {
	const gi = "memory.available<1Gi"
	for _, tc := range []struct {
		name string
		args []string
		want string // hard; soft; grace; reclaim; maximum grace; transition
		err  string
	}{
		{"defaults", nil, eviction.DefaultHardThresholds + ";;;;0;5m0s", ""},
		{"one replaces the defaults", []string{"--eviction-hard=" + gi}, gi + ";;;;0;5m0s", ""},
		{"several in one", []string{"-eviction-hard", gi + ",nodefs.available<5%"}, gi + ",nodefs.available<5%;;;;0;5m0s", ""},
		{"several times", []string{"-eviction-hard", gi, "-eviction-hard", "pid.available<100"}, gi + ",pid.available<100;;;;0;5m0s", ""},
		{"empty", []string{"-eviction-hard="}, ";;;;0;5m0s", ""},
		{"none", []string{"-eviction-hard", "none"}, "none;;;;0;5m0s", ""},
		{"zero and all percent are off", []string{"-eviction-hard", "nodefs.available<0%,imagefs.available<100%"}, "nodefs.available<0%,imagefs.available<100%;;;;0;5m0s", ""},
		{
			"all", []string{
				"-eviction-soft", gi, "-eviction-soft", "pid.available<5%", "-eviction-soft-grace-period", "memory.available=1m30s,pid.available=2m",
				"-eviction-minimum-reclaim", "memory.available=0Mi,nodefs.available=500Mi", "-eviction-max-pod-grace-period", "-1",
				"-eviction-pressure-transition-period", "30s",
			}, eviction.DefaultHardThresholds + ";" + gi + ",pid.available<5%;memory.available=1m30s,pid.available=2m;memory.available=0Mi,nodefs.available=500Mi;-1;30s", "",
		},
		{"unknown signal", []string{"-eviction-hard", "memory.free<1Gi"}, "", `-eviction-hard: "memory.free<1Gi": unknown signal "memory.free"`},
		{"the wrong way round", []string{"-eviction-hard", "memory.available>1Gi"}, "", "must be written with <"},
		{"twice the same signal", []string{"-eviction-hard", gi, "-eviction-hard", gi}, "", "duplicate threshold for memory.available"},
		{"soft without a grace period", []string{"-eviction-soft", gi}, "", `"memory.available<1Gi" has no grace period`},
		{"a grace period in plain seconds", []string{"-eviction-soft", gi, "-eviction-soft-grace-period", "memory.available=90"}, "", `invalid duration "90"`},
		{"a negative reclaim", []string{"-eviction-minimum-reclaim", "memory.available=-1"}, "", "must not be negative"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f, err := parse(append([]string{"-manifests", t.TempDir(), "-root-dir", t.TempDir()}, tc.args...), io.Discard)
			if tc.err != "" {
				require.ErrorContains(t, err, tc.err)
				return
			}
			require.NoError(t, err)
			r := f.reclaim
			assert.Equal(t, tc.want, strings.Join([]string{
				r.evictionHard.text, r.evictionSoft.text, r.evictionSoftGrace.text, r.evictionMinReclaim.text,
				fmt.Sprint(r.evictionMaxPodGrace), r.evictionTransition.String(),
			}, ";"))
		})
	}
}

// EV-8: pressure is reported while it lasts, on /healthz?verbose, /conditions, in
// the metrics and in the log. The node stays healthy meanwhile.
func TestNodeagent_ReportsPressure(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount a file system")
	}
	dir := t.TempDir()
	require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=32m"))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	addr := freeAddr(t)
	w := &world{t: t, bin: bin, addr: addr}
	w.startWith("-manifests", dir, "-root-dir", filepath.Join(dir, "root"), "-pod-logs-dir", filepath.Join(dir, "logs"), "-listen", addr,
		"-cgroup-root", "/sublet-nodeagent-test", "-eviction-hard", "nodefs.available<50%", "-eviction-pressure-transition-period", "1s")
	reports := func(status corev1.ConditionStatus, message string) func() error {
		return func() error {
			code, body, err := w.get("/healthz?verbose")
			if err != nil || code != 200 || !strings.Contains(string(body), fmt.Sprintf("[ ] DiskPressure %s: %s\n", status, message)) {
				return fmt.Errorf("%d: %s: %w", code, body, err)
			}
			_, body, err = w.get("/conditions")
			var list []corev1.NodeCondition
			if err != nil || json.Unmarshal(body, &list) != nil || len(list) != 4 || list[1].Status != status || list[0].Status != corev1.ConditionFalse {
				return fmt.Errorf("conditions %s: %w", body, err)
			}
			return nil
		}
	}
	w.eventually(4*soon, reports(corev1.ConditionFalse, "kubelet has no disk pressure"))
	fill := filepath.Join(dir, "fill")
	require.NoError(t, os.WriteFile(fill, make([]byte, 20<<20), 0o600))
	w.eventually(4*soon, reports(corev1.ConditionTrue, "kubelet has disk pressure: there is no pod that may be evicted"))
	time.Sleep(1500 * time.Millisecond)
	require.NoError(t, reports(corev1.ConditionTrue, "kubelet has disk pressure: there is no pod that may be evicted")(), "for as long as it lasts")
	require.NoError(t, os.Remove(fill))
	w.eventually(4*soon, reports(corev1.ConditionFalse, "kubelet has no disk pressure"))
	require.NoError(t, w.signal(syscall.SIGTERM))
}
