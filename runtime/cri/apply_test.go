package cri

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
)

// RT-17: the answer of a create is lost after it took effect. The next turn
// takes over what there is.
func TestLostAnswersAreAdopted(t *testing.T) {
	for _, lost := range []string{"RunPodSandbox", "CreateContainer", "StartContainer"} {
		t.Run(lost, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				f.addImage(busybox)
				var once atomic.Bool
				f.after = func(rpc string, _ any) error {
					if rpc == lost && once.CompareAndSwap(false, true) {
						return status.Error(codes.DeadlineExceeded, "too late")
					}
					return nil
				}
				c := f.client(t, Config{})
				pod := onePod("main")
				first := c.Apply(t.Context(), pod, startAll(pod), runtime.RunOptions{})
				require.Len(t, first.Failures, 1)
				for _, failure := range first.Failures {
					assert.ErrorIs(t, failure.Err, runtime.ErrDeadlineExceeded)
				}
				// As if nothing had been seen of it: the worst plan there is.
				plan := startAll(pod)
				if lost != "RunPodSandbox" {
					plan = plan[1:]
				}
				require.Empty(t, c.Apply(t.Context(), pod, plan, runtime.RunOptions{}).Failures)
				observed, err := c.Pod(t.Context(), pod.UID)
				require.NoError(t, err)
				require.Len(t, observed.Sandboxes, 1)
				require.Len(t, observed.Containers, 1)
				assert.Equal(t, runtime.Running, observed.Containers[0].State)
			})
		})
	}
}

// RT-17: a name that is held by a call which is still being undone inside the
// runtime is waited for, but not indefinitely.
func TestApply_WaitsForReservedName(t *testing.T) {
	for existing, works := range map[int]bool{3: true, 100: false} {
		for _, at := range []string{"RunPodSandbox", "CreateContainer"} {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				f.addImage(busybox)
				var tries atomic.Int64
				f.setBefore(func(_ context.Context, rpc string, _ any) error {
					if rpc == at && tries.Add(1) <= int64(existing) {
						return status.Error(codes.FailedPrecondition, `failed to reserve name "x": name "x" is reserved for "y"`)
					}
					return nil
				})
				began := time.Now()
				applied := f.client(t, Config{}).Apply(t.Context(), onePod("main"), startAll(onePod("main")), runtime.RunOptions{})
				assert.Equal(t, works, len(applied.Failures) == 0)
				assert.Less(t, time.Since(began), 4*time.Second)
			})
		}
	}
}

// A start that is still being undone is waited for before its container goes.
func TestAContainerInItsStartIsRemovedAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		tries := 0
		f.setBefore(func(_ context.Context, rpc string, _ any) error {
			if tries++; rpc == "RemoveContainer" && tries < 4 {
				return status.Error(codes.Unknown, "container is in starting state, can't be removed")
			}
			return nil
		})
		applied := f.client(t, Config{}).Apply(t.Context(), onePod("main"), []runtime.Action{{Type: runtime.RemoveContainer, Container: "main", ID: "x"}}, runtime.RunOptions{})
		assert.Empty(t, applied.Failures)
		assert.Equal(t, 4, tries)
	})
}

// RT-17: what is of no use is removed and the name used again.
func TestApply_RemovesUnusableSandboxAndContainer(t *testing.T) {
	f := newFake()
	f.addImage(busybox)
	c := f.client(t, Config{})
	pod := onePod("main")
	require.Empty(t, c.Apply(t.Context(), pod, startAll(pod), runtime.RunOptions{}).Failures)
	observed, err := c.Pod(t.Context(), pod.UID)
	require.NoError(t, err)
	f.mu.Lock()
	f.exit(observed.Containers[0].ID, 1)
	f.mu.Unlock()
	// The same attempt again, though its container has ended.
	require.Empty(t, c.Apply(t.Context(), pod, startAll(pod)[1:], runtime.RunOptions{}).Failures)
	second, err := c.Pod(t.Context(), pod.UID)
	require.NoError(t, err)
	require.Len(t, second.Containers, 1)
	assert.NotEqual(t, observed.Containers[0].ID, second.Containers[0].ID)

	// A sandbox that has ended, likewise.
	f.mu.Lock()
	f.sandboxes[second.Sandboxes[0].ID].State = v1.PodSandboxState_SANDBOX_NOTREADY
	f.mu.Unlock()
	require.Empty(t, c.Apply(t.Context(), pod, startAll(pod), runtime.RunOptions{}).Failures)
	last, err := c.Pod(t.Context(), pod.UID)
	require.NoError(t, err)
	require.Len(t, last.Sandboxes, 1)
	assert.NotEqual(t, second.Sandboxes[0].ID, last.Sandboxes[0].ID)
}

