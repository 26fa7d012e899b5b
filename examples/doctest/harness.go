// Package doctest contains the Go snippets of the documents, so that they compile. Package docs compares both.
package doctest

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sublet-dev/agent/runtime/runtimetest"
)

// TestCRI is the test of a runtime in docs/test-your-runtime.md. This file is not a test file, because the runtime does not exist.
func TestCRI(t *testing.T) {
	runtimetest.TestRuntime(t, func(t testing.TB) *grpc.ClientConn {
		cc, err := grpc.NewClient("unix:///run/my.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cc.Close() })
		return cc
	}, runtimetest.Image("registry.k8s.io/e2e-test-images/busybox:1.29-2"))
}

// MeasureBaseline prints what the raw calls of a pod cost.
func MeasureBaseline(ctx context.Context, cc *grpc.ClientConn) error {
	report, err := runtimetest.MeasureBaseline(ctx, cc, runtimetest.BaselineConfig{Pods: 20, MaxParallel: 4})
	fmt.Print(report)
	return err
}
