package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/eviction"
)

func resourceList(list string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for entry := range strings.FieldsSeq(list) {
		name, value, _ := strings.Cut(entry, "=")
		out[corev1.ResourceName(name)] = resource.MustParse(value)
	}
	return out
}

func requireResources(t *testing.T, want string, got corev1.ResourceList) {
	t.Helper()
	expected := resourceList(want)
	require.Len(t, got, len(expected), "%v", got)
	for name, q := range expected {
		have := got[name]
		require.Zero(t, q.Cmp(have), "%s: want %s, got %s", name, q.String(), have.String())
	}
}

func TestComputeResources(t *testing.T) {
	const machine = "cpu=4 memory=8Gi ephemeral-storage=100Gi pid=32768"
	for _, tt := range []struct {
		name, capacity, kube, system, hard string
		allocatable, limits                string
		wantErr                            string
	}{
		{
			name: "reserves nothing by itself", capacity: machine, hard: eviction.None,
			allocatable: "cpu=4 memory=8Gi ephemeral-storage=100Gi", limits: "cpu=4 memory=8Gi pid=32768",
		},
		{
			name: "keeps hard eviction thresholds out of allocatable only", capacity: machine, hard: "memory.available<1Gi,nodefs.available<10%,pid.available<5%",
			allocatable: "cpu=4 memory=7Gi ephemeral-storage=90Gi", limits: "cpu=4 memory=8Gi pid=32768",
		},
		{
			name: "adds both reservations", capacity: machine, kube: "cpu=500m memory=1Gi pid=768", system: "cpu=1500m memory=1Gi ephemeral-storage=20Gi", hard: "memory.available<1Gi",
			allocatable: "cpu=2 memory=5Gi ephemeral-storage=80Gi", limits: "cpu=2 memory=6Gi pid=32000",
		},
		{
			name: "takes huge pages out of allocatable memory", capacity: machine + " hugepages-2Mi=2Gi", hard: eviction.None,
			allocatable: "cpu=4 memory=6Gi ephemeral-storage=100Gi hugepages-2Mi=2Gi", limits: "cpu=4 memory=8Gi pid=32768",
		},
		{name: "rejects a reservation of all memory", capacity: machine, kube: "memory=4Gi", system: "memory=4Gi", hard: eviction.None, wantErr: "leave no memory for pods: the node has 8Gi"},
		{name: "rejects thresholds that leave nothing", capacity: machine, kube: "memory=7Gi", hard: "memory.available<1Gi", wantErr: "leave no allocatable memory"},
		{name: "rejects a reservation of what is not known", capacity: "cpu=1", kube: "pid=1", hard: eviction.None, wantErr: "cannot reserve pid: capacity of the node not known"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			thresholds, err := eviction.ParseThresholds(tt.hard, "", "", "")
			require.NoError(t, err)
			r, err := computeResources(resourceList(tt.capacity), resourceList(tt.kube), resourceList(tt.system), thresholds)
			if tt.wantErr != "" {
				require.ErrorContains(t, err, tt.wantErr)
				return
			}
			require.NoError(t, err)
			requireResources(t, tt.allocatable, r.Allocatable)
			requireResources(t, tt.limits, r.PodsLimits)
			requireResources(t, tt.capacity, r.Capacity)
		})
	}
}

func TestComputeResources_IgnoresSoftThresholds(t *testing.T) {
	thresholds, err := eviction.ParseThresholds(eviction.None, "memory.available<1Gi", "memory.available=1m", "")
	require.NoError(t, err)
	r, err := computeResources(resourceList("memory=8Gi"), nil, nil, thresholds)
	require.NoError(t, err)
	requireResources(t, "memory=8Gi", r.Allocatable)
}

func TestParseReservation(t *testing.T) {
	got, err := parseReservation("cpu=100m, memory=1Gi,ephemeral-storage=2Gi,pid=1000")
	require.NoError(t, err)
	requireResources(t, "cpu=100m memory=1Gi ephemeral-storage=2Gi pid=1000", got)
	for list, want := range map[string]string{
		"gpu=1":             "resource must be cpu, memory, ephemeral-storage or pid",
		"memory":            `invalid quantity ""`,
		"memory=-1":         `invalid quantity "-1"`,
		"cpu=1,cpu=2":       "duplicate resource",
		"memory=much,cpu=1": `invalid quantity "much"`,
	} {
		_, err := parseReservation(list)
		assert.ErrorContains(t, err, want)
	}
}

func TestPodLimit(t *testing.T) {
	four := resourceList("cpu=4")
	assert.Equal(t, 110, podLimit(110, 0, four))
	assert.Equal(t, 40, podLimit(110, 10, four))
	assert.Equal(t, 20, podLimit(20, 10, four))
}
