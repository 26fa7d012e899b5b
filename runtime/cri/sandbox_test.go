package cri

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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
