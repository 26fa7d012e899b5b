package podspec

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Annotations in which a pod's identity is kept. The keys are the kubelet's.
const (
	AnnotationSource    = "kubernetes.io/config.source"
	AnnotationHash      = "kubernetes.io/config.hash"
	AnnotationFirstSeen = "kubernetes.io/config.seen"
	AnnotationMirror    = "kubernetes.io/config.mirror"
)

// AnnotationStatic is "true" or "false" for pods whose source has a name from which the
// kubelet's rule would conclude the opposite.
const AnnotationStatic = "sublet.dev/static"

// SourceAPI is the source of pods that an API server hands out.
const SourceAPI = "api"

// AssignStaticIdentity sets the identity of a pod from a manifest, which stays the same
// as long as the content does: a name that ends in -<nodeName>, a namespace, a UID
// derived from node, origin and content, and the annotations for source and hash. A
// UID in the manifest is replaced, because changed content must be a new pod. The pod
// gets a toleration of all NoExecute taints, because it cannot run elsewhere.
//
// It must be called before Default, so that the hash does not depend on defaults of
// later versions.
func AssignStaticIdentity(pod *corev1.Pod, nodeName, source, origin string) {
	hash := sha256.New()
	for _, part := range []string{nodeName, source, origin, contentHash(pod)} {
		hash.Write([]byte(part))
		hash.Write([]byte{0}) // so that no two lists of parts read the same
	}
	uid := hex.EncodeToString(hash.Sum(nil)[:16])

	pod.UID = types.UID(uid)
	pod.Name += "-" + strings.ToLower(nodeName)
	if pod.Namespace == "" {
		pod.Namespace = corev1.NamespaceDefault
	}
	pod.Spec.NodeName = nodeName
	annotate(pod, map[string]string{AnnotationSource: source, AnnotationHash: uid})
	tolerateNoExecute(pod)
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending}
}

// AnnotateSource sets the annotations for the source of the pod and, unless it is set,
// for the time when it was first observed.
func AnnotateSource(pod *corev1.Pod, source string, at time.Time) {
	notes := map[string]string{AnnotationSource: source}
	if pod.Annotations[AnnotationFirstSeen] == "" {
		notes[AnnotationFirstSeen] = at.UTC().Format(time.RFC3339Nano)
	}
	annotate(pod, notes)
}

// MarkStatic sets or removes the annotation that decides whether the pod is static. It
// must be called after AnnotateSource.
func MarkStatic(pod *corev1.Pod, static bool) {
	if _, ok := pod.Annotations[AnnotationStatic]; ok {
		pod.Annotations = maps.Clone(pod.Annotations)
		delete(pod.Annotations, AnnotationStatic)
	}
	if IsStatic(pod) != static {
		annotate(pod, map[string]string{AnnotationStatic: strconv.FormatBool(static)})
	}
}

// annotate does not write into the map that the pod came with: other views of
// the pod may share it.
func annotate(pod *corev1.Pod, notes map[string]string) {
	all := maps.Clone(pod.Annotations)
	if all == nil {
		all = make(map[string]string, len(notes))
	}
	maps.Copy(all, notes)
	pod.Annotations = all
}

func tolerateNoExecute(pod *corev1.Pod) {
	want := corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
	for _, t := range pod.Spec.Tolerations {
		if t.MatchToleration(&want) && t.TolerationSeconds == nil {
			return
		}
	}
	pod.Spec.Tolerations = append(slices.Clip(pod.Spec.Tolerations), want)
}

// contentHash is one of what a person can write into a manifest. It is taken of
// JSON with sorted keys and without what is empty, so that a field that a later
// version of the API adds, or writes out where it was left away before, changes
// no hash.
func contentHash(pod *corev1.Pod) string {
	written := corev1.Pod{Spec: pod.Spec}
	written.ObjectMeta = metav1.ObjectMeta{
		Name: pod.Name, Namespace: pod.Namespace, Labels: pod.Labels,
		Annotations: maps.Clone(pod.Annotations), Finalizers: pod.Finalizers,
	}
	for _, own := range []string{AnnotationSource, AnnotationHash, AnnotationFirstSeen, AnnotationStatic} {
		delete(written.Annotations, own)
	}
	sum := sha256.Sum256(canonical(written))
	return hex.EncodeToString(sum[:])
}

// canonical panics for what is no API object: everything else can be marshaled.
func canonical(v any) []byte {
	raw, err := json.Marshal(v)
	if err != nil {
		panic("podspec: marshal an API object: " + err.Error())
	}
	var tree any
	if err := json.Unmarshal(raw, &tree); err != nil {
		panic("podspec: unmarshal own JSON: " + err.Error())
	}
	tree, _ = prune(tree)
	out, err := json.Marshal(tree)
	if err != nil {
		panic("podspec: marshal a JSON tree: " + err.Error())
	}
	return out
}

// prune leaves away nulls and empty maps and lists, and says if anything is left.
func prune(v any) (any, bool) {
	switch v := v.(type) {
	case nil:
		return nil, false
	case map[string]any:
		for key, child := range v {
			if pruned, ok := prune(child); ok {
				v[key] = pruned
			} else {
				delete(v, key)
			}
		}
		return v, len(v) > 0
	case []any:
		for i, child := range v { // an element keeps its place: order has meaning
			v[i], _ = prune(child)
		}
		return v, len(v) > 0
	default:
		return v, true
	}
}