// RT-22: a runtime that can never clean up after a sandbox that has ended, as after a loss of
// power, does not keep the pod from a new one. One that may still be busy does.
func TestApply_LeavesSandboxThatCannotBeStopped(t *testing.T) {
	for name, tc := range map[string]struct {
		state  v1.PodSandboxState
		answer codes.Code
		left   bool
	}{
		"ended":                       {v1.PodSandboxState_SANDBOX_NOTREADY, codes.Unknown, true},
		"ready":                       {v1.PodSandboxState_SANDBOX_READY, codes.Unknown, false},
		"ended, runtime unavailable":  {v1.PodSandboxState_SANDBOX_NOTREADY, codes.Unavailable, false},
		"ended, no answer":            {v1.PodSandboxState_SANDBOX_NOTREADY, codes.DeadlineExceeded, false},
		"ended, but a container runs": {v1.PodSandboxState_SANDBOX_NOTREADY, codes.Internal, false},
	} {
		t.Run(name, func(t *testing.T) {
			f, rec := newFake(), &fakeRecorder{}
			f.addImage(busybox)
			c := f.client(t, Config{Recorder: rec})
			pod := onePod("main")
			first := startPod(t, c, pod)
			old := first.Sandboxes[0].ID
			f.mu.Lock()
			f.sandboxes[old].State = tc.state
			f.mu.Unlock()
			_, err := c.Pod(t.Context(), pod.UID)
			require.NoError(t, err)
			f.setBefore(func(_ context.Context, rpc string, _ any) error {
				if rpc == "StopPodSandbox" || rpc == "StopContainer" {
					return status.Error(tc.answer, "cached result: unexpected end of JSON input")
				}
				return nil
			})
			plan := []runtime.Action{
				{Type: runtime.KillSandbox, ID: old}, {Type: runtime.CreateSandbox, Attempt: 1}, {Type: runtime.StartContainer, Container: "main", Attempt: 1},
			}
			if tc.answer == codes.Internal {
				plan = append([]runtime.Action{{Type: runtime.KillContainer, Container: "main", ID: first.Containers[0].ID}}, plan...)
			}
			applied := c.Apply(t.Context(), pod, plan, runtime.RunOptions{})
			p, err := c.Pod(t.Context(), pod.UID)
			require.NoError(t, err)
			if !tc.left {
				assert.Equal(t, "KillPodSandboxError", applied.Failures[""].Reason)
				assert.Len(t, p.Sandboxes, 1)
				return
			}
			assert.Empty(t, applied.Failures)
			assert.Len(t, p.Sandboxes, 2)
			assert.Contains(t, rec.text(), "the old sandbox is left behind: StopPodSandbox "+old+": cached result: unexpected end of JSON input")
		})
	}
}

