package kube

import (
	"fmt"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// KU-7: the pods that refer to an object that changes are synced, with a bounded rate, and
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

// KU-7: a pod that got an object from disk is synced when the API server has another version of it, or none.
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
