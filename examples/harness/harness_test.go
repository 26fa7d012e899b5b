package main

import (
	"os"
	"testing"

	"google.golang.org/grpc"

	"github.com/sublet-dev/agent/runtime/runtimetest"
)

// TestMyRuntime is the same suite as a test: CRI_ENDPOINT and the other variables are the
// flags of the command.
//
//	CRI_ENDPOINT=unix:///run/containerd/containerd.sock go test -v ./examples/harness
func TestMyRuntime(t *testing.T) {
	if os.Getenv("CRI_ENDPOINT") == "" {
		t.Skip("set CRI_ENDPOINT=unix:///path.sock to test a runtime")
	}
	s, err := parse(nil, os.Getenv, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	opts, err := s.options()
	if err != nil {
		t.Fatal(err)
	}
	runtimetest.TestRuntime(t, func(t testing.TB) *grpc.ClientConn {
		cc, err := dial(s.endpoints[0])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cc.Close() })
		return cc
	}, opts...)
}
