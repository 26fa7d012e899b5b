// Package harness is what a runtime author's test looks like: it runs the whole
// conformance suite against the CRI endpoint in CRI_ENDPOINT.
//
//	CRI_ENDPOINT=unix:///run/containerd/containerd.sock go test -v ./examples/harness
package harness

import (
	"os"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/runtimetest"
)

func TestMyRuntime(t *testing.T) {
	endpoint := os.Getenv("CRI_ENDPOINT")
	if endpoint == "" {
		t.Skip("set CRI_ENDPOINT=unix:///path.sock to test a runtime")
	}
	opts := []runtimetest.Option{
		// Known deviations of runtimes that we have met; a runtime of your own
		// has none, or gives its list as runtimetest.Deviations.
		runtimetest.KnownRuntimes(),
	}
	if image := os.Getenv("CRI_IMAGE"); image != "" {
		opts = append(opts, runtimetest.Image(image))
	}
	if image := os.Getenv("CRI_SECOND_IMAGE"); image != "" {
		opts = append(opts, runtimetest.SecondImage(image))
	}
	if parent := os.Getenv("CRI_CGROUP_PARENT"); parent != "" {
		opts = append(opts, runtimetest.EditPod(func(pod *v1.PodSandboxConfig) {
			pod.Linux.CgroupParent = parent + "/" + pod.GetMetadata().GetUid()
		}))
	}
	runtimetest.TestRuntime(t, func(t testing.TB) *grpc.ClientConn {
		cc, err := grpc.NewClient(endpoint,
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cc.Close() })
		return cc
	}, opts...)
}
