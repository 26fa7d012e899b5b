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
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime/cri"
)

// TestTold plays each testdata/status/*.txtar: a pod, what happens to it, and every
// status that the whole agent then tells of it, in the file "told". Scripts are
// those of TestScenarios. Each status shows what it changes against the one before;
// times are those since the start. Of statuses told in one moment the last is kept.
//
// ST-2, ST-3, ST-4, ST-5, ST-6, ST-8
func TestTold(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "status", "*.txtar"))
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 40)
	for _, path := range files {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			sc := readScenario(t, path)
			var got string
			synctest.Test(t, func(t *testing.T) { got = listen(t, sc, sc.script).String() })
			if *update {
				require.NoError(t, os.WriteFile(path, withTold(sc, got), 0o600))
				return
			}
			assert.Equal(t, sc.files["told"], got, "-update writes what is told, when that is right")
		})
	}
}

// listen runs a scenario by a script and returns what was told.
func listen(t *testing.T, sc *scenario, script []step) *transcript {
	w := newWorld(t, sc)
	b := newBook(w)
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
		w.opts = append(w.opts, agent.WithEviction(agent.EvictionConfig{Hard: threshold[0], UsageProvider: &meter{client: client}, EvictCritical: true}))
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
	w.halted()
	return b
}

// blockedUntil is an admitter that lets no pod in before that time.
type blockedUntil time.Time

// Admit implements podsync.Admitter.
func (b blockedUntil) Admit(context.Context, *corev1.Pod) (podspec.AdmitResult, error) {
	if time.Now().Before(time.Time(b)) {
		return podspec.Rejected("NoLicence", "no licence is free"), nil
	}
	return podspec.Admitted(), nil
}

// withTold is the scenario's file with what was told in it.
func withTold(sc *scenario, told string) []byte {
	var b bytes.Buffer
	b.WriteString(sc.comment)
	for _, name := range sc.names {
		if name != "told" {
			fmt.Fprintf(&b, "-- %s --\n%s", name, sc.files[name])
		}
	}
	fmt.Fprintf(&b, "-- told --\n%s", told)
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
