package cri

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// On cgroup v2 memory that a container uses is not taken away, because the kernel would kill for it. On v1, which rejects that, the
// error is the same. The runtime is asked for the usage only if the limit is lowered.
func TestApply_KeepsMemoryInUse(t *testing.T) {
	const mi = 1 << 20
	bytes := func(n uint64) *v1.UInt64Value { return &v1.UInt64Value{Value: n} }
	for name, tc := range map[string]struct {
		v1       bool
		has      int64 // limit; 0: none
		limit    string
		usage    *v1.MemoryUsage // nil: no stats
		fail     error           // of the stats
		rejected error           // of the update
		measured int
		problem  string
	}{
		"less is used":             {has: 64 * mi, limit: "32Mi", usage: &v1.MemoryUsage{UsageBytes: bytes(32*mi - 1)}, measured: 1},
		"as much is used":          {has: 64 * mi, limit: "32Mi", usage: &v1.MemoryUsage{UsageBytes: bytes(32 * mi)}, measured: 1, problem: "update resources: cannot set memory limit (33554432) below current usage; it is tried again"},
		"the working set alone":    {has: 64 * mi, limit: "32Mi", usage: &v1.MemoryUsage{WorkingSetBytes: bytes(40 * mi)}, measured: 1, problem: "below current usage"},
		"a first limit":            {limit: "32Mi", usage: &v1.MemoryUsage{UsageBytes: bytes(40 * mi)}, measured: 1, problem: "below current usage"},
		"rejected by cgroup v1":    {v1: true, has: 64 * mi, limit: "32Mi", usage: &v1.MemoryUsage{UsageBytes: bytes(40 * mi)}, rejected: status.Error(codes.Unknown, "current usage: 41943040, peak: 5"), measured: 1, problem: "update resources: cannot set memory limit (33554432) below current usage; it is tried again"},
		"rejected for another":     {v1: true, has: 64 * mi, limit: "32Mi", usage: &v1.MemoryUsage{UsageBytes: bytes(mi)}, rejected: status.Error(codes.Unknown, "no such cgroup"), measured: 1, problem: "no such cgroup"},
		"rejected although higher": {v1: true, has: 16 * mi, limit: "32Mi", usage: &v1.MemoryUsage{UsageBytes: bytes(40 * mi)}, rejected: status.Error(codes.Unknown, "no such cgroup"), problem: "no such cgroup"},
		"cgroup v1":                {v1: true, has: 64 * mi, limit: "32Mi", usage: &v1.MemoryUsage{UsageBytes: bytes(40 * mi)}},
		"raised":                   {has: 16 * mi, limit: "32Mi", usage: &v1.MemoryUsage{UsageBytes: bytes(40 * mi)}},
		"the same":                 {has: 32 * mi, limit: "32Mi", usage: &v1.MemoryUsage{UsageBytes: bytes(40 * mi)}},
		"removed":                  {has: 32 * mi, usage: &v1.MemoryUsage{UsageBytes: bytes(40 * mi)}},
		"no stats":                 {has: 64 * mi, limit: "32Mi", measured: 1},
		"a runtime that is broken": {has: 64 * mi, limit: "32Mi", fail: status.Error(codes.Internal, "broken"), measured: 1, problem: "broken"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			c := f.client(t, Config{Node: Node{CgroupV2: !tc.v1}})
			pod := onePod("main")
			id := running(t, f, c, pod).Containers[0].ID
			linux := &v1.LinuxContainerResources{CpuShares: 2, MemoryLimitInBytes: tc.has}
			f.mu.Lock()
			f.containers[id].Resources = &v1.ContainerResources{Linux: linux}
			f.mu.Unlock()
			c.facts.forgetContainer(pod.UID, id)
			_, err := c.Pod(t.Context(), pod.UID)
			require.NoError(t, err)
			f.setBefore(func(_ context.Context, rpc string, _ any) error {
				switch rpc {
				case "ContainerStats":
					return tc.fail
				case "UpdateContainerResources":
					return tc.rejected
				}
				return nil
			})
			if tc.usage != nil {
				f.memory = func() *v1.MemoryUsage { return tc.usage }
			}
			f.took()
			pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"cpu": resource.MustParse("2")}
			if tc.limit != "" {
				pod.Spec.Containers[0].Resources.Limits["memory"] = resource.MustParse(tc.limit)
			}
			applied := c.Apply(t.Context(), pod, []runtime.Action{{Type: runtime.UpdateResources, Container: "main", ID: id}}, runtime.RunOptions{})
			assert.Equal(t, tc.measured, f.count("ContainerStats"))
			if tc.problem == "" {
				require.Empty(t, applied.Failures)
				require.Len(t, f.updates, 1)
				return
			}
			failure := applied.Failures["main"]
			require.ErrorContains(t, failure.Err, tc.problem)
			assert.Equal(t, "ResizeContainerError", failure.Reason)
			assert.Contains(t, failure.Message, tc.problem)
			assert.Equal(t, tc.rejected != nil, applied.Changed, "only a call may have changed something")
			assert.Empty(t, f.updates)
		})
	}
}

