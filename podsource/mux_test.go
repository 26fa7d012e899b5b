package podsource_test

import (
	"context"
	"errors"
	"strings"
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

// SR-1, SR-7: what happens to pods with a UID of their own.
func TestMux_ChangesOfPodsWithUID(t *testing.T) {
	bubble(t, func(t *testing.T) {
		source := podsource.NewMemory(pod("x", "1"), pod("y", "1"))
		r := start(t, source)
		assert.Equal(t, []string{"ADD a x=1 y=1"}, r.delivered())

		source.Put(pod("x", "2"))
		assert.Equal(t, []string{"UPDATE a x=2"}, r.delivered())

		source.Put(pod("x", "2"), pod("y", "1"))
		assert.Empty(t, r.delivered(), "nothing changed")

		ready := pod("x", "2")
		ready.Status.Phase = corev1.PodRunning
		source.Put(ready)
		assert.Equal(t, []string{"RECONCILE a x=2"}, r.delivered())

		renamed := ready.DeepCopy()
		renamed.ResourceVersion = "7"
		source.Put(renamed)
		assert.Empty(t, r.delivered(), "a version number asks for nothing")

		labelled := ready.DeepCopy()
		labelled.Labels = map[string]string{"k": "v"}
		source.Put(labelled)
		assert.Equal(t, []string{"UPDATE a x=2"}, r.delivered())

		deleted := labelled.DeepCopy()
		deleted.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		deleted.DeletionGracePeriodSeconds = new(int64(30))
		source.Put(deleted)
		assert.Equal(t, []string{"DELETE a x=2"}, r.delivered())

		sooner := deleted.DeepCopy()
		sooner.DeletionGracePeriodSeconds = new(int64(1))
		source.Put(sooner)
		assert.Equal(t, []string{"DELETE a x=2"}, r.delivered(), "a shorter grace")

		source.Delete("default", "x")
		assert.Equal(t, []string{"REMOVE a x=2"}, r.delivered())
		assert.Equal(t, []string{"y=1"}, r.desired())
	})
}

// What is handed over is defaulted, annotated, and not the source's own.
func TestMux_PodsAreDefaulted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		mine := pod("x", "1")
		mine.Namespace = ""
		source := podsource.NewMemory(mine)
		r := start(t, source)
		r.delivered()
		mine.Spec.Containers[0].Image = "changed"
		got, ok := r.mux.Pod("uid-x")
		require.True(t, ok)
		assert.Equal(t, "1", got.Spec.Containers[0].Image)
		assert.Equal(t, corev1.RestartPolicyAlways, got.Spec.RestartPolicy)
		assert.Equal(t, "default", got.Namespace)
		assert.Equal(t, "a", got.Annotations[podspec.AnnotationSource])
		first := got.Annotations[podspec.AnnotationFirstSeen]
		assert.NotEmpty(t, first)

		time.Sleep(time.Hour)
		source.Put(pod("x", "2"))
		r.delivered()
		got, _ = r.mux.Pod("uid-x")
		assert.Equal(t, first, got.Annotations[podspec.AnnotationFirstSeen], "when it was first seen stays")
		_, ok = r.mux.Pod("uid-unknown")
		assert.False(t, ok)
	})
}

// SR-3: a changed manifest is another pod; the old one goes first.
func TestMux_EditedManifestIsRecreated(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dir, k := manifestDir(map[string]string{"x.yaml": manifest("x", "1")}), newFakeNotifier()
		r := start(t, podsource.File("m", podsource.FileFS(dir), podsource.FileNotifier(k)))
		assert.Equal(t, []string{"ADD a x-n1=1"}, r.delivered())
		before := r.mux.Pods()[0]
		assert.Equal(t, "default", before.Namespace)
		for _, key := range []string{podspec.AnnotationSource, podspec.AnnotationHash, podspec.AnnotationFirstSeen} {
			assert.NotEmpty(t, before.Annotations[key], key)
		}

		dir.write("x.yaml", manifest("x", "2"))
		k.notify()
		time.Sleep(100 * time.Millisecond) // SR-5
		assert.Equal(t, []string{"REMOVE a x-n1=1", "ADD a x-n1=2"}, r.delivered())
		assert.NotEqual(t, before.UID, r.mux.Pods()[0].UID)

		dir.write("x.yaml", manifest("x", "1"))
		k.notify()
		time.Sleep(100 * time.Millisecond)
		r.delivered()
		assert.Equal(t, before.UID, r.mux.Pods()[0].UID, "the same content is the same pod")
	})
}

