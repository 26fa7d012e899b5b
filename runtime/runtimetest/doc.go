// Package runtimetest is for authors of container runtimes, and for tests of their
// clients.
//
//   - TestRuntime is a conformance suite of the call sequences that a kubelet makes,
//     run from go test against any CRI endpoint. Its cases are named by what they
//     mean for a pod, and each failure names its consequence for a kubelet.
//   - Proxy forwards the calls to a CRI endpoint and injects faults, by rules and a
//     seed, so that a run can be repeated.
//   - MeasureBaseline measures the raw calls of a pod, for comparison with those of an
//     agent.
//
// The test of a runtime needs ten lines:
//
//	func TestMyRuntime(t *testing.T) {
//		runtimetest.TestRuntime(t, func(t testing.TB) *grpc.ClientConn {
//			cc, err := grpc.NewClient("unix:///run/my.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
//			if err != nil {
//				t.Fatal(err)
//			}
//			t.Cleanup(func() { _ = cc.Close() })
//			return cc
//		}, runtimetest.Image("registry.k8s.io/e2e-test-images/busybox:1.29-2"))
//	}
//
// The suite creates pods in namespaces named sublet-test-… and removes them. It touches
// no others, so that it can run beside other pods. The defects that it is known to find
// are a table of its own tests, mutants_test.go.
package runtimetest