// A container does not get what another one was to give up and has not.
func TestApply_ResizesNoMoreAfterFailure(t *testing.T) {
	f := newFake()
	c := f.client(t, Config{})
	pod := onePod("first")
	pod.Spec.Containers = append(pod.Spec.Containers, *pod.Spec.Containers[0].DeepCopy())
	pod.Spec.Containers[1].Name = "second"
	ids := map[string]string{}
	for _, have := range running(t, f, c, pod).Containers {
		ids[have.Name] = have.ID
	}
	f.setBefore(func(_ context.Context, rpc string, _ any) error {
		if rpc == "UpdateContainerResources" {
			return status.Error(codes.Unknown, "rejected")
		}
		return nil
	})
	f.took()
	plan := []runtime.Action{
		{Type: runtime.UpdateResources, Container: "first", ID: ids["first"]}, {Type: runtime.UpdateResources, Container: "second", ID: ids["second"]},
	}
	failures := c.Apply(t.Context(), pod, plan, runtime.RunOptions{}).Failures
	require.ErrorContains(t, failures["first"].Err, "rejected")
	require.EqualError(t, failures["second"].Err, "not resized, because container first could not be resized")
	assert.Equal(t, 1, f.count("UpdateContainerResources"))
	f.setBefore(nil)
	require.Empty(t, c.Apply(t.Context(), pod, plan, runtime.RunOptions{}).Failures)
	assert.Len(t, f.updates, 2)
}

// A container that the runtime does not stop keeps what it has: others are not resized, and those
// whose stop would have been next are not started beside themselves.
func TestApply_AfterAStopThatFails(t *testing.T) {
	for name, answer := range map[string]error{"refused": status.Error(codes.Unknown, "rejected"), "unanswered": status.Error(codes.Unavailable, "away")} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			c := f.client(t, Config{})
			pod := onePod("first")
			ids := map[string]string{}
			for _, name := range []string{"second", "third"} {
				pod.Spec.Containers = append(pod.Spec.Containers, *pod.Spec.Containers[0].DeepCopy())
				pod.Spec.Containers[len(pod.Spec.Containers)-1].Name = name
			}
			for _, have := range running(t, f, c, pod).Containers {
				ids[have.Name] = have.ID
			}
			f.setBefore(func(_ context.Context, rpc string, req any) error {
				if stop, ok := req.(*v1.StopContainerRequest); ok && rpc == "StopContainer" && stop.GetContainerId() == ids["first"] {
					return answer
				}
				return nil
			})
			f.took()
			failures := c.Apply(t.Context(), pod, []runtime.Action{
				{Type: runtime.KillContainer, Container: "first", ID: ids["first"], GracePeriod: time.Minute, Reason: runtime.ReasonResized},
				{Type: runtime.KillContainer, Container: "third", ID: ids["third"], GracePeriod: time.Minute, Stage: 1},
				{Type: runtime.UpdateResources, Container: "second", ID: ids["second"]},
				{Type: runtime.StartContainer, Container: "third", Attempt: 1},
			}, runtime.RunOptions{}).Failures
			require.Error(t, failures["first"].Err)
			require.EqualError(t, failures["second"].Err, "not resized, because container first could not be stopped")
			assert.Zero(t, f.count("UpdateContainerResources"))
			if name == "unanswered" {
				require.ErrorContains(t, failures["third"].Err, "not stopped")
				assert.Zero(t, f.count("CreateContainer"))
			} else {
				require.NoError(t, failures["third"].Err)
				assert.Equal(t, 1, f.count("CreateContainer"))
			}
		})
	}
}

