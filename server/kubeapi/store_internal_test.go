package kubeapi

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/podsource"
)

// watchStore returns what a Store delivers, the newest last.
func watchStore(t *testing.T, s *Store) <-chan podsource.Set {
	sets, done := make(chan podsource.Set, 10), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { done <- s.Watch(ctx, func(set podsource.Set) { sets <- set }) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-done)
	})
	return sets
}

func storePod(t *testing.T, s *Store, name string) {
	t.Helper()
	require.NoError(t, s.writing.acquire(t.Context()))
	defer s.writing.release()
	require.NoError(t, s.put(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "uid"}}))
}

// SV-11: a file that could not be read stays where it is, and is read at the next start.
func TestStore_KeepsAFileThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	s := NewStore(dir)
	<-watchStore(t, s)
	storePod(t, s, "a")

	s = NewStore(dir)
	s.read = func(file string) (*corev1.Pod, error) {
		return nil, &os.PathError{Op: "open", Path: file, Err: syscall.EMFILE}
	}
	set := <-watchStore(t, s)
	assert.True(t, set.Incomplete)
	require.Len(t, set.Errors, 1)
	assert.ErrorIs(t, set.Errors[0].Err, syscall.EMFILE)

	set = <-watchStore(t, NewStore(dir))
	assert.Len(t, set.Pods, 1)
	assert.False(t, set.Incomplete)
}

// SV-11: what a damaged file may stand for ends when a pod of its name is created.
func TestStore_ReplacesADamagedFile(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"shop_a.json", "shop_b.json.damaged"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("{"), 0o600))
	}
	s := NewStore(dir)
	sets := watchStore(t, s)
	require.Len(t, (<-sets).Errors, 2)
	storePod(t, s, "a")
	set := <-sets
	require.Len(t, set.Errors, 1)
	assert.True(t, set.Incomplete)
	storePod(t, s, "b")
	set = <-sets
	assert.Empty(t, set.Errors)
	assert.False(t, set.Incomplete)
	assert.Len(t, set.Pods, 2)
	left, err := filepath.Glob(filepath.Join(dir, "*.damaged"))
	require.NoError(t, err)
	assert.Empty(t, left)
}

// SV-12: another client may have changed what a client saw when it is deleted.
func TestStore_DeletionChecksThePodThatThereIs(t *testing.T) {
	s := NewStore(t.TempDir())
	a, err := New(Config{NodeName: "edge-1", Pods: func() []*corev1.Pod { return nil }, Store: s})
	require.NoError(t, err)
	<-watchStore(t, s)
	storePod(t, s, "a")
	require.NoError(t, a.refreshPods(t.Context()))
	before := a.pods.get("shop", "a")
	version, uid := before.GetResourceVersion(), before.GetUID()
	changed := s.get("shop", "a").DeepCopy()
	changed.Labels = map[string]string{"keep": "this"}
	require.NoError(t, s.writing.acquire(t.Context()))
	require.NoError(t, s.put(changed))
	s.writing.release()

	r, _ := testRequest(http.MethodDelete, "/api/v1/namespaces/shop/pods/a")
	_, err = a.deletePod(r, before, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &version}})
	assert.True(t, apierrors.IsConflict(err), "%v", err)
	assert.Nil(t, s.get("shop", "a").DeletionTimestamp)
	deleted, err := a.deletePod(r, before, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	require.NoError(t, err)
	assert.NotNil(t, deleted.GetDeletionTimestamp())
	assert.Equal(t, changed.Labels, deleted.GetLabels())
}
