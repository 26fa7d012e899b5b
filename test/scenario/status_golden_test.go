package scenario

import (
	"context"
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
	"github.com/sublet-dev/agent/internal/agenttest"
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
	if testing.Short() {
		t.Skip("takes a quarter of a minute with the race detector, and is the same for all users")
	}
	files := scenarioFiles(t, "status", "*.txtar")
	require.GreaterOrEqual(t, len(files), 40)
	for _, path := range files {
		t.Run(caseName(path), func(t *testing.T) {
			sc := readScenario(t, path)
			var got string
			synctest.Test(t, func(t *testing.T) { got = playStatuses(t, sc, sc.script).String() })
			if *update {
				sc.write(t, path, "statuses", got)
				return
			}
			assert.Equal(t, sc.files["statuses"], got, "-update writes the observed statuses, if those are right")
		})
	}
}

// playStatuses plays a scenario with a script and returns the statuses that were sent.
func playStatuses(t *testing.T, sc *scenario, script []step) *transcript {
	t.Helper()
	p := newPlayer(t, sc, func(c *agenttest.Config) {
		c.Node.IPs = []string{"192.0.2.7", "2001:db8::7"}
		if list, ok := sc.option("allocatable"); ok {
			c.Node.Allocatable = corev1.ResourceList{}
			for _, entry := range list {
				name, amount, _ := strings.Cut(entry, "=")
				c.Node.Allocatable[corev1.ResourceName(name)] = resource.MustParse(amount)
			}
		}
	})
	tr := newTranscript(p)
	p.AddOptions(agent.WithStatusSink(tr))
	if threshold, ok := sc.option("evict"); ok {
		client, err := cri.New(p.Runtime(), cri.Config{Observer: true})
		require.NoError(t, err)
		thresholds, err := eviction.ParseThresholds(threshold[0], "", "", "")
		require.NoError(t, err)
		p.AddOptions(agent.WithConfig(eviction.Config{Thresholds: thresholds, Usage: &agenttest.Node{Client: client}, EvictCritical: true}))
	}
	if d, ok := sc.option("blocked-for"); ok {
		p.AddOptions(agent.WithSoftAdmitter(blockedUntil(time.Now().Add(duration(t, d[0])))))
	}
	p.play(script, tr.note)
	tr.close()
	p.end()
	return tr
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
