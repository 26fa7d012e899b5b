package podsapi

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/sublet-dev/agent/internal/grpcsocket"
	"github.com/sublet-dev/agent/podwatch"
)

// SV-15: a client that does not read holds up nothing, and its watch ends with an error that says why.
// One that reads late, but in time, has the newest states.
func TestServer_EndsUnreadWatch(t *testing.T) {
	for name, pause := range map[string]time.Duration{"late": sendTimeout - time.Second, "too late": sendTimeout + time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var hub podwatch.Hub
				s, err := New(Config{Path: "/s", Pods: func() []*corev1.Pod { return nil }, WatchList: hub.WatchList})
				require.NoError(t, err)
				listener := bufconn.Listen(64 << 10)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- grpcsocket.Serve(ctx, listener, s.socket()) }()
				conn, err := grpc.NewClient("passthrough:x", grpc.WithTransportCredentials(insecure.NewCredentials()),
					grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
				require.NoError(t, err)
				stream, err := api.NewPodsClient(conn).WatchPods(t.Context(), &api.WatchPodsRequest{})
				require.NoError(t, err)
				_, err = stream.Recv()
				require.NoError(t, err)
				synctest.Wait()
				big := strings.Repeat("x", 100<<10)
				for i := range 100 {
					pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "web"}}
					if i%2 == 0 {
						pod.UID = types.UID(fmt.Sprint("web", i%10))
					}
					require.NoError(t, hub.SetStatus(t.Context(), pod, corev1.PodStatus{Message: big + fmt.Sprint(i)}))
					synctest.Wait()
				}
				time.Sleep(pause)
				synctest.Wait()
				require.Equal(t, pause < sendTimeout, len(s.watches) == 1)
				var last string
				var n int
				for n = 0; !strings.HasSuffix(last, "99"); n++ {
					var e *api.WatchPodsEvent
					if e, err = stream.Recv(); err != nil {
						break
					}
					var pod corev1.Pod
					require.NoError(t, pod.Unmarshal(e.GetPod()))
					last = pod.Status.Message
				}
				require.Less(t, n, 20, "what was not read is not kept")
				if pause < sendTimeout {
					require.NoError(t, err)
				} else {
					require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
					require.ErrorContains(t, err, "no event was read for 1m0s; watch again")
				}
				require.NoError(t, conn.Close())
				cancel()
				require.NoError(t, <-done)
			})
		})
	}
}