// A runtime that rejects the resources of a pod as a whole says so; one without the call, also if it says so in words
// only, rejects nothing.
func TestClient_UpdatePodResources(t *testing.T) {
	for name, tc := range map[string]struct {
		observer bool
		answer   error
		want     error // nil: none
		problem  string
	}{
		"no such call":                  {},
		"no such call, in words":        {answer: status.Error(codes.Unknown, "not implemented yet")},
		"rejected":                      {answer: status.Error(codes.ResourceExhausted, "no memory"), problem: "UpdatePodSandboxResources ID: no memory (ResourceExhausted)"},
		"rejected for unknown reasons":  {answer: status.Error(codes.Unknown, "no"), problem: "UpdatePodSandboxResources ID: no (Unknown)"},
		"the sandbox is not there":      {answer: status.Error(codes.NotFound, "no sandbox"), want: runtime.ErrNotFound, problem: "no sandbox"},
		"by an observer":                {observer: true, want: runtime.ErrNotOwner, problem: "observer"},
		"the runtime is away, for long": {answer: status.Error(codes.Unavailable, "away"), want: runtime.ErrUnavailable, problem: "away"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			c := f.client(t, Config{})
			pod := onePod("main")
			id := running(t, f, c, pod).Sandboxes[0].ID
			var got []*v1.UpdatePodSandboxResourcesRequest
			f.setBefore(func(_ context.Context, _ string, request any) error {
				if r, ok := request.(*v1.UpdatePodSandboxResourcesRequest); ok {
					got = append(got, r)
					return tc.answer
				}
				return nil
			})
			if tc.observer {
				c = f.client(t, Config{Observer: true})
			}
			f.took()
			err := c.UpdatePodResources(t.Context(), pod, id, runtime.PodResources{CPURequest: 250, MemoryLimit: 64 << 20})
			if tc.problem == "" {
				require.NoError(t, err)
				require.NoError(t, c.UpdatePodResources(t.Context(), pod, id, runtime.PodResources{}), "asked at each resize")
				assert.Len(t, got, 2)
				return
			}
			require.ErrorContains(t, err, strings.ReplaceAll(tc.problem, "ID", id))
			if tc.want != nil {
				require.ErrorIs(t, err, tc.want)
			}
			if !tc.observer {
				assert.Equal(t, []string{"UpdatePodSandboxResources"}, f.took())
			}
		})
	}
}

// The runtime gets the overhead of the pod and what its containers have together; no limit is -1, because 0 would be no change.
func TestClient_UpdatePodResources_Request(t *testing.T) {
	f := newFake()
	c := f.client(t, Config{Node: Node{CgroupV2: true, MemoryQoS: podspec.MemoryQoS{ThrottlingFactor: 0.5, ReserveRequests: true}}})
	pod := onePod("main")
	id := running(t, f, c, pod).Sandboxes[0].ID
	var got *v1.UpdatePodSandboxResourcesRequest
	f.setBefore(func(_ context.Context, _ string, request any) error {
		if r, ok := request.(*v1.UpdatePodSandboxResourcesRequest); ok {
			got = r
		}
		return nil
	})
	update := func(r runtime.PodResources) string {
		require.NoError(t, c.UpdatePodResources(t.Context(), pod, id, r))
		require.Equal(t, id, got.GetPodSandboxId())
		require.NotNil(t, got.GetOverhead())
		return strings.Join(strings.Fields(got.GetOverhead().String()+" | "+got.GetResources().String()), " ")
	}
	assert.Equal(t, "| cpu_period:100000 cpu_quota:-1 cpu_shares:2 memory_limit_in_bytes:-1", update(runtime.PodResources{}))

	pod.Spec.Overhead = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: resource.MustParse("64Mi")}
	pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("64Mi")},
		Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("128Mi")},
	}
	r := runtime.PodResourcesOf(pod)
	require.Equal(t, runtime.PodResources{CPURequest: 1000, CPULimit: 2000, MemoryLimit: 128 << 20}, r)
	const overhead = "cpu_period:100000 cpu_quota:50000 cpu_shares:512 memory_limit_in_bytes:67108864"
	const shared = overhead + " | cpu_period:100000 cpu_quota:200000 cpu_shares:1024 memory_limit_in_bytes:134217728"
	assert.Equal(t, shared+` unified:{key:"memory.low" value:"134217728"}`, update(r))

	pod.Spec.Resources = &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("128Mi")}}
	update(r)
	assert.Equal(t, map[string]string{"memory.low": "134217728", "memory.high": "167772160"}, got.GetResources().GetUnified())
}
