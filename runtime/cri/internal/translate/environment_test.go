package translate

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// failingObjects cannot be reached.
type failingObjects struct{}

func (failingObjects) Object(context.Context, podspec.Ref) (podspec.Object, error) {
	return podspec.Object{Data: map[string][]byte{"A": []byte("1")}}, errors.New("unreachable")
}

// Only what is known to be missing is left out, if it is optional.
func TestTranslator_EnvironmentObjects(t *testing.T) {
	name := corev1.LocalObjectReference{Name: "o"}
	key := func(key string, optional *bool) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: name, Key: key, Optional: optional}}
	}
	from := func(optional *bool) []corev1.EnvFromSource {
		return []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: name, Optional: optional}}}
	}
	ref := podspec.Ref{Kind: podspec.ConfigMap, Namespace: "shop", Name: "o"}
	present := objects{ref: {Ref: ref, Data: map[string][]byte{
		"A": []byte("1"), "with blank": []byte("2"), "a=b": []byte("3"), "t\tab": []byte("4"), "\x7f": []byte("5"), "~": []byte("6"), "": []byte("7"),
	}}}
	yes, no := new(true), new(false)
	for name, tc := range map[string]struct {
		objects podspec.Objects
		spec    corev1.Container
		want    map[string]string
		err     string
	}{
		"a key":                          {present, corev1.Container{Env: []corev1.EnvVar{{Name: "X", ValueFrom: key("A", nil)}}}, map[string]string{"X": "1"}, ""},
		"a missing key":                  {present, corev1.Container{Env: []corev1.EnvVar{{Name: "X", ValueFrom: key("Z", nil)}}}, nil, `couldn't find key "Z"`},
		"a missing key that is required": {present, corev1.Container{Env: []corev1.EnvVar{{Name: "X", ValueFrom: key("Z", no)}}}, nil, `couldn't find key "Z"`},
		"a missing key that is optional": {present, corev1.Container{Env: []corev1.EnvVar{{Name: "X", ValueFrom: key("Z", yes)}}}, map[string]string{}, ""},
		"a missing object":               {objects{}, corev1.Container{Env: []corev1.EnvVar{{Name: "X", ValueFrom: key("A", no)}}}, nil, "ConfigMap shop/o: object not found"},
		"a missing optional object":      {objects{}, corev1.Container{Env: []corev1.EnvVar{{Name: "X", ValueFrom: key("A", yes)}}}, map[string]string{}, ""},
		"an unknown optional object":     {failingObjects{}, corev1.Container{Env: []corev1.EnvVar{{Name: "X", ValueFrom: key("A", yes)}}}, nil, "unreachable"},
		"no objects at all":              {nil, corev1.Container{Env: []corev1.EnvVar{{Name: "X", ValueFrom: key("A", nil)}}}, nil, "object not found"},
		"all keys that can be names":     {present, corev1.Container{EnvFrom: from(nil)}, map[string]string{"A": "1", "with blank": "2", "~": "6"}, ""},
		"all of a missing object":        {objects{}, corev1.Container{EnvFrom: from(no)}, nil, "object not found"},
		"all of an optional object":      {objects{}, corev1.Container{EnvFrom: from(yes)}, map[string]string{}, ""},
		"all of an unknown object":       {failingObjects{}, corev1.Container{EnvFrom: from(yes)}, nil, "unreachable"},
		"all of nothing":                 {present, corev1.Container{EnvFrom: []corev1.EnvFromSource{{}}}, nil, "envFrom names no source"},
		"a value from nothing":           {present, corev1.Container{Env: []corev1.EnvVar{{Name: "X", ValueFrom: &corev1.EnvVarSource{}}}}, nil, "env X: valueFrom names no source"},
		"a field that is none": {
			present,
			corev1.Container{Env: []corev1.EnvVar{{Name: "X", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.x"}}}}},
			nil, "env X: fieldRef spec.x",
		},
		"a resource that is none": {
			present,
			corev1.Container{Env: []corev1.EnvVar{{Name: "X", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "x"}}}}},
			nil, "env X: ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			tr := &Translator{Pod: &corev1.Pod{}, Options: runtime.RunOptions{Objects: tc.objects}}
			tr.Pod.Namespace = "shop"
			vars, err := tr.Environment(t.Context(), &tc.spec, nil)
			if tc.err != "" {
				require.ErrorContains(t, err, tc.err)
				return
			}
			require.NoError(t, err)
			got := make(map[string]string)
			for _, v := range vars {
				got[v.name] = v.value
			}
			assert.Equal(t, tc.want, got)
		})
	}
}

