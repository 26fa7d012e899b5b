package logpath_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logpath"
	"github.com/sublet-dev/agent/runtime"
)

func ExampleContainer() {
	pod := runtime.Pod{Namespace: "default", Name: "web", UID: "u1"}
	fmt.Println(logpath.Container(&pod, &runtime.Container{Name: "app", Attempt: 2}))
	// Output: default_web_u1/app/2.log true
}

func TestContainer_RejectsInvalidNames(t *testing.T) {
	for _, tt := range []struct{ namespace, name, uid, container string }{
		{"", "web", "u1", "app"},
		{"ns", "", "u1", "app"},
		{"ns", "web", "", "app"},
		{"ns", "web", "u1", ""},
		{"ns", "web", "u1", "."},
		{"ns", "web", "u1", ".."},
		{"ns", "web", "u1", "a/b"},
		{"ns", "web", "u1", `a\b`},
		{"ns", "web", "u1", "a\x00"},
		{"..", "/", "u1", "app"},
		{"ns", "../../web", "u1", "app"},
		{"ns", "web", "u1/x", "app"},
	} {
		pod := runtime.Pod{Namespace: tt.namespace, Name: tt.name, UID: types.UID(tt.uid)}
		path, ok := logpath.Container(&pod, &runtime.Container{Name: tt.container})
		assert.False(t, ok, "%q", tt)
		assert.Empty(t, path, "%q", tt)
	}
}

// Whatever names a pod has, its log is two directories below the logs directory.
func FuzzContainer(f *testing.F) {
	f.Add("ns", "web", "u1", "app")
	f.Add("..", "..", "..", "..")
	f.Fuzz(func(t *testing.T, namespace, name, uid, container string) {
		pod := runtime.Pod{Namespace: namespace, Name: name, UID: types.UID(uid)}
		path, ok := logpath.Container(&pod, &runtime.Container{Name: container})
		if ok && (!filepath.IsLocal(path) || strings.Count(path, "/") != 2 || filepath.Clean(path) != path) {
			t.Fatalf("%q is not a log", path)
		}
	})
}
