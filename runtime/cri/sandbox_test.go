package cri

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// A sandbox that cannot be created is reported as an event, because no status shows why;
// one that the agent itself gave up is not.
func TestApply_ReportsFailedSandbox(t *testing.T) {
	f, rec := newFake(), &fakeRecorder{}
	f.addImage(busybox)
	ctx, cancel := context.WithCancel(t.Context())
	c := f.client(t, Config{Recorder: rec})
	f.setBefore(func(_ context.Context, rpc string, _ any) error {
		if rpc == "RunPodSandbox" {
			return status.Error(codes.Unknown, "no such handler")
		}
		return nil
	})
	pod := onePod("a")
	c.Apply(ctx, pod, startAll(pod), runtime.RunOptions{})
	assert.Contains(t, rec.text(), "FailedCreatePodSandBox")
	assert.Contains(t, rec.text(), "no such handler")

	rec = &fakeRecorder{}
	c = f.client(t, Config{Recorder: rec})
	f.setBefore(func(_ context.Context, rpc string, _ any) error {
		if rpc == "RunPodSandbox" {
			cancel()
			return status.Error(codes.Canceled, "given up")
		}
		return nil
	})
	c.Apply(ctx, pod, startAll(pod), runtime.RunOptions{})
	assert.NotContains(t, rec.text(), "FailedCreatePodSandBox")
}

// ST-3: that a pod has its sandbox is reported once, and only while containers wait for images. One that
// was there before has been reported.
func TestApply_ReportsSandboxDuringPull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		pullTime := time.Minute
		f.setBefore(func(_ context.Context, rpc string, _ any) error {
			if rpc == "PullImage" {
				time.Sleep(pullTime)
			}
			return nil
		})
		c := f.client(t, Config{})
		var reported []time.Duration
		apply := func(pod *corev1.Pod, plan []runtime.Action) {
			t.Helper()
			began := time.Now()
			reported = nil
			require.Empty(t, c.Apply(t.Context(), pod, plan, runtime.RunOptions{SandboxReady: func(s runtime.Sandbox) {
				assert.Equal(t, runtime.SandboxReady, s.State)
				assert.NotEmpty(t, s.ID)
				assert.NotEmpty(t, s.IPs)
				reported = append(reported, time.Since(began))
			}}).Failures)
		}
		pod := onePod("a", "b")
		pod.Spec.Containers[0].Image, pod.Spec.Containers[1].Image = "lab/a:1", "lab/b:1"
		plan := startAll(pod)
		apply(pod, plan[:2])
		assert.Equal(t, []time.Duration{time.Second}, reported)
		apply(pod, plan[2:])
		assert.Empty(t, reported, "the sandbox is not new")

		pullTime = time.Second / 2
		quick := onePod("a")
		quick.UID, quick.Spec.Containers[0].Image = "uid-2", "lab/c:1"
		apply(quick, startAll(quick))
		assert.Empty(t, reported, "the next inspection is soon enough")
	})
}
