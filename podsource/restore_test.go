package podsource_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
)

// SR-7: the first of a full name stays over a restart, when both are there from the beginning.
func TestMux_DuplicateNameAfterARestart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dir, k := manifestDir(map[string]string{"m.yaml": manifest("x", "1")}), newFakeNotifier()
		r := start(t, podsource.File("m", podsource.FileFS(dir), podsource.FileNotifier(newFakeNotifier())))
		assert.Equal(t, []string{"ADD a x-n1=1"}, r.delivered())
		before := r.mux.Pods()

		dir.write("a.yaml", manifest("x", "2"))
		mux, err := podsource.New(podsource.Config{NodeName: "n1", Sources: []podsource.NamedSource{
			{Name: "a", Source: podsource.File("m", podsource.FileFS(dir), podsource.FileNotifier(k))},
		}})
		require.NoError(t, err)
		mux.Restore(before...)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- mux.Run(ctx) }()
		change := <-mux.Changes()
		require.Len(t, change.Pods, 1)
		require.Equal(t, before[0].UID, change.Pods[0].UID)
		require.Len(t, mux.Errors(), 1)
		assert.Contains(t, mux.Errors()[0].Error(), "m/a.yaml: pod default/x-n1 rejected")

		dir.write("m.yaml", manifest("x", "3"))
		k.notify()
		for change := range mux.Changes() {
			if change.Op == podsource.Add {
				assert.Equal(t, "3", change.Pods[0].Spec.Containers[0].Image, "it keeps its name through an edit")
				break
			}
		}
		cancel()
		require.NoError(t, <-done)
	})
}

// gated is a source that delivers nothing until the gate is open.
func gated(gate <-chan struct{}, then podsource.Source) podsource.Source {
	return podsource.NotStatic(sourceFunc(func(ctx context.Context, deliver func(podsource.Set)) error {
		deliver(podsource.Set{Incomplete: true})
		select {
		case <-ctx.Done():
			return nil
		case <-gate:
			return then.Watch(ctx, deliver)
		}
	}))
}

// SR-7: of two pods with one full name the one that ran before a restart stays, whichever source is first.
func TestMux_DuplicateNameOfTwoSourcesAfterARestart(t *testing.T) {
	first, second := pod("x", "first"), pod("x", "second")
	first.UID, second.UID = "uid-first", "uid-second"
	ran := func(source string, change ...func(*corev1.Pod)) *corev1.Pod {
		p := first.DeepCopy()
		p.Annotations = map[string]string{podspec.AnnotationSource: source}
		for _, c := range change {
			c(p)
		}
		return p
	}
	for name, tc := range map[string]struct {
		restored *corev1.Pod
		slow     []*corev1.Pod // of source a
		before   []string      // source a has delivered
		after    []string
	}{
		"it is still desired":   {ran("a"), []*corev1.Pod{first}, nil, []string{"ADD a x=first"}},
		"it is gone":            {ran("a"), nil, nil, []string{"ADD b x=second"}},
		"it had ended":          {ran("a", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), []*corev1.Pod{first}, []string{"ADD b x=second"}, nil},
		"its source is gone":    {ran("removed"), nil, []string{"ADD b x=second"}, nil},
		"it is of the other":    {ran("b"), []*corev1.Pod{first}, []string{"ADD b x=second"}, nil},
		"there was no such pod": {ran("a", func(p *corev1.Pod) { p.Name = "y" }), []*corev1.Pod{first}, []string{"ADD b x=second"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				gate, b := make(chan struct{}), podsource.NewMemory()
				r := startRestored(t, []*corev1.Pod{tc.restored},
					podsource.NamedSource{Name: "a", Source: gated(gate, podsource.NewMemory(tc.slow...))}, podsource.NamedSource{Name: "b", Source: podsource.NotStatic(b)})
				require.Empty(t, r.delivered())
				b.Put(second)
				require.Equal(t, tc.before, r.delivered())
				if tc.before == nil {
					assert.Contains(t, r.errors(), "source b: pod default/x rejected: full name x_default already used by a pod that ran before, of source a, which has not delivered all its pods yet")
				}
				close(gate)
				assert.Equal(t, tc.after, r.delivered())
				switch {
				case len(tc.slow) == 0:
					assert.Empty(t, r.errors())
				case tc.before == nil:
					assert.Contains(t, r.errors(), "source b: pod default/x rejected: full name x_default already used by pod default/x of source a")
				default:
					assert.Contains(t, r.errors(), "source a: pod default/x rejected")
				}
			})
		})
	}
}

// SR-7: a pod that has ended does not take the name of one that runs, so that this one is not terminated for it.
func TestMux_DuplicateNameOfAnEndedPodAfterARestart(t *testing.T) {
	for _, order := range [][]string{{"a", "b"}, {"b", "a"}} {
		for _, running := range order {
			t.Run(order[0]+" first, "+running+" runs", func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					pods := map[string]*corev1.Pod{"a": pod("x", "a"), "b": pod("x", "b")}
					var restored []*corev1.Pod
					for source, p := range pods {
						p.UID = "uid-" + p.UID + types.UID(source)
						ran := p.DeepCopy()
						ran.Annotations = map[string]string{podspec.AnnotationSource: source}
						if ran.Status.Phase = corev1.PodRunning; source != running {
							ran.Status.Phase = corev1.PodSucceeded
						}
						restored = append(restored, ran)
					}
					gate := make(chan struct{})
					var named []podsource.NamedSource
					for _, source := range order {
						var src podsource.Source = podsource.NewMemory(pods[source])
						if source == running {
							src = gated(gate, src)
						}
						named = append(named, podsource.NamedSource{Name: source, Source: podsource.NotStatic(src)})
					}
					r := startRestored(t, restored, named...)
					assert.Empty(t, r.delivered())
					close(gate)
					assert.Equal(t, []string{"ADD " + running + " x=" + running}, r.delivered())
				})
			})
		}
	}
}
