package kube

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	k8stesting "k8s.io/client-go/testing"
)

// KU-5: the pods that refer to an object that changes are synced, with a bounded rate, and
// no others.
func TestObjects_ChangesSyncPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startObjects(t, "", newSecret("one"))
		agent := requeuing{make(chan types.UID, 100)}
		b.objects.k.setAgent(agent)
		b.run()
		other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "other", UID: "other"}}
		b.setPods(podOf(), other)
		b.value()
		b.wait(time.Minute)
		assert.Empty(t, agent.uids, "the pod that asked has it")
		for i := range 30 {
			_, err := b.client.CoreV1().Secrets("default").Update(t.Context(), newSecret(fmt.Sprint("value ", i)), metav1.UpdateOptions{})
			require.NoError(t, err)
			b.wait(100 * time.Millisecond)
		}
		b.wait(time.Second)
		n := len(agent.uids)
		assert.Positive(t, n)
		assert.LessOrEqual(t, n, 5)
		for range n {
			assert.Equal(t, types.UID("uid"), <-agent.uids)
		}
		require.NoError(t, b.client.CoreV1().Secrets("default").Delete(t.Context(), "s", metav1.DeleteOptions{}))
		b.wait(2 * time.Second)
		assert.Len(t, agent.uids, 1, "optional objects go from volumes too")
		b.wait(time.Hour)
		assert.Len(t, agent.uids, 1)
	})
}

// KU-5: a pod that got an object from disk is synced when the API server has another version of it, or none.
func TestObjects_OlderVersionOnDisk(t *testing.T) {
	for name, tc := range map[string]struct {
		now    []runtime.Object
		synced int
	}{
		"same": {[]runtime.Object{newSecret("one")}, 0}, "other": {[]runtime.Object{newSecret("two")}, 1}, "deleted": {nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "objects")
				start := func(existing ...runtime.Object) *objectsBench {
					for _, o := range existing {
						secret, _ := o.(*corev1.Secret)
						secret.ResourceVersion = string(secret.Data["k"])
					}
					b := startObjects(t, dir, existing...)
					b.setPods(podOf())
					return b
				}
				b := start(newSecret("one")).run()
				b.value()
				b.wait(2 * time.Second)
				b.stop()

				b = start(tc.now...)
				agent := requeuing{make(chan types.UID, 100)}
				b.objects.k.setAgent(agent)
				back := b.unreachable()
				b.run()
				require.Equal(t, "one", b.value())
				b.wait(time.Minute)
				back()
				b.wait(time.Minute)
				assert.Len(t, agent.uids, tc.synced)
			})
		})
	}
}

// An immutable object that was deleted and created once more with other content, after all pods that had it were
// gone, is got once more. With a pod that still has it, others get what that one has, as with a kubelet.
func TestObjects_ImmutableIsThatOfItsPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startObjects(t, t.TempDir(), newImmutable("one")).run()
		pod := func(uid types.UID) *corev1.Pod {
			p := podOf()
			p.UID = uid
			return p
		}
		b.setPods(pod("first"))
		assert.Equal(t, "one", b.value())
		b.recreate(newImmutable("two"))
		b.setPods(pod("first"), pod("second"))
		assert.Equal(t, "one", b.value())
		b.setPods()
		assert.Equal(t, "one", b.value(), "a pod that ends")
		b.setPods(pod("third"))
		assert.Equal(t, "two", b.value())
		assert.Equal(t, "two", b.value())
		assert.Equal(t, 2, b.count("list", "secrets"))
		b.wait(2 * objectsPeriod)
		stored, ok := b.objects.disk.object(secretRef)
		require.True(t, ok)
		assert.Equal(t, "two", string(stored.Data["k"]))
	})
}

// newImmutable returns an immutable Secret.
func newImmutable(text string) *corev1.Secret {
	s, yes := newSecret(text), true
	s.Immutable = &yes
	return s
}

// recreate deletes the Secret, and creates it once more with other content.
func (b *objectsBench) recreate(s *corev1.Secret) {
	b.t.Helper()
	b.wait(time.Second) // the watch of one that is immutable has ended
	secrets := b.client.CoreV1().Secrets("default")
	require.NoError(b.t, secrets.Delete(b.t.Context(), s.Name, metav1.DeleteOptions{}))
	_, err := secrets.Create(b.t.Context(), s, metav1.CreateOptions{})
	require.NoError(b.t, err)
	b.wait(time.Second)
}

