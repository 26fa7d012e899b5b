//go:build linux

package probe_test

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sublet-dev/agent/internal/containerdtest"
	"github.com/sublet-dev/agent/podcache"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/probe"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
)

// served is a pod with a web server that starts after a second, and is healthy while
// /www/healthz exists.
func served(image string) *corev1.Pod {
	every := func(h corev1.ProbeHandler) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: h, PeriodSeconds: 1, TimeoutSeconds: 60, FailureThreshold: 2}
	}
	startup := every(corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("web")}})
	startup.FailureThreshold = 300
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "served", Namespace: "default", UID: types.UID("probe-" + time.Now().Format("150405.000000"))},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64(1)),
			Containers: []corev1.Container{{
				Name: "web", Image: image, ImagePullPolicy: corev1.PullIfNotPresent,
				Command:       []string{"sh", "-c", "mkdir /www; echo ok >/www/healthz; sleep 1; exec httpd -f -p 8080 -h /www"},
				Env:           []corev1.EnvVar{{Name: "FILE", Value: "/www/healthz"}},
				Ports:         []corev1.ContainerPort{{Name: "web", ContainerPort: 8080}},
				StartupProbe:  startup,
				LivenessProbe: every(corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"test", "-f", "$(FILE)"}}}),
				ReadinessProbe: every(corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
					Path: "/healthz", Port: intstr.FromString("web"),
				}}),
			}},
		},
	}
	podspec.Default(pod)
	return pod
}

// PB-1: exec, httpGet and tcpSocket probes of real containers.
func TestManager_OnContainerd(t *testing.T) {
	if testing.Short() {
		t.Skip("starts containerd")
	}
	containerdtest.Each(t, func(t *testing.T, n *containerdtest.Node) {
		cc, err := cri.Dial(n.Endpoint())
		require.NoError(t, err)
		defer cc.Close()
		client, err := cri.New(cc, cri.Config{})
		require.NoError(t, err)
		var cache podcache.Cache
		m, err := probe.New(probe.Config{PodCache: &cache, Execer: client})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { assert.NoError(t, m.Run(ctx)) })
		defer wg.Wait()
		defer cancel()

		pod := served(n.Busybox)
		logs := t.TempDir()
		require.NoError(t, os.MkdirAll(filepath.Join(logs, "web"), 0o755))
		plan := runtime.Plan(pod, runtime.PlanInput{}, time.Now())
		done := client.Apply(ctx, pod, plan, runtime.RunOptions{
			Dir: t.TempDir(), LogDir: logs, CgroupParent: n.CgroupParent, Hostname: "served",
		})
		require.Empty(t, done.Failures)
		condition := func() runtime.Pod {
			observed, err := client.Pod(context.WithoutCancel(ctx), pod.UID)
			require.NoError(t, err)
			cache.Set(pod.UID, observed, nil, time.Now())
			return observed
		}
		observed := condition()
		defer func() {
			ctx := context.WithoutCancel(ctx)
			assert.NoError(t, client.Kill(ctx, pod, observed, runtime.Termination{GracePeriod: time.Second}))
			assert.NoError(t, client.Remove(ctx, condition()))
		}()
		id := observed.Containers[0].ID
		m.AddPod(pod)
		assert.Equal(t, runtime.ProbeResults{Readiness: runtime.ProbeFailure, Liveness: runtime.ProbeSuccess}, m.Results(pod.UID)[id])

		assert.Equal(t, map[probe.ProbeType]runtime.ProbeResult{
			probe.Startup: runtime.ProbeSuccess, probe.Readiness: runtime.ProbeSuccess,
		}, gather(t, m, 2))
		_, code, err := client.Exec(ctx, id, []string{"rm", "/www/healthz"}, time.Minute, 100)
		require.NoError(t, err)
		require.Zero(t, code)
		assert.Equal(t, map[probe.ProbeType]runtime.ProbeResult{
			probe.Liveness: runtime.ProbeFailure, probe.Readiness: runtime.ProbeFailure,
		}, gather(t, m, 2))
		assert.Equal(t, runtime.ProbeResults{Startup: runtime.ProbeSuccess, Readiness: runtime.ProbeFailure, Liveness: runtime.ProbeFailure}, m.Results(pod.UID)[id])
	})
}

// gather waits for n changes.
func gather(t *testing.T, m *probe.Manager, n int) map[probe.ProbeType]runtime.ProbeResult {
	t.Helper()
	got := map[probe.ProbeType]runtime.ProbeResult{}
	for len(got) < n {
		select {
		case <-m.Notify():
			for _, c := range m.Drain() {
				t.Logf("%v: %v %s", c.Type, c.Result, c.Message)
				got[c.Type] = c.Result
			}
		case <-time.After(60 * time.Second):
			t.Fatalf("only %v was told", got)
		}
	}
	return got
}
