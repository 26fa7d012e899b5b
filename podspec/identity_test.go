package podspec

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

func decodeOne(t *testing.T, manifest string) *corev1.Pod {
	t.Helper()
	pods, _, err := Decode([]byte(manifest), DecodeOptions{})
	require.NoError(t, err)
	require.Len(t, pods, 1)
	return pods[0]
}

// SR-3
func TestAssignStaticIdentity(t *testing.T) {
	pod := decodeOne(t, web)
	AssignStaticIdentity(pod, "Edge-1", "file", "/etc/m/web.yaml")
	assert.Equal(t, "web-edge-1", pod.Name)
	assert.Equal(t, "default", pod.Namespace)
	assert.Equal(t, "Edge-1", pod.Spec.NodeName)
	assert.Equal(t, corev1.PodPending, pod.Status.Phase)
	assert.Regexp(t, "^[0-9a-f]{32}$", pod.UID)
	assert.Equal(t, map[string]string{AnnotationSource: "file", AnnotationHash: string(pod.UID)}, pod.Annotations)
	assert.True(t, IsStatic(pod))
	assert.Equal(t, []corev1.Toleration{{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}}, pod.Spec.Tolerations)
	AnnotateSource(pod, "file", time.Unix(1, 0))
	first := pod.Annotations[AnnotationFirstSeen]
	AnnotateSource(pod, "file", time.Unix(2, 0))
	assert.Equal(t, first, pod.Annotations[AnnotationFirstSeen])
	assert.Equal(t, "1970-01-01T00:00:01Z", first)
}

// The toleration of all NoExecute taints is without end, also if the manifest has one with an end.
func TestAssignStaticIdentity_ToleratesNoExecuteForever(t *testing.T) {
	always := corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
	short, other := always, corev1.Toleration{Key: "k", Operator: corev1.TolerationOpExists}
	short.TolerationSeconds = new(int64(3))
	for _, own := range [][]corev1.Toleration{{always, other}, {short, other}} {
		pod, before := decodeOne(t, web), slices.Clone(own)
		pod.Spec.Tolerations = own
		AssignStaticIdentity(pod, "n", "file", "/web.yaml")
		assert.Equal(t, []corev1.Toleration{always, other}, pod.Spec.Tolerations)
		assert.Equal(t, before, own, "a copy of the pod may have the same list")
	}
}

// SR-3: the note stands only where the source's name would mislead, and changes no
// identity.
func TestMarkStatic(t *testing.T) {
	for name, tc := range map[string]struct {
		source string
		static bool
		want   string
	}{
		"a file":                {"file", true, ""},
		"an API server":         {SourceAPI, false, ""},
		"another control plane": {"cloud", false, "false"},
		"a source called api":   {SourceAPI, true, "true"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := decodeOne(t, web)
			AssignStaticIdentity(pod, "node", tc.source, "/web.yaml")
			uid := pod.UID
			AnnotateSource(pod, tc.source, time.Unix(1, 0))
			shared := pod.Annotations
			for range 2 { // the second time changes nothing
				MarkStatic(pod, tc.static)
				assert.Equal(t, tc.want, pod.Annotations[AnnotationStatic])
				assert.Equal(t, tc.static, IsStatic(pod))
			}
			assert.NotContains(t, shared, AnnotationStatic, "the map may be another pod's too")

			remade := decodeOne(t, web)
			MarkStatic(remade, !tc.static)
			AssignStaticIdentity(remade, "node", tc.source, "/web.yaml")
			assert.Equal(t, uid, remade.UID)
		})
	}
}

// SR-3: the UID is a hash of node, origin and content, and of nothing else. The
// value is pinned: a pod that runs while the agent is replaced by a later
// version must keep its identity.
func TestAssignStaticIdentity_IsStable(t *testing.T) {
	uid := func(change func(*corev1.Pod), node, source, origin string) string {
		pod := decodeOne(t, web)
		if change != nil {
			change(pod)
		}
		AssignStaticIdentity(pod, node, source, origin)
		return string(pod.UID)
	}
	base := uid(nil, "n", "file", "/f")
	assert.Equal(t, "72e46331080a1be4abd1f1c50c3cb05c", base)

	yes := true
	for name, same := range map[string]func(*corev1.Pod){
		"status":        func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning },
		"seen":          func(p *corev1.Pod) { p.Annotations = map[string]string{AnnotationFirstSeen: "now"} },
		"its own UID":   func(p *corev1.Pod) { p.UID = "abc" },
		"empty fields":  func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{}; p.Labels = map[string]string{} },
		"version":       func(p *corev1.Pod) { p.ResourceVersion = "1" },
		"empty structs": func(p *corev1.Pod) { p.Spec.SecurityContext = &corev1.PodSecurityContext{} },
	} {
		assert.Equal(t, base, uid(same, "n", "file", "/f"), name)
	}
	for name, other := range map[string]func(*corev1.Pod){
		"image":        func(p *corev1.Pod) { p.Spec.Containers[0].Image = "busybox:2" },
		"a false":      func(p *corev1.Pod) { no := false; p.Spec.EnableServiceLinks = &no },
		"a true":       func(p *corev1.Pod) { p.Spec.EnableServiceLinks = &yes },
		"label":        func(p *corev1.Pod) { p.Labels = map[string]string{"a": ""} },
		"annotation":   func(p *corev1.Pod) { p.Annotations = map[string]string{"a": "b"} },
		"namespace":    func(p *corev1.Pod) { p.Namespace = "other" },
		"empty string": func(p *corev1.Pod) { p.Spec.Containers[0].Args = []string{""} },
	} {
		assert.NotEqual(t, base, uid(other, "n", "file", "/f"), name)
	}
	assert.NotEqual(t, base, uid(nil, "m", "file", "/f"))
	assert.NotEqual(t, base, uid(nil, "n", "http", "/f"))
	assert.NotEqual(t, base, uid(nil, "n", "file", "/g"))
	assert.NotEqual(t, uid(nil, "n", "file", "/f"), uid(nil, "nf", "ile", "/f"), "parts do not run together")
}

func TestAssignStaticIdentity_CopiesMaps(t *testing.T) {
	pod := decodeOne(t, web)
	pod.Annotations = map[string]string{"a": "b"}
	was := pod.Annotations
	AssignStaticIdentity(pod, "n", "file", "/f")
	assert.Equal(t, map[string]string{"a": "b"}, was)
}
