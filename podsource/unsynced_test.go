package podsource_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
)

// saying hands over some Sets and then waits for its end.
func saying(sets ...podsource.Set) watchFunc {
	return func(ctx context.Context, deliver func(podsource.Set)) error {
		for _, s := range sets {
			deliver(s)
		}
		<-ctx.Done()
		return nil
	}
}

// SR-10: Unsynced returns the sources that have not synced, with their last error.
func TestMux_Unsynced(t *testing.T) {
	down := podsource.SourceError{Location: "http://x", Err: errors.Join(podsource.ErrUnavailable, errors.New("connection refused"))}
	invalid := podsource.SourceError{Location: "x.yaml", Err: errors.New("no manifest")}
	pods := []podsource.Manifest{{Pod: pod("x", "1")}}
	for name, tt := range map[string]struct {
		src  podsource.Source
		want string // empty: it is not waited for
	}{
		"silent":                        {saying(), "waiting for source a (since 2000-01-01 00:00:00)"},
		"breaks":                        {&breaking{}, "last error: source is unavailable: watch source: the connection broke)"},
		"unavailable":                   {saying(podsource.Set{Incomplete: true, Errors: []podsource.SourceError{down}}), "connection refused)"},
		"incomplete without a reason":   {saying(podsource.Set{Incomplete: true}), "waiting for source a"},
		"wants nothing":                 {saying(podsource.Set{}), ""},
		"wants a pod":                   {saying(podsource.Set{Pods: pods}), ""},
		"one manifest cannot be read":   {saying(podsource.Set{Incomplete: true, Errors: []podsource.SourceError{invalid}}), ""},
		"unavailable after it spoke":    {saying(podsource.Set{}, podsource.Set{Errors: []podsource.SourceError{down}}), ""},
		"known from its cache":          {saying(podsource.Set{Incomplete: true, Cached: true, Pods: pods}), ""},
		"known to want nothing then":    {saying(podsource.Set{Incomplete: true, Cached: true, Errors: []podsource.SourceError{down}}), ""},
		"a part is known, more may be":  {saying(podsource.Set{Incomplete: true, Pods: pods, Errors: []podsource.SourceError{down}}), ""},
		"broke after it spoke":          {&breaking{sets: []podsource.Set{{Pods: pods}}}, ""},
		"broke after a cache was found": {&breaking{sets: []podsource.Set{{Pods: pods, Incomplete: true, Cached: true}}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := start(t, tt.src)
				time.Sleep(100 * time.Millisecond)
				waits := r.mux.Unsynced()
				if tt.want == "" {
					require.Empty(t, waits)
					require.NoError(t, r.mux.FirstUnsynced())
					require.NoError(t, r.mux.Healthy())
					return
				}
				require.Len(t, waits, 1)
				require.Equal(t, waits[0], r.mux.FirstUnsynced())
				require.ErrorIs(t, r.mux.Healthy(), waits[0])
				assert.Equal(t, "a", waits[0].Source)
				assert.ErrorContains(t, waits[0], tt.want)
			})
		})
	}
}

// SR-10: a source that delivers nothing is reported after two minutes, until it does.
func TestMux_ReportsUnsyncedSource(t *testing.T) {
	bubble(t, func(t *testing.T) {
		speak := make(chan struct{})
		r := start(t, watchFunc(func(ctx context.Context, deliver func(podsource.Set)) error {
			<-speak
			deliver(podsource.Set{})
			<-ctx.Done()
			return nil
		}))
		time.Sleep(time.Minute)
		assert.Empty(t, r.errors())
		time.Sleep(time.Hour)
		assert.Contains(t, r.errors(), "source a: source is unavailable: source has not delivered its pods yet; its running pods are left alone")
		require.Len(t, r.events, 1)
		assert.Equal(t, podsource.ReasonUnavailable, r.events[0].Reason)
		close(speak)
		synctest.Wait()
		assert.Empty(t, r.errors())
	})
}

// A server that does not answer is no invalid manifest.
func TestMux_EventOfUnavailableSource(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &fakeServer{}
		s.says(503, "")
		r := start(t, ask(t, podsource.HTTPConfig{Transport: s}))
		synctest.Wait()
		s.says(200, "no manifest")
		time.Sleep(30 * time.Second)
		synctest.Wait()
		require.Len(t, r.events, 2)
		assert.Equal(t, podsource.ReasonUnavailable, r.events[0].Reason)
		assert.Equal(t, podsource.ReasonInvalid, r.events[1].Reason)
	})
}

// SL-3: pods of a previous process are expected until their source has synced without
// them. Desired pods always are.
func TestMux_Expected(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := start(t, saying(podsource.Set{Incomplete: true, Pods: []podsource.Manifest{{Pod: pod("desired", "1")}}}))
		time.Sleep(100 * time.Millisecond)
		restored := func(source, name string) *corev1.Pod {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{podspec.AnnotationSource: source}}}
		}
		var names []string
		for _, p := range r.mux.Expected([]*corev1.Pod{restored("a", "kept"), restored("removed source", "kept"), restored("a", "desired")}) {
			names = append(names, p.Name)
		}
		assert.Equal(t, []string{"kept", "kept", "desired"}, names)
	})
	bubble(t, func(t *testing.T) {
		r := start(t, saying())
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{podspec.AnnotationSource: "a"}}}
		assert.Contains(t, r.mux.WhyUnsynced(pod), "waiting for source a")
	})
	bubble(t, func(t *testing.T) {
		r := start(t, saying(podsource.Set{}))
		time.Sleep(100 * time.Millisecond)
		assert.Equal(t, "no source has delivered the pod yet", r.mux.WhyUnsynced(&corev1.Pod{}))
		assert.Empty(t, r.mux.Expected([]*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "dropped", Annotations: map[string]string{podspec.AnnotationSource: "a"}}}}))
	})
}