// SR-7: the first of a full name stays, whatever comes before it in the alphabet
// or becomes of it, and the second is taken up when it has gone.
func TestMux_DuplicateName(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dir, k := manifestDir(map[string]string{"m.yaml": manifest("x", "1")}), newFakeNotifier()
		other := podsource.NewMemory()
		r := start(t, other, podsource.File("m", podsource.FileFS(dir), podsource.FileNotifier(k)))
		step := func() []string { k.notify(); time.Sleep(time.Second); return r.delivered() }
		assert.Equal(t, []string{"ADD b x-n1=1"}, r.delivered())

		dir.write("a.yaml", manifest("x", "2"))
		assert.Empty(t, step())
		assert.Contains(t, r.errors(), "m/a.yaml: pod default/x-n1 rejected: full name x-n1_default already used by pod default/x-n1 of m/m.yaml")
		require.Len(t, r.events, 1)
		assert.Equal(t, podsource.ReasonDuplicate, r.events[0].Reason)
		assert.Contains(t, r.events[0].Message, "m/a.yaml")
		assert.Contains(t, r.events[0].Message, "m/m.yaml")

		other.Put(pod("x-n1", "3"))
		assert.Empty(t, step(), "an earlier source does not matter either")

		dir.write("m.yaml", manifest("x", "4"))
		assert.Equal(t, []string{"REMOVE b x-n1=1", "ADD b x-n1=4"}, step(), "the first keeps its name through an edit")

		dir.remove("m.yaml")
		assert.Equal(t, []string{"REMOVE b x-n1=4", "ADD a x-n1=3"}, step())
		other.Delete("default", "x-n1")
		assert.Equal(t, []string{"REMOVE a x-n1=3", "ADD b x-n1=2"}, step())
		assert.Empty(t, r.errors())
	})
}

// SR-7: who deletes a pod that was rejected for its name waits for its end.
func TestMux_DuplicateNameIsDeleted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		first, second, third := pod("x", "1"), pod("x", "2"), pod("x", "3")
		first.UID, second.UID, third.UID = "first", "second", "third"
		static, source, other := podsource.NewMemory(first), podsource.NewMemory(), podsource.NewMemory()
		r := start(t, static, podsource.NotStatic(source), podsource.NotStatic(other))
		require.Equal(t, []string{"ADD a x=1"}, r.delivered())
		source.Put(second)
		other.Put(third)
		require.Empty(t, r.delivered())
		second.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		source.Put(second)
		assert.Equal(t, []string{"ADD b x=2"}, r.delivered())
		assert.Contains(t, r.errors(), "pod default/x rejected: full name x_default already used by pod default/x of source a")
		assert.NotContains(t, r.errors(), "source b")
		static.Delete("default", "x")
		assert.Equal(t, []string{"REMOVE a x=1"}, r.delivered())
		source.Delete("default", "x")
		assert.Equal(t, []string{"REMOVE b x=2", "ADD c x=3"}, r.delivered())
		assert.Empty(t, r.errors())
		assert.Equal(t, []string{"x=3"}, r.desired())
	})
}

func TestMux_DuplicateUID(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a, b := pod("x", "1"), pod("y", "1")
		b.UID = a.UID
		r := start(t, podsource.NewMemory(a, b))
		assert.Equal(t, []string{"ADD a x=1"}, r.delivered())
		assert.Contains(t, r.errors(), "UID uid-x already used")
	})
}

