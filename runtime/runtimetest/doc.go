// Package runtimetest is for authors of container runtimes, and for tests of
// those who drive them.
//
//   - TestRuntime is a conformance suite of call sequences as a kubelet makes
//     them, run from go test against any CRI endpoint. Its cases are named by
//     what they mean to a pod, and each failure says what a kubelet would suffer.
//   - Proxy stands in front of a CRI endpoint and makes it fail on purpose, by
//     rules and a seed, so that a run can be repeated.
//   - Floor measures the raw calls of a pod, so that an agent's figures can be
//     put beside them.
//
// A runtime's own test needs ten lines:
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
// The suite makes pods of its own, in namespaces named sublet-test-…, and
// removes them. It looks at no others, so that it can run beside real pods.
package runtimetest
