package agenttest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/runtime/runtimetest"
)

func TestDrawFaults_DependsOnSeedAlone(t *testing.T) {
	assert.Equal(t, DrawFaults(17, 2, time.Hour), DrawFaults(17, 2, time.Hour))
	assert.NotEqual(t, DrawFaults(17, 2, time.Hour).rules, DrawFaults(18, 2, time.Hour).rules)
	for first, kind := range FaultKinds() {
		plan := DrawFaults(17, first, time.Hour)
		assert.Equal(t, kind, plan.rules[0].Fault)
		assert.Equal(t, "seed 17\n  "+plan.rules[0].String(), plan.String()[:len("seed 17\n  ")+len(plan.rules[0].String())])
	}
}

// The times of rules count from the start of the scenario, also for a proxy that is made
// later.
func TestFaultPlan_Since(t *testing.T) {
	plan := &FaultPlan{rules: []runtimetest.Rule{
		{RPC: "past", From: time.Second, Until: time.Minute},
		{RPC: "now", From: time.Second, Until: time.Hour},
		{RPC: "later", From: 2 * time.Minute},
	}}
	assert.Equal(t, plan.rules, plan.since(0))
	assert.Equal(t, []runtimetest.Rule{{RPC: "now", Until: time.Hour - time.Minute}, {RPC: "later", From: time.Minute}}, plan.since(time.Minute))
}

func TestFaultPlan_StrikesAndLies(t *testing.T) {
	plan := &FaultPlan{rules: []runtimetest.Rule{{RPC: "*Container", Fault: runtimetest.Drop}, {RPC: "Version", Fault: runtimetest.Corrupt}}}
	assert.True(t, plan.Strikes(runtimetest.Drop, "CreateContainer"))
	assert.True(t, plan.Strikes("", "CreateContainer"))
	assert.False(t, plan.Strikes(runtimetest.Fail, "CreateContainer"))
	assert.False(t, plan.Strikes("", "ListContainers"))
	assert.False(t, plan.Lies(), "no inspection is affected")
	plan.rules = append(plan.rules, runtimetest.Rule{RPC: "ContainerStatus", Fault: runtimetest.Corrupt})
	assert.True(t, plan.Lies())
}

func TestFaultPlan_CountsHits(t *testing.T) {
	plan := &FaultPlan{rules: []runtimetest.Rule{{Fault: runtimetest.Drop}, {Fault: runtimetest.Fail}, {Fault: runtimetest.Drop}}, hits: make([]int, 3)}
	plan.count([]int{1, 2, 3, 9}) // the last one is not a rule of the plan
	plan.count([]int{1})          // a proxy with fewer rules
	assert.Equal(t, map[runtimetest.FaultKind]int{runtimetest.Drop: 4, runtimetest.Fail: 2}, plan.Hits())
}

func TestFaultPlan_NilHasNoFaults(t *testing.T) {
	var plan *FaultPlan
	plan.count([]int{1})
	require.Empty(t, plan.since(0))
	assert.False(t, plan.Lies())
	assert.False(t, plan.Strikes("", "Version"))
	assert.EqualValues(t, 1, plan.proxySeed())
}
