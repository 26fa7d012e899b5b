package podsync_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/runtime"
)

// SL-5: a running pod is settled unless something that changes without an announcement decides
// about it: the content of volumes, a SoftAdmitter, an Injector, a failure, or its labels.
func TestSync_Settled(t *testing.T) {
	volume := func(v corev1.VolumeSource) func(*corev1.Pod, *podsync.Config, *fakeNode) {
		return func(pod *corev1.Pod, _ *podsync.Config, _ *fakeNode) {
			pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "v", VolumeSource: v})
		}
	}
	for name, tc := range map[string]struct {
		change func(*corev1.Pod, *podsync.Config, *fakeNode)
		want   bool
	}{
		"running":     {want: true},
		"emptyDir":    {change: volume(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}), want: true},
		"hostPath":    {change: volume(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{}}), want: true},
		"configMap":   {change: volume(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}})},
		"projected":   {change: volume(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}})},
		"claim":       {change: volume(corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}})},
		"not started": {change: func(_ *corev1.Pod, _ *podsync.Config, n *fakeNode) { n.observed = runtime.Pod{} }},
		"mount fails": {change: func(_ *corev1.Pod, _ *podsync.Config, n *fakeNode) {
			n.fail = map[string]error{"mount": errors.New("device is busy")}
		}},
		"soft admitter": {change: func(_ *corev1.Pod, c *podsync.Config, _ *fakeNode) {
			c.SoftAdmitters = []podsync.SoftAdmitter{admitter(func(context.Context) (podspec.AdmitResult, error) {
				return podspec.AdmitResult{Admitted: true}, nil
			})}
		}},
		"injector": {change: func(_ *corev1.Pod, c *podsync.Config, _ *fakeNode) {
			c.Injectors = []podsync.Injector{noInjection{}}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			n := &fakeNode{phase: corev1.PodRunning}
			cfg, pod := newConfig(t, n), newTestPod()
			n.observed = podThatRuns(pod)
			if tc.change != nil {
				tc.change(pod, &cfg, n)
			}
			syncer := newSyncer(t, cfg)
			for range 2 {
				out, err := syncer.Sync(t.Context(), pod, n.observed)
				require.Equal(t, n.fail != nil, err != nil)
				require.Equal(t, tc.want, out.Settled)
			}
		})
	}
}

// The deadline of a settled pod is a time at which it is synced.
func TestSync_SettledUntilDeadline(t *testing.T) {
	n := &fakeNode{phase: corev1.PodRunning, start: new(metav1.Now())}
	pod := newTestPod()
	n.observed = podThatRuns(pod)
	pod.Spec.ActiveDeadlineSeconds = new(int64(90))
	out, err := newSyncer(t, newConfig(t, n)).Sync(t.Context(), pod, n.observed)
	require.NoError(t, err)
	require.True(t, out.Settled)
	require.WithinDuration(t, time.Now().Add(90*time.Second), out.RequeueAt, 30*time.Second)
}

type noInjection struct{}

func (noInjection) Inject(context.Context, *corev1.Pod, *corev1.Container, bool) (runtime.Injection, error) {
	return runtime.Injection{}, nil
}

func podThatRuns(pod *corev1.Pod) runtime.Pod {
	c := &pod.Spec.Containers[0]
	return runtime.Pod{
		UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name, ObservedAt: time.Now(),
		Sandboxes:  []runtime.Sandbox{{ID: "s", State: runtime.SandboxReady, IPs: []string{"10.1.0.1"}}},
		Containers: []runtime.Container{{ID: "c", Name: c.Name, SandboxID: "s", State: runtime.Running, Hash: runtime.HashContainer(c)}},
	}
}
