package podsource_test

import (
	"context"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
)

// SR-11: an invalid pod of another owner is delivered as such, and nothing waits for it.
func TestMux_DeliversInvalidPodOfAnotherOwner(t *testing.T) {
	bubble(t, func(t *testing.T) {
		source := podsource.NewMemory(pod("x", ""), pod("y", "1"))
		r := start(t, podsource.NotStatic(source))
		assert.Equal(t, []string{"ADD a y=1 x="}, r.delivered())
		got, ok := r.mux.Pod("uid-x")
		require.True(t, ok)
		assert.Contains(t, podsource.InvalidReason(got), "spec.containers[0].image")
		assert.False(t, podspec.IsStatic(got))
		assert.Equal(t, "a", got.Annotations[podspec.AnnotationSource])
		assert.True(t, r.mux.HasSynced("a"))
		assert.False(t, r.mux.MayBeDesired("a", "default", "x"))
		require.Len(t, r.mux.Errors(), 1)
		assert.Equal(t, got, r.mux.Errors()[0].RejectedPod)
		assert.Nil(t, r.mux.Errors()[0].RetainedPod)
		assert.Empty(t, r.events, "who rejects the pod reports it")

		source.Put(pod("y", "2"), pod("x", ""))
		assert.Equal(t, []string{"UPDATE a y=2"}, r.delivered())

		deleted := pod("x", "")
		deleted.DeletionTimestamp, deleted.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Now()}, new(int64(30))
		source.Put(deleted)
		assert.Equal(t, []string{"DELETE a x="}, r.delivered())
		source.Delete("default", "x")
		assert.Equal(t, []string{"REMOVE a x="}, r.delivered())
		assert.Empty(t, r.errors())
	})
}

// SR-11: the mark follows the validity of the pod, and a valid version stays.
func TestMux_InvalidPodBecomesValid(t *testing.T) {
	bubble(t, func(t *testing.T) {
		forged := pod("y", "1")
		forged.Annotations = map[string]string{podsource.AnnotationInvalid: "forged"}
		source := podsource.NewMemory(pod("x", ""), forged)
		r := start(t, podsource.NotStatic(source))
		r.delivered()
		got, _ := r.mux.Pod("uid-y")
		assert.Empty(t, podsource.InvalidReason(got), "no pod marks itself")

		source.Put(pod("x", "1"))
		assert.Equal(t, []string{"UPDATE a x=1"}, r.delivered())
		got, _ = r.mux.Pod("uid-x")
		assert.Empty(t, podsource.InvalidReason(got))
		source.Put(pod("x", ""))
		assert.Empty(t, r.delivered())
		got, _ = r.mux.Pod("uid-x")
		assert.Equal(t, "1", got.Spec.Containers[0].Image)
		assert.Empty(t, podsource.InvalidReason(got))
		assert.Nil(t, r.mux.Errors()[0].RejectedPod)
	})
}

// SR-11: of an invalid pod only what is valid is delivered.
func TestMux_ReducesInvalidPod(t *testing.T) {
	for name, tt := range map[string]struct {
		change     func(*corev1.Pod)
		delivered  bool
		containers int
	}{
		"volume": {func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "../../evil", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		}, true, 1},
		"container": {func(p *corev1.Pod) { p.Spec.Containers[0].Name = "../../evil" }, true, 0},
		"label":     {func(p *corev1.Pod) { p.Labels = map[string]string{"../../evil": ""} }, true, 0},
		"amount": {func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: *resource.NewScaledQuantity(1, math.MaxInt32)}
		}, true, 0},
		"many": {func(p *corev1.Pod) {
			p.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: strings.Repeat("ä", 5000), ContainerPort: 1}}
		}, true, 1},
		"name":  {func(p *corev1.Pod) { p.Name = "../../evil" }, false, 0},
		"UID":   {func(p *corev1.Pod) { p.UID = "../../evil" }, false, 0},
		"space": {func(p *corev1.Pod) { p.Namespace = "../../evil" }, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				invalid := pod("x", "1")
				tt.change(invalid)
				r := start(t, podsource.NotStatic(podsource.NewMemory(invalid)))
				synctest.Wait()
				pods := r.mux.Pods()
				assert.Equal(t, tt.delivered, len(pods) == 1)
				for _, got := range pods {
					assert.NotEmpty(t, podsource.InvalidReason(got))
					assert.LessOrEqual(t, len(podsource.InvalidReason(got)), 1000)
					assert.Len(t, got.Spec.Containers, tt.containers)
					assert.Empty(t, got.Labels)
					assert.Empty(t, got.Spec.Volumes)
				}
				assert.Equal(t, tt.delivered, r.mux.HasSynced("a"))
				assert.NotEmpty(t, r.errors())
			})
		})
	}
}

// bareSource delivers a pod without an origin and a UID, as the first version of most sources does.
type bareSource struct{}

func (bareSource) Watch(ctx context.Context, deliver func(podsource.Set)) error {
	bare := pod("x", "1")
	bare.UID = ""
	deliver(podsource.Set{Pods: []podsource.Manifest{{Pod: bare}}})
	<-ctx.Done()
	return nil
}

// The error of a pod that nothing identifies says what its source has to give it.
func TestMux_PodWithoutIdentity(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := start(t, bareSource{})
		assert.Empty(t, r.delivered())
		require.Len(t, r.mux.Errors(), 1)
		assert.ErrorContains(t, r.mux.Errors()[0].Err, "metadata.uid: required: a Manifest needs an Origin or a pod with a UID")
	})
}
