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

// AnnotationStatic says whether a pod is static, "true" or "false", where the name of
// its source would say otherwise to whoever goes by the kubelet's names.
const AnnotationStatic = "sublet.dev/static"

// SourceAPI is the source of pods that an API server hands out.
const SourceAPI = "api"

// AssignStaticIdentity gives a pod from a manifest the identity that it keeps for as long
// as its content stays the same: a name that ends in -<nodeName>, a namespace,
// a UID made from node, origin and content, and the annotations for source and
// hash. A UID that the manifest brings is not kept, since changed content has
// to be a new pod. The pod tolerates all NoExecute taints, as there is no one
// to move it elsewhere.
//
// Call it with what Decode returned, before Default: the hash is then one of
// what the manifest says, whatever is defaulted by later versions.
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

// AnnotateSource notes on the pod, of whatever source, where it came from and when it
// was first seen. A former note of when is kept.
func AnnotateSource(pod *corev1.Pod, source string, at time.Time) {
	notes := map[string]string{AnnotationSource: source}
	if pod.Annotations[AnnotationFirstSeen] == "" {
		notes[AnnotationFirstSeen] = at.UTC().Format(time.RFC3339Nano)
	}
	annotate(pod, notes)
}

// MarkStatic notes on the pod, after MarkSeen, whether it is static, as its source
// says. A former note is not kept.
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