// RT-13: a runtime that lost its state does not reset restart counts.
func TestRestartCountsSurviveALostRuntime(t *testing.T) {
	f := newFake()
	f.addImage(busybox)
	c := f.client(t, Config{})
	logs := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(logs, "main"), 0o700))
	for _, name := range []string{"0.log", "3.log", "4.log.20261121-040506", "junk.log", "99", "4294967294.log", "2147483646.log"} {
		require.NoError(t, os.WriteFile(filepath.Join(logs, "main", name), nil, 0o600))
	}
	pod := onePod("main")
	require.Empty(t, c.Apply(t.Context(), pod, startAll(pod), runtime.RunOptions{LogDir: logs}).Failures)
	observed, err := c.Pod(t.Context(), pod.UID)
	require.NoError(t, err)
	assert.Equal(t, uint32(5), observed.Containers[0].Attempt)
	assert.Equal(t, filepath.Join(logs, "main", "5.log"), observed.Containers[0].LogPath)
}

// RT-12: another process knows all that this one knew.
func TestAnotherClientKnowsThePodFromTheRuntimeAlone(t *testing.T) {
	f := newFake()
	f.addImage(busybox)
	c := f.client(t, Config{})
	pod := onePod("main")
	seven := int64(7)
	pod.Spec.TerminationGracePeriodSeconds = &seven
	pod.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
	pod.Spec.Containers[0].Lifecycle = sleepHook(3)
	plan := startAll(pod)
	plan[1].Attempt, plan[1].BackOffStep, plan[1].RestartGeneration = 4, 2, 1
	require.Empty(t, c.Apply(t.Context(), pod, plan, runtime.RunOptions{}).Failures)
	observed, err := f.client(t, Config{}).Pod(t.Context(), pod.UID)
	require.NoError(t, err)
	ct := observed.Containers[0]
	assert.Equal(t, runtime.HashContainer(&pod.Spec.Containers[0]), ct.Hash)
	assert.Equal(t, uint32(4), ct.Attempt)
	assert.Equal(t, 2, ct.BackOffStep)
	assert.Equal(t, uint32(1), ct.RestartGeneration)
	assert.Equal(t, 7*time.Second, ct.GracePeriod)
	assert.Equal(t, int64(3), ct.PreStop.Sleep.Seconds)
	assert.Equal(t, "file", observed.Sandboxes[0].Source)
	assert.Equal(t, 7*time.Second, observed.Sandboxes[0].GracePeriod)
	assert.Equal(t, []any{"web", "shop", types.UID("uid-1")}, []any{observed.Name, observed.Namespace, observed.UID})
}

func TestBackOffsAreReportedNotCarriedOut(t *testing.T) {
	f := newFake()
	until := time.Now().Add(time.Minute)
	applied := f.client(t, Config{}).Apply(t.Context(), onePod("main"), []runtime.Action{
		{Type: runtime.Wait, Container: "main", Reason: "CrashLoopBackOff", Message: "back-off 10s", Until: until},
	}, runtime.RunOptions{})
	assert.Equal(t, map[string]runtime.Failure{"main": {Reason: "CrashLoopBackOff", Message: "back-off 10s", Until: until}}, applied.Failures)
	assert.False(t, applied.Changed)
	assert.Empty(t, f.took())
}

func TestFailuresAreNamed(t *testing.T) {
	cases := []struct {
		rpc, container, reason string
		edit                   func(*corev1.Pod)
	}{
		{"RunPodSandbox", "", "CreatePodSandboxError", nil},
		{"PodSandboxStatus", "", "CreatePodSandboxError", nil},
		{"ImageStatus", "main", "ImageInspectError", nil},
		{"CreateContainer", "main", "CreateContainerError", nil},
		{"StartContainer", "main", "RunContainerError", nil},
		{"", "main", "CreateContainerConfigError", func(p *corev1.Pod) {
			p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "none"}}}}
		}},
		{"", "", "ConfigPodSandboxError", func(p *corev1.Pod) { no := false; p.Spec.HostUsers = &no }},
	}
	for _, tc := range cases {
		t.Run(tc.reason, func(t *testing.T) {
			f := newFake()
			f.addImage(busybox)
			f.setBefore(func(_ context.Context, rpc string, _ any) error {
				if rpc == tc.rpc {
					return status.Error(codes.Internal, "broken")
				}
				return nil
			})
			pod := onePod("main")
			if tc.edit != nil {
				tc.edit(pod)
			}
			rec := &fakeRecorder{}
			applied := f.client(t, Config{Recorder: rec}).Apply(t.Context(), pod, startAll(pod), runtime.RunOptions{})
			require.Len(t, applied.Failures, 1)
			if strings.HasPrefix(tc.reason, "CreateContainer") || tc.reason == "RunContainerError" {
				assert.Contains(t, rec.text(), "Failed Error: "+applied.Failures[tc.container].Message)
			}
			if tc.reason == "ImageInspectError" {
				assert.Contains(t, rec.text(), `InspectFailed Failed to inspect image "`+busybox+`": `+applied.Failures[tc.container].Message)
			}
			assert.Equal(t, tc.reason, applied.Failures[tc.container].Reason)
			assert.Error(t, applied.Failures[tc.container].Err)
		})
	}
}

