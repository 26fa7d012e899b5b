package runtime_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// RT-4: a container whose hash has changed without a change of its spec runs on: an upgraded agent knows more fields of
// it, or sets more defaults. Only of pods of other sources the whole spec can change.
func TestPlan_FieldsOfAnotherVersion(t *testing.T) {
	before := newPod(always, regular("a"))
	api := map[string]string{podspec.AnnotationSource: podspec.SourceAPI}
	static := map[string]string{podspec.AnnotationSource: "file", podspec.AnnotationHash: string(before.UID)}
	field := func(c *corev1.Container) { c.WorkingDir = "/" }
	image := func(c *corev1.Container) { c.Image = "img:2" }
	got := full()
	for _, tt := range []struct {
		name        string
		annotations map[string]string
		change      func(*corev1.Container)
		image       string // the container has this one by its annotation
		injection   string
		kept        bool
	}{
		{name: "a field", annotations: api, change: field, image: "img:1", kept: true},
		{name: "a field of a static pod", annotations: static, change: field, image: "img:1", kept: true},
		{name: "another image", annotations: api, change: image, image: "img:1"},
		{name: "another image of a static pod", annotations: static, change: image, image: "img:1"},
		{name: "a field and an injection", annotations: api, change: field, image: "img:1", injection: got.Hash()},
		{name: "a field, with an unknown injection", annotations: api, change: field, image: "img:1", injection: runtime.UnknownInjection, kept: true},
		{name: "of an earlier version, which has kept no image", annotations: api, change: field},
		{name: "a field in another source", annotations: map[string]string{podspec.AnnotationSource: "memory"}, change: field, image: "img:1"},
		{name: "a field in a static source called api", annotations: map[string]string{
			podspec.AnnotationSource: podspec.SourceAPI, podspec.AnnotationStatic: "true",
		}, change: field, image: "img:1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod := before.DeepCopy()
			pod.Annotations = tt.annotations
			tt.change(&pod.Spec.Containers[0])
			view := newView(ready(0), running("a", hash(runtime.HashContainer(&before.Spec.Containers[0])), func(c *runtime.Container) { c.SpecImage = tt.image }))
			view.Injections = map[string]string{"a": tt.injection}
			plan := runtime.Plan(pod, view, testTime)
			assert.Equal(t, tt.kept, len(plan) == 0, show(plan))
		})
	}
}
