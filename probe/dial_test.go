package probe

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sublet-dev/agent/runtime"
)

// Where packets are dropped, a probe leaves nothing behind that still connects: the kernel would try for two minutes.
func TestProbe_GivesUpItsConnection(t *testing.T) {
	for name, h := range map[string]corev1.ProbeHandler{
		"http": {HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(80)}},
		"tcp":  {TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(80)}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				took := make(chan time.Duration, 1)
				m, err := New(Config{PodCache: newNode(), Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
					<-ctx.Done()
					took <- time.Since(start)
					return nil, ctx.Err()
				}})
				require.NoError(t, err)
				pod := podOf("u", nil, &corev1.Probe{ProbeHandler: h}, nil)
				c := &pod.Spec.Containers[0]
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				assert.Equal(t, runtime.ProbeFailure, m.handle(ctx, target{kind: Readiness, pod: pod, container: c, spec: c.ReadinessProbe, id: "1", ip: "10.0.0.1"}).result)
				assert.Equal(t, time.Second, <-took)
			})
		})
	}
}
