package podsource_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
)

// decorated is a Source that wraps another one.
type decorated struct{ podsource.Source }

func (d decorated) Unwrap() podsource.Source { return d.Source }

// SR-3: whether pods are static is for their source to say, not for its name, nor for
// the pods.
func TestMux_StaticSource(t *testing.T) {
	for name, tc := range map[string]struct {
		source   func(podsource.Source) podsource.Source
		named    string
		static   bool
		annotate string // what the annotation says; empty: it is not needed
	}{
		"a source that does not say":             {func(s podsource.Source) podsource.Source { return s }, "memory", true, ""},
		"a source that does not say, named api":  {func(s podsource.Source) podsource.Source { return s }, "api", true, "true"},
		"a source whose pods are not, named api": {podsource.NotStatic, "api", false, ""},
		"a source whose pods are not":            {podsource.NotStatic, "memory", false, "false"},
		"a decorated source whose pods are not":  {func(s podsource.Source) podsource.Source { return decorated{podsource.NotStatic(s)} }, "memory", false, "false"},
		"a cached source whose pods are not": {func(s podsource.Source) podsource.Source {
			return podsource.Cached(podsource.NotStatic(s), t.TempDir())
		}, "memory", false, "false"},
		"a decorated source that does not say":      {func(s podsource.Source) podsource.Source { return decorated{s} }, "memory", true, ""},
		"a decorator that says more than the other": {func(s podsource.Source) podsource.Source { return podsource.NotStatic(decorated{s}) }, "memory", false, "false"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				mine := pod("x", "1")
				mine.Annotations = map[string]string{podspec.AnnotationStatic: "maybe"}
				r := startNamed(t, podsource.NamedSource{Name: tc.named, Source: tc.source(podsource.NewMemory(mine))})
				r.delivered()
				got, ok := r.mux.Pod("uid-x")
				require.True(t, ok)
				assert.Equal(t, tc.static, podspec.IsStatic(got))
				assert.Equal(t, tc.annotate, got.Annotations[podspec.AnnotationStatic])
				assert.Equal(t, tc.named, got.Annotations[podspec.AnnotationSource])
				assert.Equal(t, "maybe", mine.Annotations[podspec.AnnotationStatic], "the source's pod is not written to")
			})
		})
	}
}
