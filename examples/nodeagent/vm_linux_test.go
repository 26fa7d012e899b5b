//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/vmtest"
	"github.com/sublet-dev/agent/podspec"
)

// The periods of the pods by priority when the machine shuts down.
var vmPeriods = []struct {
	priority, seconds int
}{{0, 12}, {1000, 9}, {10000, 7}, {int(podspec.SystemCriticalPriority), 7}}

const vmConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
shutdownGracePeriodByPodPriority:
`

// A pod of the machine writes what happens to it into a file of the node, with the time
// since the boot. An obedient one exits a second after SIGTERM, another one never.
const vmPod = `apiVersion: v1
kind: Pod
metadata: {name: %[1]s, namespace: default}
spec:
  priority: %[2]d
  terminationGracePeriodSeconds: 300
  hostNetwork: true
  volumes: [{name: record, hostPath: {path: /var/lib/record, type: DirectoryOrCreate}}]
  containers:
  - name: main
    image: ` + vmtest.BusyboxImage + `
    imagePullPolicy: Never
    volumeMounts: [{name: record, mountPath: /record}]
    command:
    - sh
    - -c
    - |
      say() { read up _ </proc/uptime; echo "$up $1" >>/record/%[1]s; }
      trap 'say term; term=1' TERM
      say start
      while [ -z "$term" ]; do sleep 1000000 & wait; done
      say alive
      if [ %[3]t = true ]; then sleep 1; say exit; exit 0; fi
      while :; do sleep 0.2; say alive; done
