package agent_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime/cri"
)

// TestStatus_Golden plays each testdata/status/*.txtar: a pod, a script as in
// TestScenarios, and in the file "statuses" every status that the agent sends. Each
// status is shown by its changes against the previous one. Times count from the start.
// Of several statuses at one time the last is kept.
//
// ST-2, ST-3, ST-4, ST-5, ST-6, ST-8
func TestStatus_Golden(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "status", "*.txtar"))
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 40)
	for _, path := range files {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			sc := readScenario(t, path)
			var got string
			synctest.Test(t, func(t *testing.T) { got = listen(t, sc, sc.script).String() })
			if *update {
				require.NoError(t, os.WriteFile(path, withStatuses(sc, got), 0o600))
				return
			}
			assert.Equal(t, sc.files["statuses"], got, "-update writes the observed statuses, if those are right")
		})
	}
}

// listen plays a scenario with a script and returns the statuses that were sent.
func listen(t *testing.T, sc *scenario, script []step) *transcript {
	w := newHarness(t, sc)
	b := newTranscript(w)
	node := agent.NodeConfig{DisableCgroups: true, PodLogsDir: filepath.Join(w.dir, "logs"), IPs: []string{"192.0.2.7", "2001:db8::7"}}
	if n, ok := sc.option("max-pods"); ok {
		max, err := strconv.Atoi(n[0])
		require.NoError(t, err)
		node.MaxPods = max
	}
	if list, ok := sc.option("allocatable"); ok {
		node.Allocatable = corev1.ResourceList{}
		for _, kv := range list {
			name, amount, _ := strings.Cut(kv, "=")
			node.Allocatable[corev1.ResourceName(name)] = resource.MustParse(amount)
		}
	}
	if rule, ok := sc.option("fault"); ok {
		w.fault(rule)
	}
	w.opts = append(w.opts, agent.WithStatusSink(b))
	w.node = node
	if threshold, ok := sc.option("evict"); ok {
		client, err := cri.New(w.direct, cri.Config{Observer: true})
		require.NoError(t, err)
		w.opts = append(w.opts, agent.WithEviction(eviction.Config{Thresholds: hardThresholds(threshold[0]), Usage: &meter{client: client}, EvictCritical: true}))
	}
	if d, ok := sc.option("blocked-for"); ok {
		w.opts = append(w.opts, agent.WithSoftAdmitter(blockedUntil(time.Now().Add(w.duration(d[0])))))
	}
	w.start()
	began := time.Now()
	for _, s := range script {
		time.Sleep(s.at - time.Since(began))
		if s.args[0] == "end" {
			break
		}
		b.note(s.line)
		w.do(s)
	}
	synctest.Wait()
	b.close()
	w.stop()
	w.shutDown()
	return b
}

// blockedUntil is a soft admitter that rejects pods before that time.
type blockedUntil time.Time

// Admit implements podsync.Admitter.
func (b blockedUntil) Admit(context.Context, *corev1.Pod) (podspec.AdmitResult, error) {
	if time.Now().Before(time.Time(b)) {
		return podspec.Rejected("NoLicence", "no licence is free"), nil
	}
	return podspec.Admitted(), nil
}

// withStatuses returns the file of the scenario with other statuses.
func withStatuses(sc *scenario, statuses string) []byte {
	var b bytes.Buffer
	b.WriteString(sc.comment)
	for _, name := range sc.names {
		if name != "statuses" {
			fmt.Fprintf(&b, "-- %s --\n%s", name, sc.files[name])
		}
	}
	fmt.Fprintf(&b, "-- statuses --\n%s", statuses)
	return b.Bytes()
}

// SetStatus implements status.Sink.
func (b *transcript) SetStatus(_ context.Context, pod *corev1.Pod, st corev1.PodStatus) error {
	b.add(pod, &st)
	return nil
}

// DeleteStatus implements status.Deleter.
func (b *transcript) DeleteStatus(_ context.Context, pod *corev1.Pod) error {
	b.add(pod, nil)
	return nil
}
