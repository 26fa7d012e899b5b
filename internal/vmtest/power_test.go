//go:build linux

package vmtest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/internal/vmtest"
)

// manifest is a pod as a file of a directory of manifests.
const manifest = `apiVersion: v1
kind: Pod
metadata: {name: %[1]s, namespace: default}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: "localhost/busybox:1", imagePullPolicy: Never, command: [sleep, "100000"]}
`

// churn has pods come and go, so that a cut of the power meets the agent at work.
const churn = `nohup bash -c 'i=0; while :; do
  i=$((i + 1))
  sed "s/template/churn-$((i % 4))/; s/100000/$i/" /etc/template.yaml >/etc/new.yaml
  sync /etc/new.yaml; mv /etc/new.yaml /etc/sublet/manifests/churn-$((i % 4)).yaml
  rm -f /etc/sublet/manifests/churn-$(((i + 2) % 4)).yaml
  sleep 1
done' >/dev/null 2>&1 &
`

// The power is cut again and again while pods come and go. After each boot the agent starts
// by its unit, the pods that stay desired run, their statuses say so, and no file of the
// agent is truncated. SUBLET_POWER_CUTS is the number of cuts.
func TestVM_PowerLoss(t *testing.T) {
	cuts := 2
	if n, err := strconv.Atoi(os.Getenv("SUBLET_POWER_CUTS")); err == nil {
		cuts = n
	}
	vmtest.Require(t)
	share := t.TempDir()
	vmtest.ShareNode(t, share)
	m := vmtest.Start(t, vmtest.Config{Share: share, Durable: true})
	// containerd can never stop a sandbox again if the record of its network was lost, so that directory keeps what is written;
	// and a record that was created and not written yet is removed after the boot, for it counts as one that cannot be read.
	m.MustRun(t, "mkdir -p /var/lib/cni && chattr -R +S /var/lib/cni")
	m.MustRun(t, vmtest.SetUpNode)
	for _, name := range []string{"stays-0", "stays-1", "stays-2"} {
		m.MustRun(t, fmt.Sprintf("cat >/etc/sublet/manifests/%s.yaml <<'C'\n"+manifest+"C\n", name))
	}
	m.MustRun(t, fmt.Sprintf("cat >/etc/template.yaml <<'C'\n"+manifest+"C\nsync", "template"))
	requireRunning(t, m)
	for i := range cuts {
		m.MustRun(t, churn)
		after := time.Duration(rand.Int64N(int64(15 * time.Second))) //nolint:gosec // no secret
		ended := make(chan error, 1)
		go func() { // the machine works until the power is cut, in the middle of whatever it does
			_, err := m.Run(context.WithoutCancel(t.Context()), "sleep 1000", io.Discard)
			ended <- err
		}()
		time.Sleep(after)
		require.NoError(t, m.Kill())
		require.Error(t, <-ended)
		m.MustBoot(t)
		m.MustRun(t, "find /var/lib/cni -type f -empty -delete")
		began := time.Now()
		requireRunning(t, m)
		requireReadable(t, m)
		t.Logf("measured: cut %d after %v, all pods ran %v after the boot; %s", i+1, after.Round(time.Millisecond), time.Since(began).Round(time.Second),
			strings.TrimSpace(m.MustRun(t, `echo "$(ctr -n k8s.io containers ls -q | wc -l) containers and $(ls /var/lib/sublet/pods | wc -l) pods are there, $(grep -c ' /var/lib/sublet' /proc/mounts) mounts"`)))
	}
	// All that the cuts have left behind is removed, but for the last dead container of each pod, and its sandbox.
	m.MustRun(t, "rm -f /etc/sublet/manifests/churn-*")
	m.MustAwait(t, 2*time.Minute, `[ $(ctr -n k8s.io containers ls -q | wc -l) -le 12 ] && [ $(ctr -n k8s.io tasks ls -q | wc -l) = 6 ] && [ $(ls /var/lib/sublet/pods | wc -l) = 3 ]`,
		"ctr -n k8s.io containers ls; ls /var/lib/sublet/pods; journalctl --no-pager -b -u nodeagent | tail -n 60")
}

// requireRunning waits until the pods that stay are ready by their statuses, and run by the runtime.
func requireRunning(t *testing.T, m *vmtest.Machine) {
	t.Helper()
	m.MustAwait(t, 3*time.Minute, `n=$(cat /var/lib/statuses/*stays-* | tr -d ' \n' | grep -o '"ready":true' | wc -l)
ids=$(ctr -n k8s.io containers ls -q 'labels."io.kubernetes.container.name"==main,labels."io.kubernetes.pod.name"~=^stays-')
r=$(ctr -n k8s.io tasks ls | grep RUNNING | grep -c "$ids")
[ "$n" = 3 ] && [ -n "$ids" ] && [ "$r" = 3 ]`, `systemctl status --no-pager nodeagent containerd; journalctl --no-pager -b -u nodeagent | tail -n 40; ls -l /var/lib/statuses; cat /var/lib/statuses/*stays-0*`)
	require.Equal(t, "active\n", m.MustRun(t, "systemctl is-active nodeagent"))
}

// requireReadable requires that every file of the agent that is an object has all of it, and
// that the agent itself has found none that it could not read.
func requireReadable(t *testing.T, m *vmtest.Machine) {
	t.Helper()
	out := m.MustRun(t, `find /var/lib/sublet /var/lib/statuses -name '*.json' | while read -r f; do echo "FILE $f"; cat "$f" | tr -d '\n'; echo; done`)
	files := 0
	lines := strings.Split(out, "\n")
	for i, line := range lines {
		if name, ok := strings.CutPrefix(line, "FILE "); ok {
			files++
			require.NotEmpty(t, lines[i+1], name)
			// Others have a checksum for each line, which the agent itself checks.
			if lines[i+1][0] == '{' {
				require.True(t, json.Valid([]byte(lines[i+1])), "%s: %q", name, lines[i+1])
			}
		}
	}
	require.NotZero(t, files)
	// What containerd says of records that are its own is not among it.
	require.Empty(t, m.MustRun(t, "journalctl -b -u nodeagent -o cat | grep -v 'failed to destroy network' | grep -iE 'corrupt|truncated|unexpected end|panic|unreadable' || true"))
}
