// Package mine has the test of a runtime in docs/test-your-runtime.md. Its file is not a test file, because there is no such runtime.
package mine

import (
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sublet-dev/agent/runtime/runtimetest"
)

// TestCRI runs the conformance suite.
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