`

type vmPodKind struct {
	name     string
	group    int // index of vmPeriods
	obedient bool
}

// vmPods are ten pods, of which one of each priority does not exit by itself.
func vmPods() []vmPodKind {
	var pods []vmPodKind
	for i, n := range []int{3, 3, 2, 2} {
		for j := range n {
			pods = append(pods, vmPodKind{fmt.Sprintf("p%d-%d", i, j), i, j > 0})
		}
	}
	return pods
}

// vmNode is a machine with the agent as a service of its Debian package.
type vmNode struct{ *vmtest.Machine }

// put writes a manifest, all at once.
func (n vmNode) put(t *testing.T, name string, priority int, obedient bool) {
	t.Helper()
	n.MustRun(t, fmt.Sprintf("cat >/etc/new.yaml <<'C'\n"+vmPod+"C\nmv /etc/new.yaml /etc/sublet/manifests/%[1]s.yaml\n", name, priority, obedient))
}

// putAlone adds a pod to so many others and waits until it runs, in the shim of its sandbox:
// where that one does not answer within 100 ms, containerd 1.6 starts another at the same
// address, and has lost the sandbox when it is started again itself.
func (n vmNode) putAlone(t *testing.T, p vmPodKind, others int) {
	t.Helper()
	for range 3 {
		n.put(t, p.name, vmPeriods[p.group].priority, p.obedient)
		n.await(t, "grep -q start /var/lib/record/"+p.name, "ctr -n k8s.io tasks ls")
		if strings.TrimSpace(n.MustRun(t, "pgrep -c containerd-shim")) == strconv.Itoa(others+1) {
			return
		}
		t.Logf("the container of %s has a shim of its own: it starts once more", p.name)
		n.MustRun(t, fmt.Sprintf("rm /etc/sublet/manifests/%[1]s.yaml; pkill -9 -f '/[r]ecord/%[1]s;'", p.name))
		n.await(t, fmt.Sprintf("[ $(ctr -n k8s.io tasks ls | grep -c RUNNING) = %d ]", 2*others), "ctr -n k8s.io tasks ls")
		n.MustRun(t, "rm /var/lib/record/"+p.name)
	}
	require.Fail(t, "containerd gives the container a shim of its own", p.name)
}

// await waits until a script succeeds.
func (n vmNode) await(t *testing.T, condition, otherwise string) {
	t.Helper()
	n.MustAwait(t, 90*time.Second, condition, otherwise+"; systemctl status --no-pager nodeagent containerd; journalctl -b --no-pager -u nodeagent | tail -n 60")
}

const vmGet = "/host/kubeget /var/lib/sublet/kube-api/kubeconfig "

// awaitPods waits until all pods run and the node is ready.
func (n vmNode) awaitPods(t *testing.T) {
	t.Helper()
	n.await(t, `[ "$(cat /var/lib/statuses/*.json | tr -d ' \n' | grep -o '"phase":"Running"' | wc -l)" = 10 ] && [ "$(ctr -n k8s.io tasks ls | grep -c RUNNING)" = 20 ] && `+
		vmGet+`/api/v1/nodes/vm | grep -q '"type":"Ready","status":"True"'`, "grep -h phase /var/lib/statuses/*.json; ctr -n k8s.io tasks ls; "+vmGet+"/api/v1/nodes/vm")
}

// pid is the main process of a service.
func (n vmNode) pid(t *testing.T, unit string) string {
	t.Helper()
	return strings.TrimSpace(n.MustRun(t, "systemctl show --value -p MainPID "+unit))
}

// tasks are the containers with their processes.
func (n vmNode) tasks(t *testing.T) string {
	t.Helper()
	return n.MustRun(t, "ctr -n k8s.io tasks ls | sort")
}

// The agent as a service of its Debian package, on a machine with systemd and cgroup v2. ND-2
func TestVM_Service(t *testing.T) {
	vmtest.Require(t)
	share := t.TempDir()
	vmtest.ShareNode(t, share)
	n := vmNode{vmtest.Start(t, vmtest.Config{Share: share, Durable: true})}
	config := vmConfig
	for _, g := range vmPeriods {
		config += fmt.Sprintf("- {priority: %d, shutdownGracePeriodSeconds: %d}\n", g.priority, g.seconds)
	}
	n.MustRun(t, vmtest.SetUpNode+"cat >/etc/sublet/config.yaml <<'C'\n"+config+"C\nsystemctl restart nodeagent\n")
	for i, p := range vmPods() {
		n.putAlone(t, p, i)
	}
	n.awaitPods(t)
	t.Log(n.MustRun(t, "systemctl is-enabled nodeagent; systemd-analyze security --no-pager nodeagent | tail -n 1; cat /proc/$(systemctl show --value -p MainPID nodeagent)/oom_score_adj"))
	t.Run("reload", n.reload)
	t.Run("watchdog", n.watchdog)
	t.Run("runtime killed", n.runtimeKilled)
	t.Run("reboot", n.reboot)
}

// systemctl reload applies what can change, and the process stays.
func (n vmNode) reload(t *testing.T) {
	before := n.pid(t, "nodeagent")
	n.MustRun(t, "printf 'logging: {verbosity: 4}\\nmaxPods: 7\\n' >>/etc/sublet/config.yaml; systemctl reload nodeagent")
	n.await(t, "journalctl -u nodeagent -o cat | grep 'configuration read again'", "true")
	log := n.MustRun(t, "journalctl -u nodeagent -o cat")
	assert.Contains(t, log, `msg="configuration change applied" field=logging.verbosity old=0 new=4`)
	assert.Contains(t, log, `msg="configuration change needs a restart" field=maxPods old=110 new=7`)
	assert.Equal(t, "active\n", n.MustRun(t, "systemctl is-active nodeagent"))
	assert.Equal(t, before, n.pid(t, "nodeagent"))
	n.MustRun(t, "sed -i '/^logging:/d; /^maxPods:/d' /etc/sublet/config.yaml; systemctl reload nodeagent")
}

// An agent that hangs is killed by the watchdog of its unit and started again. Pods do not
// notice.
func (n vmNode) watchdog(t *testing.T) {
	before := n.tasks(t)
	n.MustRun(t, "mkdir -p /etc/systemd/system/nodeagent.service.d; printf '[Service]\\nWatchdogSec=30\\n' >/etc/systemd/system/nodeagent.service.d/test.conf; systemctl daemon-reload; systemctl restart nodeagent")
	n.awaitPods(t)
	pid := n.pid(t, "nodeagent")
	n.MustRun(t, "kill -STOP "+pid)
	n.await(t, "[ $(systemctl show --value -p NRestarts nodeagent) -ge 1 ] && systemctl is-active nodeagent", "true")
	assert.Contains(t, n.MustRun(t, "journalctl --no-pager -o cat -t systemd | grep nodeagent.service"), "Watchdog timeout")
	assert.NotEqual(t, pid, n.pid(t, "nodeagent"))
	n.awaitPods(t)
	assert.Equal(t, before, n.tasks(t), "no container was touched")
	n.MustRun(t, "rm -r /etc/systemd/system/nodeagent.service.d; systemctl daemon-reload; systemctl restart nodeagent")
	n.awaitPods(t)
}

// The runtime is killed and started again by systemd. Pods run on, the agent stays, and both
// work again.
func (n vmNode) runtimeKilled(t *testing.T) {
	before := n.tasks(t)
	agent, daemon := n.pid(t, "nodeagent"), n.pid(t, "containerd")
	n.MustRun(t, "kill -9 "+daemon)
	n.await(t, "systemctl is-active containerd && [ $(systemctl show --value -p MainPID containerd) != "+daemon+" ] && ctr version", "true")
	n.awaitPods(t)
	if !assert.Equal(t, before, n.tasks(t), "no container was touched") {
		t.Log(n.MustRun(t, "journalctl --no-pager -o short-monotonic -u containerd -u nodeagent | tail -n 150"))
	}
	assert.Equal(t, agent, n.pid(t, "nodeagent"), "the agent has not restarted")
	// Both work: another pod comes and goes.
	n.put(t, "new", 0, true)
	n.await(t, "grep -q start /var/lib/record/new", "true")
	n.MustRun(t, "rm /etc/sublet/manifests/new.yaml")
	n.await(t, "grep -q exit /var/lib/record/new && [ $(ctr -n k8s.io tasks ls | grep -c RUNNING) = 20 ]", "ctr -n k8s.io tasks ls")
	n.MustRun(t, "rm /var/lib/record/new")
}

// record is what a pod, or the observer, has written: seconds since the boot, and a word.
type record struct {
	at   float64
	what string
}

func (n vmNode) records(t *testing.T, name string) []record {
	t.Helper()
	var records []record
	for line := range strings.Lines(n.MustRun(t, "cat /var/lib/record/"+name)) {
		at, what, _ := strings.Cut(strings.TrimSpace(line), " ")
		seconds, err := strconv.ParseFloat(at, 64)
		require.NoError(t, err, line)
		records = append(records, record{seconds, what})
	}
	return records
}

// observe writes the node and its pods, as their API reports them, into a file every now and
// then until the machine goes down.
const observe = `nohup bash -c 'while :; do ` + vmGet + `/api/v1/nodes/vm; ` + vmGet + `/api/v1/pods; ` + vmGet + `/api/v1/events; sync; sleep 0.2; done' >/root/observed 2>/dev/null </dev/null &
sleep 1
systemctl reboot`

// The machine reboots: pods terminate in the order of their priorities, each within the
// period of its own, their statuses and the node say so, and all start again after the boot.
func (n vmNode) reboot(t *testing.T) {
	n.awaitPods(t)
	n.MustRun(t, "rm -f /var/lib/record/*; sync")
	require.Contains(t, n.MustRun(t, "systemd-inhibit --list --no-pager"), "sublet")
	_, err := n.Run(t.Context(), observe, t.Output())
	t.Logf("the machine goes down: %v", err != nil)
	ctx, cancel := context.WithTimeout(t.Context(), n.Scale(3*time.Minute))
	defer cancel()
	require.NoError(t, n.AwaitExit(ctx))
	n.MustBoot(t)
	began := time.Now()
	n.awaitPods(t)
	t.Logf("measured: all pods ran again %v after the boot", time.Since(began).Round(time.Second))
	n.requireOrder(t)
	n.requireReported(t)
	n.MustRun(t, "rm -f /root/observed")
}

func (n vmNode) requireOrder(t *testing.T) {
	t.Helper()
	type group struct{ firstTerm, lastTerm, lastExit, longest float64 }
	groups := make([]group, len(vmPeriods))
	for _, p := range vmPods() {
		records := n.records(t, p.name)
		i := slices.IndexFunc(records, func(r record) bool { return r.what == "term" })
		require.GreaterOrEqual(t, i, 0, "%s got no SIGTERM: %v", p.name, records)
		j := i + 1
		for j < len(records) && records[j].what != "start" { // of the next boot
			j++
		}
		require.Equal(t, "start", records[len(records)-1].what, "%s has not started again: %v", p.name, records)
		term, last := records[i], records[j-1]
		g := &groups[p.group]
		if g.firstTerm == 0 || term.at < g.firstTerm {
			g.firstTerm = term.at
		}
		g.lastTerm = max(g.lastTerm, term.at)
		if p.obedient {
			require.Equal(t, "exit", last.what, "%s: %v", p.name, records)
			g.lastExit = max(g.lastExit, last.at)
		} else {
			require.Equal(t, "alive", last.what, "%s: %v", p.name, records)
			g.longest = max(g.longest, last.at-term.at)
		}
	}
	for i, g := range groups {
		t.Logf("measured: priority %d, period %d s: SIGTERM from %.1f s to %.1f s, last clean exit %.1f s, killed %.1f s after SIGTERM",
			vmPeriods[i].priority, vmPeriods[i].seconds, g.firstTerm-groups[0].firstTerm, g.lastTerm-groups[0].firstTerm, g.lastExit-groups[0].firstTerm, g.longest)
		assert.GreaterOrEqual(t, g.longest, float64(vmPeriods[i].seconds)-1.5, "the period of priority %d", vmPeriods[i].priority)
		if i > 0 {
			assert.Greater(t, g.firstTerm, groups[i-1].lastExit, "priority %d before %d", vmPeriods[i].priority, vmPeriods[i-1].priority)
		}
	}
}

// requireReported requires what the API has reported before the machine went down.
func (n vmNode) requireReported(t *testing.T) {
	t.Helper()
	notReady, events := false, map[string]bool{}
	terminated := map[string]corev1.PodStatus{}
	var timeline []string
	defer func() {
		if t.Failed() {
			t.Logf("reported:\n%s\n%s", strings.Join(timeline, "\n"),
				n.MustRun(t, "journalctl --no-pager -b -1 -o short-monotonic -u nodeagent -u systemd-logind -u containerd | grep -v level=info | tail -n 150"))
		}
	}()
	at := ""
	lines := bufio.NewScanner(strings.NewReader(n.MustRun(t, "cat /root/observed")))
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var kind struct{ Kind string }
		if json.Unmarshal(lines.Bytes(), &kind) != nil { // the time, or cut off when the machine went down
			at, _, _ = strings.Cut(lines.Text(), " ")
			continue
		}
		switch kind.Kind {
		case "Node":
			var node corev1.Node
			require.NoError(t, json.Unmarshal(lines.Bytes(), &node))
			for _, c := range node.Status.Conditions {
				if c.Type == corev1.NodeReady && c.Status == corev1.ConditionFalse && strings.Contains(c.Message, "node is shutting down") {
					notReady = true
				}
			}
		case "PodList":
			var list corev1.PodList
			require.NoError(t, json.Unmarshal(lines.Bytes(), &list))
			for i := range list.Items {
				if st := list.Items[i].Status; st.Phase == corev1.PodFailed || st.Phase == corev1.PodSucceeded {
					terminated[list.Items[i].Name] = st
				}
			}
			timeline = append(timeline, fmt.Sprintf("%s s: %d pods, %d were terminated until now", at, len(list.Items), len(terminated)))
		case "EventList":
			var list corev1.EventList
			require.NoError(t, json.Unmarshal(lines.Bytes(), &list))
			for _, e := range list.Items {
				events[e.InvolvedObject.Kind+" "+e.Reason] = true
			}
		}
	}
	require.NoError(t, lines.Err())
	assert.True(t, notReady, "the node is not ready")
	assert.True(t, events["Node NodeShutdown"], "%v", slices.Sorted(maps.Keys(events)))
	// The machine may be down before anybody could ask for the last group.
	asked := 0
	for _, p := range vmPods() {
		st, ok := terminated[p.name+"-vm"] // the node's name is a part of that of a static pod
		if p.group == len(vmPeriods)-1 && !ok {
			continue
		}
		if assert.True(t, ok, "%s was terminated", p.name) {
			asked++
			assert.Equal(t, corev1.PodFailed, st.Phase, p.name)
			assert.Equal(t, podspec.ReasonNodeShutdown, st.Reason, p.name)
			assert.Equal(t, podspec.MessageNodeShutdown, st.Message, p.name)
			assert.True(t, slices.ContainsFunc(st.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue
			}), "%s: %v", p.name, st.Conditions)
		}
	}
	t.Logf("measured: %d of %d pods were reported as %s", asked, len(vmPods()), podspec.ReasonNodeShutdown)
}