// A pod that is rejected for its UID does not keep its name from another source's pod, at once or later.
func TestMux_DuplicateUIDFreesName(t *testing.T) {
	bubble(t, func(t *testing.T) {
		x, y, other := pod("x", "1"), pod("y", "1"), pod("y", "2")
		y.UID, other.UID = x.UID, "uid-other"
		first, second := podsource.NewMemory(x, y), podsource.NewMemory(other)
		r := start(t, first, second)
		assert.ElementsMatch(t, []string{"ADD a x=1", "ADD b y=2"}, r.delivered())
		assert.Contains(t, r.errors(), "default/y rejected")
		first.Put(pod("z", "1"))
		assert.Equal(t, []string{"ADD a z=1"}, r.delivered())
		second.Delete("default", "y")
		assert.Equal(t, []string{"REMOVE b y=2"}, r.delivered())
	})
}

// A reader that is busy gets the way to what is wanted when it comes back.
func TestMux_CoalescesChangesForSlowReader(t *testing.T) {
	bubble(t, func(t *testing.T) {
		source := podsource.NewMemory(pod("x", "1"), pod("gone", "1"))
		mux, err := podsource.New(podsource.Config{NodeName: "n", Sources: []podsource.NamedSource{{Name: "m", Source: source}}})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- mux.Run(ctx) }()
		first := <-mux.Changes()
		assert.Len(t, first.Pods, 2)

		for i := range 50 {
			source.Put(pod("x", string(rune('A'+i))))
			source.Put(pod("brief", "1"))
			synctest.Wait()
			source.Delete("default", "brief")
			synctest.Wait()
		}
		source.Delete("default", "gone")
		synctest.Wait()
		c := <-mux.Changes()
		assert.Equal(t, podsource.Remove, c.Op)
		assert.Equal(t, "gone", c.Pods[0].Name)
		c = <-mux.Changes()
		assert.Equal(t, podsource.Update, c.Op)
		assert.Equal(t, string(rune('A'+49)), c.Pods[0].Spec.Containers[0].Image)
		synctest.Wait()
		select {
		case c := <-mux.Changes():
			t.Errorf("one more: %v", c)
		default:
		}
		cancel()
		require.NoError(t, <-done)
		assert.Error(t, mux.Run(t.Context()), "a second Run")
	})
}

// SR-8: a source is ready once it has spoken, for itself alone.
func TestMux_HasSyncedPerSource(t *testing.T) {
	bubble(t, func(t *testing.T) {
		later := make(chan podsource.Set)
		r := start(t, podsource.NewMemory(pod("x", "1")), sourceFunc(func(ctx context.Context, deliver func(podsource.Set)) error {
			for {
				select {
				case <-ctx.Done():
					return nil
				case s := <-later:
					deliver(s)
				}
			}
		}))
		assert.Equal(t, []string{"ADD a x=1"}, r.delivered(), "one silent source holds up no other")
		assert.True(t, r.mux.HasSynced("a"))
		assert.False(t, r.mux.HasSynced("b"))
		assert.False(t, r.mux.HasSynced("former"), "what no source bears is judged when all have spoken")
		assert.False(t, r.mux.MayBeDesired("a", "default", "stray"))
		assert.True(t, r.mux.MayBeDesired("b", "default", "stray"))
		assert.True(t, r.mux.MayBeDesired("former", "default", "stray"))
		_, err := r.mux.Object(t.Context(), podspec.Ref{Kind: podspec.Secret, Namespace: "default", Name: "s"})
		require.Error(t, err)
		assert.NotErrorIs(t, err, podspec.ErrObjectNotFound, "b may have it")

		later <- podsource.Set{Incomplete: true}
		synctest.Wait()
		assert.False(t, r.mux.HasSynced("b"))
		assert.True(t, r.mux.MayBeDesired("b", "default", "stray"))
		assert.False(t, r.mux.MayBeDesired("b", "default", "x"), "another takes its place")

		later <- podsource.Set{}
		synctest.Wait()
		assert.True(t, r.mux.HasSynced("b"))
		assert.True(t, r.mux.HasSynced("former"))
		assert.False(t, r.mux.MayBeDesired("b", "default", "stray"))

		later <- podsource.Set{Incomplete: true}
		synctest.Wait()
		assert.True(t, r.mux.HasSynced("b"), "whatever it wants since was told or never ran")
	})
}

