package podsource

import (
	"testing"

	"github.com/sublet-dev/agent/podspec"
)

const (
	one = "apiVersion: v1\nkind: Pod\nmetadata: {name: one}\nspec: {containers: [{name: c, image: i}]}\n"
	two = "apiVersion: v1\nkind: Pod\nmetadata: {name: two}\nspec: {containers: [{name: c, image: i}]}\n---\n" +
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: conf}\ndata: {k: v}\n"
)

// SR-4: whatever a file turns into, while it cannot be read as a whole nothing
// that it stood for is lost, and nothing is there twice.
func FuzzParse(f *testing.F) {
	f.Add([]byte(one), []byte(one+"---\n"+two))
	f.Add([]byte(one+"---\n"+two), []byte("kind: ["))
	f.Add([]byte(two), []byte(two[:100]))
	f.Add([]byte(`{"kind":"List","apiVersion":"v1","items":[]}`), []byte(""))
	f.Fuzz(func(t *testing.T, before, after []byte) {
		opt := podspec.DecodeOptions{MaxBytes: 1 << 16}
		last, _ := parse(before, opt, content{})
		now, err := parse(after, opt, last)
		names := map[[2]string]int{}
		for _, p := range now.pods {
			names[nameInManifest(p)]++
		}
		if err == nil && len(now.retained) > 0 {
			t.Errorf("a good version keeps %d pods", len(now.retained))
		}
		for _, p := range last.pods {
			if err != nil && names[nameInManifest(p)] == 0 {
				t.Errorf("pod %v is lost", nameInManifest(p))
			}
		}
		for _, p := range now.retained {
			if n := names[nameInManifest(p)]; n != 1 && len(last.pods) == 1 {
				t.Errorf("pod %v is there %d times", nameInManifest(p), n)
			}
		}
		objects := map[podspec.Ref]bool{}
		for _, o := range now.objects {
			objects[o.Ref] = true
		}
		for _, o := range last.objects {
			if err != nil && !objects[o.Ref] {
				t.Errorf("object %v is lost", o.Ref)
			}
		}
		reparsed, _ := parse(after, opt, now)
		if err != nil && len(reparsed.pods) != len(now.pods) {
			t.Errorf("read again, %d pods become %d", len(now.pods), len(reparsed.pods))
		}
	})
}
