package podsource_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

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

// podsOnly is a source without objects.
type podsOnly struct{ podsource.Source }

func (p podsOnly) PodsOnly() bool { return true }

// Objects of another place are used before a source without objects has synced: a node
// that starts without its API server has them on disk.
func TestMux_PodsOnlySource(t *testing.T) {
	incomplete := func() podsource.Source {
		return watchFunc(func(ctx context.Context, deliver func(podsource.Set)) error {
			deliver(podsource.Set{Incomplete: true})
			<-ctx.Done()
			return nil
		})
	}
	for name, tt := range map[string]struct {
		source   podsource.Source
		notFound bool
	}{
		"a source that may have the object": {incomplete(), false},
		"a source without objects":          {podsOnly{incomplete()}, true},
		"a decorated one":                   {podsource.Cached(podsource.NotStatic(decorated{podsOnly{incomplete()}}), t.TempDir()), true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := start(t, tt.source)
				r.delivered()
				_, err := r.mux.Object(t.Context(), podspec.Ref{Kind: podspec.ConfigMap, Namespace: "default", Name: "settings"})
				assert.Equal(t, tt.notFound, errors.Is(err, podspec.ErrObjectNotFound), err)
			})
		})
	}
}

// SR-8: pods of a source without objects do not wait for a manifest of another source that cannot be
// read. Those that may need objects of that source do.
func TestMux_ObjectsBesideInvalidManifest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		using := func(name, object string) *corev1.Pod {
			p := pod(name, "i")
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: object},
			}}}}
			return p
		}
		cluster := podsource.Set{Pods: []podsource.Manifest{{Pod: using("p", "of-cluster")}, {Pod: using("q", "shared")}}}
		files := podsource.Set{Incomplete: true, Pods: []podsource.Manifest{{Pod: using("r", "of-files")}, {Pod: using("s", "shared")}}}
		r := start(t, podsOnly{setSource(cluster)}, setSource(files))
		r.delivered()
		for name, notFound := range map[string]bool{"of-cluster": true, "of-a-volume": true, "of-files": false, "shared": false} {
			_, err := r.mux.Object(t.Context(), podspec.Ref{Kind: podspec.ConfigMap, Namespace: "default", Name: name})
			assert.Equal(t, notFound, errors.Is(err, podspec.ErrObjectNotFound), "%s: %v", name, err)
		}
	})
}