type sourceFunc func(context.Context, func(podsource.Set)) error

func (f sourceFunc) Watch(ctx context.Context, deliver func(podsource.Set)) error {
	return f(ctx, deliver)
}

// A failure of a source is reported, the source is watched again, and no pod is
// removed. AG-9: a panic is a failure.
func TestMux_RetriesFailedSource(t *testing.T) {
	bubble(t, func(t *testing.T) {
		tries := 0
		r := start(t, sourceFunc(func(ctx context.Context, deliver func(podsource.Set)) error {
			tries++
			switch tries {
			case 1:
				deliver(podsource.Set{Pods: []podsource.Manifest{{Pod: pod("x", "1")}}})
				return errors.New("cut off")
			case 2:
				return nil
			case 3:
				panic("no such luck")
			}
			deliver(podsource.Set{Pods: []podsource.Manifest{{Pod: pod("x", "2")}}})
			<-ctx.Done()
			return nil
		}))
		assert.Equal(t, []string{"ADD a x=1"}, r.delivered())
		assert.Contains(t, r.errors(), "a: source is unavailable: watch source: cut off")
		time.Sleep(time.Second)
		assert.Contains(t, r.errors(), "a: source is unavailable: watch source: Watch returned")
		time.Sleep(2 * time.Second)
		assert.Contains(t, r.errors(), "no such luck")
		assert.Empty(t, r.delivered())
		time.Sleep(4 * time.Second)
		assert.Equal(t, []string{"UPDATE a x=2"}, r.delivered())
		assert.Empty(t, r.errors())
	})
}

// SR-8: what a source does not know yet after it has failed is not gone.
func TestMux_FailedSourceThatKnowsLess(t *testing.T) {
	bubble(t, func(t *testing.T) {
		set := func(incomplete bool, pods ...*corev1.Pod) podsource.Set {
			s := podsource.Set{Incomplete: incomplete}
			for _, p := range pods {
				s.Pods = append(s.Pods, podsource.Manifest{Pod: p})
			}
			return s
		}
		src := &breaking{sets: []podsource.Set{
			set(true, pod("early", "1")), set(false, pod("x", "1"), pod("y", "1")), set(true), set(true, pod("x", "2")), set(false, pod("x", "2")),
		}}
		r := start(t, src)
		var delivered []string
		for range src.sets {
			delivered = append(delivered, strings.Join(r.delivered(), ", "))
			time.Sleep(time.Second)
		}
		assert.Equal(t, []string{"ADD a early=1", "REMOVE a early=1, ADD a x=1 y=1", "", "UPDATE a x=2", "REMOVE a y=1"}, delivered)
	})
}

func TestMux_RefreshesPodsOfChangedObject(t *testing.T) {
	bubble(t, func(t *testing.T) {
		user := pod("user", "1")
		user.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "conf"}}}}
		object := func(name, value string) podspec.Object {
			return podspec.FromConfigMap(&corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Data: map[string]string{"k": value},
			})
		}
		source := podsource.NewMemory(user, pod("other", "1"))
		source.SetObjects(object("conf", "1"))
		r := start(t, source)
		assert.Equal(t, "ADD a user=1 other=1", r.delivered()[0])
		ref := podspec.Ref{Kind: podspec.ConfigMap, Namespace: "default", Name: "conf"}

		source.SetObjects(object("conf", "2"), object("unused", "1"))
		assert.Equal(t, []string{"REFRESH a user=1"}, r.delivered())
		got, err := r.mux.Object(t.Context(), ref)
		require.NoError(t, err)
		assert.Equal(t, "2", string(got.Data["k"]))

		source.SetObjects(object("conf", "2"), object("unused", "2"))
		assert.Empty(t, r.delivered())

		source.SetObjects()
		assert.Equal(t, []string{"REFRESH a user=1"}, r.delivered())
		_, err = r.mux.Object(t.Context(), ref)
		assert.ErrorIs(t, err, podspec.ErrObjectNotFound)
	})
}

