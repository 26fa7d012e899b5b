package dra

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	healthapi "k8s.io/kubelet/pkg/apis/dra-health/v1"
)

// What is kept of a driver is bounded, whatever it reports, and its last report comes first.
func TestHealthTable_Bounds(t *testing.T) {
	now := time.Now()
	list := func(prefix string, n int) []*healthapi.DeviceHealth {
		out := make([]*healthapi.DeviceHealth, n)
		for i := range out {
			out[i] = healthy(fmt.Sprint(prefix, i))
		}
		return out
	}
	table, ignored := healthTable(nil).merge(append(list("a", maxHealthDevices+2), unhealthy("a0")), now)
	require.Len(t, table, maxHealthDevices)
	require.Equal(t, 2, ignored)
	require.Equal(t, corev1.ResourceHealthStatusUnhealthy, table[deviceID{"node", "a0"}].status, "those that are known are updated")
	table, ignored = table.merge(list("b", maxHealthDevices-1), now.Add(time.Second))
	require.Len(t, table, maxHealthDevices)
	require.Zero(t, ignored)
	require.Contains(t, table, deviceID{"node", "b0"})
	table, _ = table.merge(nil, now.Add(defaultHealthTimeout))
	require.Len(t, table, maxHealthDevices-1)
	require.Equal(t, now.Add(defaultHealthTimeout+time.Second), table.expiresAt())
	table, _ = table.merge(nil, now.Add(time.Minute))
	require.Empty(t, table)
	require.Zero(t, table.expiresAt())

	long, name := strings.Repeat("x", 254), healthy("gpu0")
	name.Device.PoolName = long
	table, ignored = table.merge([]*healthapi.DeviceHealth{name, healthy(long[:64]), healthy(""), nil, {}, healthy(long[:63])}, now)
	require.Len(t, table, 1)
	require.Equal(t, 5, ignored)
}

// A message is as long as an API server accepts, and is valid UTF-8.
func TestConditionOf_BoundsMessages(t *testing.T) {
	d := unhealthy("gpu0")
	for _, message := range []string{strings.Repeat("x", 1024), strings.Repeat("x", 1025), strings.Repeat("\u20ac", 1000), strings.Repeat("x", 1<<20)} {
		d.Message = message
		got := conditionOf(d).message
		require.LessOrEqual(t, len(got), corev1.ResourceHealthMessageMaxLength)
		require.True(t, utf8.ValidString(got))
		require.Equal(t, len(message) > 1024, strings.HasSuffix(got, "..."))
	}
}

// The devices of a container are named after what it names of its claims. Devices with one name are one, and what a driver can
// add to a status is bounded.
func TestManager_NamesDevicesWithHealth(t *testing.T) {
	n := newHealthNode(t)
	n.m.drivers[gpuDriver] = []*driver{{health: healthTable{
		{"node", "gpu0"}: {condition: condition{status: isHealthy}},
		{"node", "gpu1"}: {condition: condition{status: isUnhealthy, message: "too hot"}},
		{"node", "link"}: {condition: condition{status: isHealthy}},
	}}}
	shared := []string{"vendor.example/gpu=x", "vendor.example/gpu=y"}
	n.m.claims["0"].Drivers = map[string]*[]device{
		"other.vendor.example": {{Requests: []string{"disk"}, Pool: "node", Name: "disk0"}},
		gpuDriver: {
			{Requests: []string{"gpu/large"}, Pool: "node", Name: "gpu0", CDIDevices: shared},
			{Requests: []string{"gpu/large"}, Pool: "node", Name: "gpu1", CDIDevices: shared[:1]},
			{Requests: []string{"gpu/large"}, Pool: "node", Name: "gpu2", CDIDevices: shared[:1]},
			{Pool: "node", Name: "link"},
		},
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "p0", UID: "p0"}}
	name, template := "c0", "template"
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "mine", ResourceClaimTemplateName: &template}, {Name: "other", ResourceClaimName: &template}}
	container := &corev1.Container{Name: "c"}
	container.Resources.Claims = []corev1.ResourceClaim{
		{Name: "unknown"}, {Name: "other"}, {Name: "mine"}, {Name: "mine", Request: "gpu"}, {Name: "mine", Request: "disk"},
	}
	require.Empty(t, n.m.ResourceHealth(pod, container), "no claim is made from the template")
	pod.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "mine", ResourceClaimName: &name}}
	hot := "too hot"
	gpu := corev1.ResourceHealth{ResourceID: "vendor.example/gpu=x", Health: isUnhealthy, Message: &hot}
	link := corev1.ResourceHealth{ResourceID: "gpu.vendor.example/node/link", Health: isHealthy}
	disk := corev1.ResourceHealth{ResourceID: "other.vendor.example/node/disk0", Health: isUnknown}
	require.Equal(t, []corev1.ResourceStatus{
		{Name: "claim:mine", Resources: []corev1.ResourceHealth{gpu, link, disk}},
		{Name: "claim:mine/gpu", Resources: []corev1.ResourceHealth{gpu, link}},
		{Name: "claim:mine/disk", Resources: []corev1.ResourceHealth{link, disk}},
	}, n.m.ResourceHealth(pod, container))
	require.Empty(t, n.m.ResourceHealth(pod, &corev1.Container{Name: "another"}))

	var many []device
	for i := range 2 * maxReportedDevices {
		many = append(many, device{Name: fmt.Sprint(i), CDIDevices: []string{fmt.Sprintf("vendor.example/gpu=%d%s", i, strings.Repeat("x", 2*maxResourceIDLength))}})
	}
	n.m.claims["0"].Drivers[gpuDriver] = &many
	list := n.m.ResourceHealth(pod, container)[0].Resources
	require.Len(t, list, maxReportedDevices)
	require.Len(t, list[0].ResourceID, maxResourceIDLength)
}