// The addresses in the environment are those that the node knows, not those that
// were written into the status.
func TestTranslator_EnvironmentAddresses(t *testing.T) {
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
	}
	pod := &corev1.Pod{Status: corev1.PodStatus{
		HostIP: "9.9.9.9", HostIPs: []corev1.HostIP{{IP: "9.9.9.9"}}, PodIP: "9.9.9.9", PodIPs: []corev1.PodIP{{IP: "9.9.9.9"}},
	}}
	spec := &corev1.Container{Env: []corev1.EnvVar{
		field("POD", "status.podIP"), field("PODS", "status.podIPs"), field("HOST", "status.hostIP"), field("HOSTS", "status.hostIPs"),
	}}
	tr := &Translator{Pod: pod, Options: runtime.RunOptions{HostIPs: []string{"192.0.2.1"}}}
	vars, err := tr.Environment(t.Context(), spec, []string{"10.0.0.1", "fd00::1"})
	require.NoError(t, err)
	assert.Equal(t, []EnvVar{{"POD", "10.0.0.1"}, {"PODS", "10.0.0.1,fd00::1"}, {"HOST", "192.0.2.1"}, {"HOSTS", "192.0.2.1"}}, vars)
}

// The binaryData of a ConfigMap is not for the environment, even if it is text.
func TestTranslator_EnvironmentWithoutBinaryData(t *testing.T) {
	cm := podspec.FromConfigMap(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "o"}, Data: map[string]string{"TEXT": "é\n", "EMPTY": ""},
		BinaryData: map[string][]byte{"ZIP": {'P', 'K', 0xff}, "ZERO": {'a', 0, 'b'}, "CERT": []byte("text")},
	})
	other := podspec.Object{Ref: podspec.Ref{Kind: podspec.ConfigMap, Namespace: "shop", Name: "other"}, Data: cm.Data} // does not tell
	tr := &Translator{Pod: &corev1.Pod{}, Options: runtime.RunOptions{Objects: objects{cm.Ref: cm, other.Ref: other}}}
	tr.Pod.Namespace = "shop"
	env := func(name string, optional *bool, keys ...string) ([]EnvVar, error) {
		var spec corev1.Container
		ref := corev1.LocalObjectReference{Name: name}
		for _, key := range keys {
			from := &corev1.ConfigMapKeySelector{LocalObjectReference: ref, Key: key, Optional: optional}
			spec.Env = append(spec.Env, corev1.EnvVar{Name: key, ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: from}})
		}
		if len(keys) == 0 {
			spec.EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: ref}}}
		}
		return tr.Environment(t.Context(), &spec, nil)
	}
	vars, err := env("o", nil)
	require.NoError(t, err)
	assert.Equal(t, []EnvVar{{"EMPTY", ""}, {"TEXT", "é\n"}}, vars)
	vars, err = env("other", nil)
	require.NoError(t, err)
	assert.Equal(t, []EnvVar{{"CERT", "text"}, {"EMPTY", ""}, {"TEXT", "é\n"}}, vars)
	for _, key := range []string{"ZIP", "ZERO", "CERT"} {
		_, err = env("o", nil, key)
		require.ErrorIs(t, err, runtime.ErrNotFound, key)
		require.ErrorContains(t, err, `couldn't find key "`+key+`" in ConfigMap shop/o but in its binaryData`)
	}
	vars, err = env("o", new(true), "ZIP", "CERT", "TEXT")
	require.NoError(t, err)
	assert.Equal(t, []EnvVar{{"TEXT", "é\n"}}, vars)
}