// SR-4 for any source: an invalid version of a pod does not end the valid one.
func TestMux_RetainsLastValidPod(t *testing.T) {
	bubble(t, func(t *testing.T) {
		source := podsource.NewMemory(pod("x", "1"), pod("y", "1"))
		r := start(t, source)
		r.delivered()
		source.Put(pod("x", ""), pod("y", "2"))
		assert.Equal(t, []string{"UPDATE a y=2"}, r.delivered())
		assert.Contains(t, r.errors(), "spec.containers[0].image")
		assert.Equal(t, "x", r.mux.Errors()[0].RetainedPod.Name)
		assert.Equal(t, "a", r.mux.Errors()[0].Source)
		require.Len(t, r.events, 1)
		assert.Equal(t, podsource.ReasonInvalid, r.events[0].Reason)
		assert.Equal(t, "Pod", r.events[0].InvolvedObject.Kind)

		time.Sleep(time.Hour)
		source.Put(pod("y", "3"))
		r.delivered()
		assert.Equal(t, time.Hour, time.Since(r.mux.Errors()[0].Since), "since when it has been so")
		assert.Len(t, r.events, 1, "told once")

		source.Put(pod("x", "2"))
		assert.Equal(t, []string{"UPDATE a x=2"}, r.delivered())
		assert.Empty(t, r.errors())
		source.Put(pod("x", ""))
		source.Delete("default", "x")
		assert.Equal(t, []string{"REMOVE a x=2"}, r.delivered())
	})
}

// A valid pod whose version with its deletion is not valid is deleted nevertheless.
func TestMux_InvalidPodIsDeleted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		source := podsource.NewMemory(pod("x", "1"))
		r := start(t, source)
		r.delivered()
		invalid := pod("x", "")
		invalid.DeletionTimestamp, invalid.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Now()}, new(int64(30))
		source.Put(invalid)
		assert.Equal(t, []string{"DELETE a x=1"}, r.delivered())
		sooner := invalid.DeepCopy()
		sooner.DeletionGracePeriodSeconds = nil
		source.Put(sooner)
		assert.Equal(t, []string{"DELETE a x=1"}, r.delivered())
		assert.NotEmpty(t, r.errors())
		source.Delete("default", "x")
		assert.Equal(t, []string{"REMOVE a x=1"}, r.delivered())
	})
}

// A pod that is invalid from the start is not wanted, but one of its name that
// runs is left alone.
func TestMux_InvalidPodReservesItsName(t *testing.T) {
	bubble(t, func(t *testing.T) {
		source := podsource.NewMemory(pod("x", ""))
		r := start(t, source)
		assert.Empty(t, r.delivered())
		assert.True(t, r.mux.MayBeDesired("a", "default", "x"))
		assert.False(t, r.mux.MayBeDesired("a", "default", "y"))
		assert.False(t, r.mux.HasSynced("a"))
		assert.Equal(t, "Node", r.events[0].InvolvedObject.Kind)
		source.Put(pod("x", "1"))
		r.delivered()
		assert.False(t, r.mux.MayBeDesired("a", "default", "x"))
		assert.True(t, r.mux.HasSynced("a"))
	})
}

func TestNew_ReportsAllErrors(t *testing.T) {
	_, err := podsource.New(podsource.Config{})
	assert.ErrorContains(t, err, "NodeName")
	m := podsource.NewMemory()
	_, err = podsource.New(podsource.Config{NodeName: "no_de", Sources: []podsource.NamedSource{{Name: "a", Source: m}, {Source: m}, {Name: "a"}}})
	for _, want := range []string{`Config.NodeName: invalid name "no_de"`, "name of source 1 required", `duplicate name "a"`, `source "a" is nil`} {
		assert.ErrorContains(t, err, want)
	}
	_, err = podsource.New(podsource.Config{NodeName: "n"})
	assert.NoError(t, err)
}
