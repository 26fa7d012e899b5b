package eviction

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// EV-5: inodes and processes cannot be requested, whatever a pod says.
func TestRequestOf(t *testing.T) {
	q := func(s string) resource.Quantity { return resource.MustParse(s) }
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
		corev1.ResourceCPU: q("250m"), corev1.ResourceMemory: q("1Ki"), corev1.ResourceEphemeralStorage: q("2Ki"), resourceInodes: q("5"), resourcePids: q("6"),
	}}}}}}
	for name, want := range map[corev1.ResourceName]uint64{
		corev1.ResourceCPU: 250, corev1.ResourceMemory: 1024, corev1.ResourceEphemeralStorage: 2048, resourceInodes: 0, resourcePids: 0,
	} {
		assert.Equal(t, want, requestOf(name, pod), name)
	}
}

// EV-5: a pod that uses what it requests does not exceed it.
func TestCandidate_ExceedsRequest(t *testing.T) {
	assert.True(t, Candidate{Usage: 2, Request: 1}.ExceedsRequest())
	assert.False(t, Candidate{Usage: 1, Request: 1}.ExceedsRequest())
	assert.False(t, Candidate{Usage: 1, Request: 2}.ExceedsRequest())
}

// EV-11: usage is known if it was measured, and of CPU once there is a rate.
func TestUsageOf(t *testing.T) {
	now := time.Now()
	old := now.Add(-time.Second)
	memory := func(at time.Time, n uint64) runtime.MemoryUsage { return runtime.MemoryUsage{At: at, WorkingSet: n} }
	container := func(at time.Time, n uint64) runtime.ContainerUsage {
		return runtime.ContainerUsage{Memory: memory(at, n)}
	}
	for name, tc := range map[string]struct {
		signal Signal
		usage  runtime.PodUsage
		want   uint64
		known  bool
	}{
		"memory of the cgroup":     {MemoryAvailable, runtime.PodUsage{Memory: memory(now, 7), Containers: []runtime.ContainerUsage{container(now, 99)}}, 7, true},
		"memory of the containers": {MemoryAvailable, runtime.PodUsage{Memory: memory(old, 7), Containers: []runtime.ContainerUsage{container(now, 2), container(now, 3), container(old, 99)}}, 5, true},
		"old memory":               {MemoryAvailable, runtime.PodUsage{Containers: []runtime.ContainerUsage{container(old, 2)}}, 0, false},
		"CPU with a rate":          {CPUPSISome, runtime.PodUsage{CPU: runtime.CPUUsage{At: now, UsageNanoCores: 5e6, HasRate: true}}, 5, true},
		"CPU without a rate":       {CPUPSISome, runtime.PodUsage{CPU: runtime.CPUUsage{At: now, UsageNanoCores: 5e6}}, 5, false},
		"old CPU":                  {CPUPSISome, runtime.PodUsage{CPU: runtime.CPUUsage{At: old, HasRate: true}}, 0, false},
		"inodes":                   {NodeFSInodesFree, runtime.PodUsage{Files: runtime.DiskUsage{At: now, Inodes: 8}}, 8, true},
		"old inodes":               {NodeFSInodesFree, runtime.PodUsage{Files: runtime.DiskUsage{At: old, Inodes: 8}}, 0, false},
		"processes":                {PIDAvailable, runtime.PodUsage{Pids: runtime.PidUsage{At: now, Used: 4}}, 4, true},
		"old processes":            {PIDAvailable, runtime.PodUsage{Pids: runtime.PidUsage{At: old, Used: 4}}, 4, false},
	} {
		f, _ := infoFor(tc.signal)
		got, known := usageOf(tc.signal, f, &tc.usage, layout{}, now)
		assert.Equal(t, tc.want, got, name)
		assert.Equal(t, tc.known, known, name)
	}
}

// EV-5: file systems are the same unless reported as different.
func TestSameFS(t *testing.T) {
	at := time.Now()
	fs := func(mount string, device uint64) runtime.FSUsage {
		return runtime.FSUsage{At: at, Mountpoint: mount, Device: device}
	}
	for name, tc := range map[string]struct {
		a, b runtime.FSUsage
		want bool
	}{
		"the same device":         {fs("/a", 1), fs("/b", 1), true},
		"different devices":       {fs("/a", 1), fs("/a", 2), false},
		"first device unknown":    {fs("/a", 0), fs("/a", 2), true},
		"second device unknown":   {fs("/a", 1), fs("/a", 0), true},
		"different mount points":  {fs("/a", 0), fs("/b", 0), false},
		"the first not measured":  {runtime.FSUsage{Mountpoint: "/a"}, fs("/b", 0), true},
		"the second not measured": {fs("/a", 0), runtime.FSUsage{Mountpoint: "/b"}, true},
	} {
		assert.Equal(t, tc.want, sameFS(tc.a, tc.b), name)
	}
}

// EV-11: disk usage from before the last eviction is stale.
func TestIsStale(t *testing.T) {
	now := time.Now()
	logs := func(uid types.UID, at time.Time) runtime.PodUsage {
		return runtime.PodUsage{UID: uid, Containers: []runtime.ContainerUsage{{Logs: runtime.DiskUsage{At: at, Bytes: 1}}}}
	}
	old := logs("a", now.Add(-time.Second))
	for name, tc := range map[string]struct {
		signal Signal
		usage  runtime.PodUsage
		want   bool
	}{
		"before":              {NodeFSAvailable, old, true},
		"after":               {NodeFSAvailable, logs("a", now.Add(time.Second)), false},
		"memory needs none":   {MemoryAvailable, old, false},
		"another pod":         {NodeFSAvailable, logs("b", now.Add(-time.Second)), false},
		"nothing is measured": {NodeFSAvailable, runtime.PodUsage{UID: "a"}, false},
	} {
		pods := []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{UID: "a"}}}
		assert.Equal(t, tc.want, isStale(tc.signal, pods, &runtime.NodeUsage{Pods: []runtime.PodUsage{tc.usage}}, now), name)
	}
}
