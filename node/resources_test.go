package node

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
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

// ND-1
func TestAvailable(t *testing.T) {
	const machine = "cpu=4 memory=8Gi ephemeral-storage=100Gi pid=32768"
	for name, tt := range map[string]struct {
		capacity, kube, system, evict string
		allocatable, limits           string
		wantErr                       string
	}{
		"reserves nothing by itself": {
			capacity: machine, allocatable: "cpu=4 memory=8Gi ephemeral-storage=100Gi", limits: "cpu=4 memory=8Gi pid=32768",
		},
		"keeps hard eviction thresholds out of allocatable only": {
			capacity: machine, evict: "memory=1Gi ephemeral-storage=10Gi",
			allocatable: "cpu=4 memory=7Gi ephemeral-storage=90Gi", limits: "cpu=4 memory=8Gi pid=32768",
		},
		"adds both reservations": {
			capacity: machine, kube: "cpu=500m memory=1Gi pid=768", system: "cpu=1500m memory=1Gi ephemeral-storage=20Gi", evict: "memory=1Gi",
			allocatable: "cpu=2 memory=5Gi ephemeral-storage=80Gi", limits: "cpu=2 memory=6Gi pid=32000",
		},
		"takes huge pages out of allocatable memory": {
			capacity:    machine + " hugepages-2Mi=2Gi",
			allocatable: "cpu=4 memory=6Gi ephemeral-storage=100Gi hugepages-2Mi=2Gi", limits: "cpu=4 memory=8Gi pid=32768",
		},
		"rejects a reservation of all memory":        {capacity: machine, kube: "memory=4Gi", system: "memory=4Gi", wantErr: "leave no memory for pods: the node has 8Gi"},
		"rejects thresholds that leave nothing":      {capacity: machine, kube: "memory=7Gi", evict: "memory=1Gi", wantErr: "leave no allocatable memory"},
		"rejects a reservation of what is not known": {capacity: "cpu=1", kube: "pid=1", wantErr: "cannot reserve pid: capacity of the node not known"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := Available(resourceList(tt.capacity), Reservations{Kube: resourceList(tt.kube), System: resourceList(tt.system), Eviction: resourceList(tt.evict)})
			if tt.wantErr != "" {
				require.ErrorContains(t, err, tt.wantErr)
				return
			}
			require.NoError(t, err)
			requireResources(t, tt.allocatable, r.Allocatable)
			requireResources(t, tt.limits, r.PodsCgroupLimits)
			requireResources(t, tt.capacity, r.Capacity)
		})
	}
}

func TestParseReservation(t *testing.T) {
	got, err := ParseReservation("cpu=100m, memory=1Gi,,ephemeral-storage=2Gi,pid=1000,")
	require.NoError(t, err)
	requireResources(t, "cpu=100m memory=1Gi ephemeral-storage=2Gi pid=1000", got)
	empty, err := ParseReservation("")
	require.NoError(t, err)
	assert.Empty(t, empty)
	for list, want := range map[string]string{
		"gpu=1":             "resource must be cpu, memory, ephemeral-storage or pid",
		"memory":            `invalid quantity ""`,
		"memory=-1":         `invalid quantity "-1"`,
		"cpu=1,cpu=2":       "duplicate resource",
		"memory=much,cpu=1": `invalid quantity "much"`,
	} {
		_, err := ParseReservation(list)
		assert.ErrorContains(t, err, want)
	}
}
