package main

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
)

// Events of a pod that another client runs are printed.
func TestWatch_PrintsEventsOfOtherClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, err := embedded.New(embedded.Config{Executor: simulated.New(simulated.Config{})})
		require.NoError(t, err)
		defer rt.Close()
		cc, err := rt.Dial()
		require.NoError(t, err)
		defer cc.Close()
		observer, err := cri.New(cc, cri.Config{Observer: true})
		require.NoError(t, err)
		client, err := cri.New(cc, cri.Config{})
		require.NoError(t, err)

		ctx, cancel := context.WithCancel(t.Context())
		var out strings.Builder
		var wg sync.WaitGroup
		wg.Go(func() { assert.NoError(t, watch(ctx, observer, &out)) })
		time.Sleep(5 * time.Second)

		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "uid-1"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "nginx:1"}}},
		}
		podspec.Default(pod)
		plan := runtime.Plan(pod, runtime.PlanInput{}, time.Now())
		require.Empty(t, client.Apply(ctx, pod, plan, runtime.RunOptions{Dir: t.TempDir(), LogDir: t.TempDir()}).Failures)
		time.Sleep(time.Second)
		observed, err := client.Pod(ctx, pod.UID)
		require.NoError(t, err)
		require.NoError(t, client.Kill(ctx, pod, observed, runtime.Termination{GracePeriod: time.Second}))
		time.Sleep(time.Second)
		observed, err = client.Pod(ctx, pod.UID)
		require.NoError(t, err)
		require.NoError(t, client.Remove(ctx, observed))
		time.Sleep(time.Second)
		cancel()
		wg.Wait()

		for _, want := range []string{
			"default/web ContainerStarted pod=uid-1 container=main/0",
			"default/web ContainerDied pod=uid-1 container=main/0",
			"default/web ContainerRemoved pod=uid-1 container=main/0",
		} {
			assert.Contains(t, out.String(), want)
		}
	})
}