func TestResourcesAreChangedInPlace(t *testing.T) {
	f := newFake()
	c := f.client(t, Config{})
	pod := onePod("main")
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi")}
	observed := running(t, f, c, pod)
	pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{
		Requests: corev1.ResourceList{"cpu": resource.MustParse("500m")}, Limits: corev1.ResourceList{"cpu": resource.MustParse("2")},
	}
	plan := []runtime.Action{{Type: runtime.UpdateResources, Container: "main", ID: observed.Containers[0].ID}}
	require.Empty(t, c.Apply(t.Context(), pod, plan, runtime.RunOptions{}).Failures)
	require.Len(t, f.updates, 1)
	linux := f.updates[0].GetLinux()
	assert.Equal(t, []int64{512, 200000, 100000, -1}, []int64{linux.GetCpuShares(), linux.GetCpuQuota(), linux.GetCpuPeriod(), linux.GetMemoryLimitInBytes()})

	// The cached status of the container is dropped.
	second, err := c.Pod(t.Context(), pod.UID)
	require.NoError(t, err)
	assert.Equal(t, "500m", second.Containers[0].Resources.CPURequest.String())
	assert.Equal(t, "2", second.Containers[0].Resources.CPULimit.String())
	assert.Nil(t, second.Containers[0].Resources.MemoryLimit)
}

// RT-18: an answer far above what gRPC takes by default.
func TestTwentyThousandDeadContainers(t *testing.T) {
	f := newFake()
	labels := map[string]string{runtime.LabelOwner: DefaultOwner, runtime.LabelPodUID: "uid-1", runtime.LabelPodName: "web", runtime.LabelPodNamespace: "shop"}
	notes := map[string]string{"padding": strings.Repeat("x", 300)}
	for i := range 20_000 {
		id := fmt.Sprint("dead-", i)
		f.containers[id] = &v1.ContainerStatus{
			Id: id, Metadata: &v1.ContainerMetadata{Name: "main", Attempt: uint32(i)}, State: v1.ContainerState_CONTAINER_EXITED,
			Labels: labels, Annotations: notes, FinishedAt: 1,
		}
	}
	pods, err := f.client(t, Config{}).Pods(t.Context())
	require.NoError(t, err)
	require.Len(t, pods, 1)
	assert.Len(t, pods[0].Containers, 20_000)
}

// RT-18: a runtime that cannot send so much is asked for it in parts.
func TestListsThatAreTooLargeComeInParts(t *testing.T) {
	f := newFake()
	f.mostListed = 15
	for s := range 10 {
		uid, id := fmt.Sprint("uid-", s), fmt.Sprint("sb-", s)
		labels := map[string]string{runtime.LabelOwner: DefaultOwner, runtime.LabelPodUID: uid}
		f.sandboxes[id] = &v1.PodSandboxStatus{Id: id, Metadata: &v1.PodSandboxMetadata{Uid: uid}, Labels: labels}
		for n := range 10 {
			ct := &v1.ContainerStatus{Id: fmt.Sprint(id, "-", n), Metadata: &v1.ContainerMetadata{Name: "main", Attempt: uint32(n)}, Labels: labels}
			ct.State = v1.ContainerState_CONTAINER_EXITED
			if n == 9 {
				ct.State = v1.ContainerState_CONTAINER_RUNNING
			}
			f.containers[ct.Id], f.inSandbox[ct.Id] = ct, id
		}
	}
	pods, err := f.client(t, Config{}).Pods(t.Context())
	require.NoError(t, err)
	require.Len(t, pods, 10)
	for _, p := range pods {
		assert.Len(t, p.Containers, 10)
		assert.True(t, p.CouldHaveRunningContainers())
	}
}