// A pod that has ended does not hold an immutable object, though the API server has the pod for as long as its Job: the
// next pod gets what the object is then, as with a kubelet.
func TestObjects_ImmutableIsNotThatOfPodsThatHaveEnded(t *testing.T) {
	for _, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
		t.Run(string(phase), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := startObjects(t, t.TempDir(), newImmutable("one")).run()
				first, second := podOf(), podOf()
				second.UID = "second"
				b.setPods(first)
				assert.Equal(t, "one", b.value())
				b.recreate(newImmutable("two"))
				first = first.DeepCopy()
				first.Status.Phase = phase
				b.setPods(first)
				assert.Equal(t, "one", b.value(), "no other pod refers to it")
				b.setPods(first, second)
				assert.Equal(t, "two", b.value())
			})
		})
	}
}

// An object that becomes immutable while pods have it is that of these pods, whether or not one asks for it once more.
func TestObjects_BecomesImmutable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startObjects(t, t.TempDir(), newSecret("one")).run()
		first, second := podOf(), podOf()
		second.UID = "second"
		b.setPods(first)
		assert.Equal(t, "one", b.value())
		b.update(newImmutable("two"))
		b.recreate(newImmutable("three"))
		b.setPods(second)
		assert.Equal(t, "three", b.value())
	})
}

// The Secret of a PersistentVolume is named by no pod, so that it is not known which pods have it.
func TestObjects_ImmutableThatNoPodNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startObjects(t, t.TempDir(), newImmutable("one")).run()
		b.setPods(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "uid"}})
		assert.Equal(t, "one", b.value())
		b.recreate(newImmutable("two"))
		assert.Equal(t, "two", b.value())
		b.recreate(newImmutable("three"))
		assert.Equal(t, "three", b.value())
		assert.Equal(t, 1, b.count("list", "secrets"), "it is watched")
	})
}

// Nothing is watched or kept, in memory or on disk, for pods that have ended.
func TestObjects_AreForgottenWhenPodsHaveEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		b := startObjects(t, dir, newSecret("one")).run()
		b.client.PrependReactor("create", "serviceaccounts", func(k8stesting.Action) (bool, runtime.Object, error) {
			return true, &authenticationv1.TokenRequest{Status: authenticationv1.TokenRequestStatus{Token: secretText}}, nil
		})
		pod := podOf()
		b.setPods(pod)
		b.value()
		_, err := b.objects.ServiceAccountToken(t.Context(), pod, &corev1.ServiceAccountTokenProjection{})
		require.NoError(t, err)
		b.wait(time.Minute)
		files, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Len(t, files, 3, "the Secret, the token, and services")
		pod = pod.DeepCopy()
		pod.Status.Phase = corev1.PodSucceeded
		b.setPods(pod)
		b.wait(time.Minute)
		assert.Empty(t, b.objects.followed)
		assert.Empty(t, b.objects.tokens.all)
		files, err = os.ReadDir(dir)
		require.NoError(t, err)
		require.Len(t, files, 1)
		assert.Equal(t, servicesFile, files[0].Name())
	})
}

// Objects and tokens of pods that are gone are not kept in memory while a source has not synced, as one with an
// invalid manifest may never do.
func TestObjects_AreUnfollowedWhileSourcesHaveNotSynced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		b := startObjects(t, dir, newSecret("one")).run()
		b.client.PrependReactor("create", "serviceaccounts", func(k8stesting.Action) (bool, runtime.Object, error) {
			return true, &authenticationv1.TokenRequest{Status: authenticationv1.TokenRequestStatus{Token: secretText}}, nil
		})
		b.state.Store(&podsOfSources{pods: []*corev1.Pod{podOf()}})
		assert.Equal(t, "one", b.value())
		_, err := b.objects.ServiceAccountToken(t.Context(), podOf(), &corev1.ServiceAccountTokenProjection{})
		require.NoError(t, err)
		b.wait(time.Hour)
		assert.Len(t, b.objects.followed, 1)
		assert.Len(t, b.objects.tokens.all, 1)
		b.state.Store(&podsOfSources{})
		b.wait(time.Minute)
		assert.Empty(t, b.objects.followed)
		assert.Empty(t, b.objects.tokens.all)
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		assert.Len(t, entries, 3, "on disk all is kept: the secret, the token and the services")
	})
}
