package podspec

import (
	"bytes"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// Whatever is read in can be defaulted, validated and identified, is the same
// when written out and read decoded, and its identity with it.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		web, "---\n" + web + "...\n" + web, "{}", "[", "a: &a [*a]", "a: &a b\nc: *a", "--- {}\n---\t#\n",
		`{"apiVersion":"v1","kind":"List","items":[{"kind":"Pod","apiVersion":"v1"}]} {"a":1}`,
		"apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {a: YQ==}\nstringData: {b: c}",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: i, resources: {limits: {cpu: 1e-9}}}]}",
		"\xef\xbb\xbf# x\n%YAML 1.1\n---\n!!binary x", "? a\n: b", "<<: {a: b}",
	} {
		f.Add([]byte(seed), false)
	}
	f.Fuzz(func(t *testing.T, data []byte, lenient bool) {
		if len(data) > 1<<16 {
			return
		}
		pods, objects, _ := Decode(data, DecodeOptions{Lenient: lenient, MaxBytes: 1 << 16})
		for _, o := range objects {
			if o.Name == "" || o.Namespace == "" || ValidateObject(o) != nil {
				t.Fatalf("object %+v", o.Ref)
			}
		}
		for _, pod := range pods {
			checkDecoded(t, pod)
		}
	})
}

func checkDecoded(t *testing.T, pod *corev1.Pod) {
	written, err := yaml.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	decoded, _, err := Decode(written, DecodeOptions{})
	if err != nil || len(decoded) != 1 {
		t.Fatalf("decode again: %v\n%s", err, written)
	}
	if twice, _ := yaml.Marshal(decoded[0]); !bytes.Equal(twice, written) {
		t.Fatalf("written decoded:\n%s\nwas\n%s", twice, written)
	}
	for _, p := range []*corev1.Pod{pod, decoded[0]} {
		AssignStaticIdentity(p, "n", "file", "/f")
		Default(p)
	}
	if pod.UID != decoded[0].UID {
		t.Fatalf("identities differ: %s", written)
	}
	_, _, _, _ = Requests(pod), Limits(pod), ObjectRefs(pod), Unsupported(pod)
	if Validate(pod) == nil && QOS(pod) == "" {
		t.Fatal("no class")
	}
}