// What an inspection saw before a change is not taken for a fact after it.
func TestAnInspectionDuringAChangeIsNoFact(t *testing.T) {
	f := newFake()
	c := f.client(t, Config{})
	pod := onePod("main")
	observed := running(t, f, c, pod)
	id := observed.Containers[0].ID
	c.facts.forgetContainer(pod.UID, id)
	f.setBefore(func(_ context.Context, rpc string, _ any) error {
		if rpc == "ContainerStatus" { // the change comes in while the status is on its way
			c.facts.forgetContainer(pod.UID, id)
		}
		return nil
	})
	f.took()
	_, err := c.Pod(t.Context(), pod.UID)
	require.NoError(t, err)
	f.setBefore(nil)
	for range 2 {
		_, err = c.Pod(t.Context(), pod.UID)
		require.NoError(t, err)
	}
	assert.Equal(t, 2, f.count("ContainerStatus"))
}

func TestImages(t *testing.T) {
	f := newFake()
	f.addImage(busybox)
	c := f.client(t, Config{})
	for range 2 {
		images, err := c.Images(t.Context())
		require.NoError(t, err)
		assert.Equal(t, []runtime.Image{{ID: "sha256:" + busybox, Tags: []string{busybox}, Bytes: imageBytes}}, images)
	}
	assert.Equal(t, 1, f.count("StreamImages"), "asked for once: it is Unimplemented")
	require.NoError(t, c.RemoveImage(t.Context(), busybox))
	require.NoError(t, c.RemoveImage(t.Context(), busybox), "a missing image is no error")
	fs, _, err := c.ImageFS(t.Context())
	require.NoError(t, err)
	require.Len(t, fs, 1)
	assert.Equal(t, []any{"/images", uint64(7), uint64(3)}, []any{fs[0].Mountpoint, fs[0].UsedBytes, fs[0].InodesUsed})
}

func TestExec(t *testing.T) {
	f := newFake()
	f.execute = func(r *v1.ExecSyncRequest) (*v1.ExecSyncResponse, error) {
		assert.Equal(t, int64(2), r.GetTimeout(), "rounded up: 0 would be no timeout")
		return &v1.ExecSyncResponse{Stdout: []byte("abc"), Stderr: []byte("defg"), ExitCode: 9}, nil
	}
	c := f.client(t, Config{})
	for limit, want := range map[int]string{100: "abcdefg", 5: "abcde", 2: "ab", 0: "", -1: ""} {
		out, code, err := c.Exec(t.Context(), "ct", []string{"x"}, 1500*time.Millisecond, limit)
		require.NoError(t, err)
		assert.Equal(t, want, string(out))
		assert.Equal(t, 9, code)
	}
}

func TestNewReportsAllFaultsAtOnce(t *testing.T) {
	_, err := New(nil, Config{})
	require.Error(t, err)
	cc, err := Dial("unix:///nowhere")
	require.NoError(t, err)
	defer func() { _ = cc.Close() }()
	_, err = New(cc, Config{
		Timeout: -1, InitialParallelStarts: -1, Node: Node{SeccompRoot: "x", CPUQuotaPeriod: time.Hour, HugePageSizes: []string{"2Mi"}}, Pulls: PullLimits{MaxParallel: -1},
	})
	for _, part := range []string{"Timeout", "InitialParallelStarts", "path of Node", "CPUQuotaPeriod", "HugePageSizes", "Pulls"} {
		assert.ErrorContains(t, err, part)
	}
}
