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

// Annotations of the identity of a pod. The keys are the kubelet's.
const (
	AnnotationSource    = "kubernetes.io/config.source" // name of the source that contains the pod
	AnnotationHash      = "kubernetes.io/config.hash"   // static pods: the UID
	AnnotationFirstSeen = "kubernetes.io/config.seen"   // when the node received the pod, RFC 3339
	AnnotationMirror    = "kubernetes.io/config.mirror" // mirror pods: the UID of the static pod
)

// AnnotationStatic is "true" or "false" for pods for which the kubelet's rule, by the name
// of their source, would give the opposite. See IsStatic.
const AnnotationStatic = "sublet.dev/static"

// SourceAPI is the kubelet's name for the API server as a source of pods.
const SourceAPI = "api"

// AssignStaticIdentity sets, in place, the identity of a static pod by the kubelet's rules:
// a name that ends in -<nodeName>, a namespace, a UID derived from node, source, origin and
// content, and the annotations for source and hash. The identity stays the same as long as
// the content does; changed content is a new pod, so a UID in the manifest is replaced. The
// pod gets a toleration of all NoExecute taints, because it cannot run elsewhere. origin is
// the file or URL of the manifest.
//
// It must be called before Default, so that the UID does not depend on defaults that a
// later version adds.
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

// AnnotateSource sets the annotations AnnotationSource and, unless the pod has it,
// AnnotationFirstSeen. It replaces the map of annotations, which may be shared.
func AnnotateSource(pod *corev1.Pod, source string, at time.Time) {
	notes := map[string]string{AnnotationSource: source}
	if pod.Annotations[AnnotationFirstSeen] == "" {
		notes[AnnotationFirstSeen] = at.UTC().Format(time.RFC3339Nano)
	}
	annotate(pod, notes)
}

// MarkStatic decides whether the pod is static: it sets or removes AnnotationStatic. It must
// be called after AnnotateSource.
func MarkStatic(pod *corev1.Pod, static bool) {
	if _, ok := pod.Annotations[AnnotationStatic]; ok {
		pod.Annotations = maps.Clone(pod.Annotations)
		delete(pod.Annotations, AnnotationStatic)
	}
	if IsStatic(pod) != static {
		annotate(pod, map[string]string{AnnotationStatic: strconv.FormatBool(static)})
	}
}

// annotate replaces the map of annotations, because copies of the pod may share it.
func annotate(pod *corev1.Pod, notes map[string]string) {
	all := maps.Clone(pod.Annotations)
	if all == nil {
		all = make(map[string]string, len(notes))
	}
	maps.Copy(all, notes)
	pod.Annotations = all
}

// tolerateNoExecute adds a toleration of all NoExecute taints. It replaces one that is for a time only: a cluster would
// delete the mirror pod after it.
func tolerateNoExecute(pod *corev1.Pod) {
	want := corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
	all, found := slices.Clone(pod.Spec.Tolerations), false
	for i := range all {
		if all[i].MatchToleration(&want) {
			all[i], found = want, true
		}
	}
	if !found {
		all = append(all, want)
	}
	pod.Spec.Tolerations = all
}

// contentHash returns a hash of the fields that a manifest can have. The input is JSON with
// sorted keys and without empty values, so that the hash does not change when a later
// version of the API adds a field, or encodes an empty one.
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

// canonical returns sorted JSON without empty values. It panics for values that cannot be
// encoded; API objects can.
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

// prune removes nulls and empty maps and lists, and reports whether anything is left.
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
