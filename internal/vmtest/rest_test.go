//go:build linux

package vmtest_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/internal/vmtest"
)

// kubeletEnv names the program of a kubelet, statically linked.
const kubeletEnv = "SUBLET_KUBELET"

const (
	restPods   = 20
	restSettle = time.Minute
	restPeriod = 2 * time.Minute
)

// setUpKubelet has a machine run a kubelet as a service, with the same runtime, driver and
// manifests as the agent, and no cluster either.
const setUpKubelet = `set -e
mkdir -p /etc/kubelet
cat >/etc/kubelet/config.yaml <<'C'
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
staticPodPath: /etc/sublet/manifests
cgroupDriver: systemd
failSwapOn: false
makeIPTablesUtilChains: false
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
C
systemd-run --quiet --unit=kubelet --property=KillMode=process /host/kubelet --config=/etc/kubelet/config.yaml --hostname-override=vm
`

// usageAtRest prints the CPU time in µs of a service and of the runtime, and the resident
// memory of the service in KiB, all and without files.
const usageAtRest = `cpu() { sed -n 's/^usage_usec //p' /sys/fs/cgroup/system.slice/$1.service/cpu.stat; }
pid=$(systemctl show --value -p MainPID %[1]s)
echo $(cpu %[1]s) $(cpu containerd) $(sed -n 's/^VmRSS:\s*\([0-9]*\) kB/\1/p; s/^RssAnon:\s*\([0-9]*\) kB/\1/p' /proc/$pid/status)`

// The agent and a kubelet at rest, one after the other in one machine with the same pods. It
// is a measurement, for docs/benchmarks.md: SUBLET_KUBELET is the kubelet.
func TestAtRest_BesideKubelet(t *testing.T) {
	kubelet := os.Getenv(kubeletEnv)
	if kubelet == "" {
		t.Skip("a measurement: " + kubeletEnv + " must name a kubelet to compare with")
	}
	vmtest.Require(t)
	share := t.TempDir()
	vmtest.ShareNode(t, share)
	out, err := exec.Command("cp", kubelet, filepath.Join(share, "kubelet")).CombinedOutput()
	require.NoError(t, err, string(out))
	m := vmtest.Start(t, vmtest.Config{Share: share})
	m.MustRun(t, vmtest.SetUpNode)
	for i := range restPods {
		name := fmt.Sprintf("rest-%d", i)
		m.MustRun(t, fmt.Sprintf("cat >/etc/sublet/manifests/%s.yaml <<'C'\n"+manifest+"C\n", name))
	}
	measureAtRest(t, m, "nodeagent")
	// The kubelet must not find the pods of the agent.
	m.MustRun(t, "rm -rf /etc/sublet/parked; mv /etc/sublet/manifests /etc/sublet/parked; mkdir /etc/sublet/manifests")
	awaitTasks(t, m, 0)
	m.MustRun(t, "systemctl stop nodeagent; cp /etc/sublet/parked/* /etc/sublet/manifests/")
	m.MustRun(t, setUpKubelet)
	measureAtRest(t, m, "kubelet")
	t.Log(m.MustRun(t, "/host/kubelet --version; containerd --version; uname -r"))
}

// awaitTasks waits until so many containers run, those of the sandboxes included.
func awaitTasks(t *testing.T, m *vmtest.Machine, n int) {
	t.Helper()
	m.MustAwait(t, 5*time.Minute, fmt.Sprintf(`[ "$(ctr -n k8s.io tasks ls | grep -c RUNNING)" = %d ]`, n), "journalctl --no-pager -b | tail -n 60")
}

func measureAtRest(t *testing.T, m *vmtest.Machine, unit string) {
	t.Helper()
	began := time.Now()
	awaitTasks(t, m, 2*restPods)
	up := time.Since(began)
	time.Sleep(restSettle)
	read := func() (numbers []float64) {
		for f := range strings.FieldsSeq(m.MustRun(t, fmt.Sprintf(usageAtRest, unit))) {
			n, err := strconv.ParseFloat(f, 64)
			require.NoError(t, err)
			numbers = append(numbers, n)
		}
		require.Len(t, numbers, 4)
		return numbers
	}
	// The clock is that of the machine, which may be slower than this one.
	clock := func() float64 {
		s, err := strconv.ParseFloat(strings.Fields(m.MustRun(t, "cat /proc/uptime"))[0], 64)
		require.NoError(t, err)
		return s
	}
	start, before := clock(), read()
	time.Sleep(restPeriod)
	elapsed, after := clock()-start, read()
	t.Logf("measured: %s with %d pods at rest, %.0f s: CPU %.2f %% of a core, of containerd %.2f %%; resident %.1f MiB, of which no files %.1f MiB; all pods ran after %v",
		unit, restPods, elapsed, (after[0]-before[0])/elapsed/1e4, (after[1]-before[1])/elapsed/1e4, after[2]/1024, after[3]/1024, up.Round(time.Second))
}
