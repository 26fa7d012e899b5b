package kubeapi

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
)

// seconds is the resolution of times in the API.
const seconds = time.Second

func compare(a, b string) int { return cmp.Compare(a, b) }

// derivedUID returns a UID in the usual form that depends on the name alone.
func derivedUID(kind, name string) types.UID {
	sum := sha256.Sum256([]byte(kind + "/" + name))
	text := hex.EncodeToString(sum[:16])
	return types.UID(text[:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:])
}

// asConfigMap returns an object as a ConfigMap, or nil for a Secret.
func asConfigMap(o podspec.Object) *corev1.ConfigMap {
	if o.Kind != podspec.ConfigMap {
		return nil
	}
	cm := &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, UID: derivedUID("configmap", o.Namespace+"/"+o.Name)},
	}
	for key, value := range o.Data {
		if utf8.Valid(value) {
			set(&cm.Data, key, string(value))
		} else {
			set(&cm.BinaryData, key, value)
		}
	}
	return cm
}

// set adds to a map, which may be nil.
func set[V any](m *map[string]V, key string, value V) {
	if *m == nil {
		*m = map[string]V{}
	}
	(*m)[key] = value
}
