package pleg

import (
	"hash/maphash"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// sameObject reports whether a pod that the runtime reports as an object has the same
// status. Its other fields come from the desired pod.
func sameObject(a, b *corev1.Pod) bool {
	if a == nil || b == nil {
		return a == b
	}
	return equality.Semantic.DeepEqual(a.Status, b.Status)
}

// objectFingerprint is the part of a fingerprint that depends on the status of an object.
func (g *Generator) objectFingerprint(pod *corev1.Pod) uint64 {
	encoded, err := pod.Status.Marshal() // maps are sorted
	if err != nil {                      // text that is not UTF-8
		encoded = []byte(pod.Status.String())
	}
	return mix64(maphash.Bytes(g.seed, encoded))
}
