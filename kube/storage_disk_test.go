package kube

import (
	"context"
	"errors"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/sublet-dev/agent/podspec"
)

// storedVolume returns a claim and what it is bound to.
func storedVolume(name string) []runtime.Object {
	return []runtime.Object{
		&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv-" + name}},
		&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name}, Spec: corev1.PersistentVolumeSpec{
			Capacity:               corev1.ResourceList{"storage": resource.MustParse("1Gi")},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: name + ".example", VolumeHandle: "h"}},
		}},
		&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: name + ".example"}},
	}
}

// unreachable makes all calls fail with an error.
func unreachable(client *fake.Clientset, err error) {
	client.PrependReactor("*", "*", func(k8stesting.Action) (bool, runtime.Object, error) { return true, nil, err })
}

// read reads what a pod with a claim needs.
func (s *Storage) read(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
	_, err := s.Claim(ctx, "ns", name)
	v, errVolume := s.PersistentVolume(ctx, "pv-"+name)
	_, errDriver := s.CSIDriver(ctx, name+".example")
	return v, errors.Join(err, errVolume, errDriver)
}

// A node that starts without its API server has the volumes of its pods, by a new process. KU-2
func TestStorage_WithoutTheAPIServer(t *testing.T) {
	dir := t.TempDir() + "/storage"
	s, _ := newStorage(t, StorageConfig{Dir: dir}, storedVolume("data")...)
	_, err := s.read(t.Context(), "data")
	require.NoError(t, err)
	info, err := os.Stat(dir)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o700), info.Mode().Perm())

	s, client := newStorage(t, StorageConfig{Dir: dir})
	unreachable(client, errors.New("connection refused"))
	v, err := s.read(t.Context(), "data")
	require.NoError(t, err)
	assert.Equal(t, "1Gi", v.Spec.Capacity.Storage().String())
	_, err = s.read(t.Context(), "unknown")
	require.ErrorContains(t, err, "connection refused")
	unreachable(client, apierrors.NewForbidden(schema.GroupResource{}, "data", errors.New("no pod of the node has it")))
	_, err = s.read(t.Context(), "data")
	require.ErrorContains(t, err, "no pod of the node has it")

	s, _ = newStorage(t, StorageConfig{Dir: dir})
	_, err = s.read(t.Context(), "data")
	require.ErrorIs(t, err, podspec.ErrObjectNotFound)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, left, "what was deleted is not kept")
}

// An API server that hangs delays a pod by a second.
func TestStorage_HungAPIServer(t *testing.T) {
	dir := t.TempDir()
	s, _ := newStorage(t, StorageConfig{Dir: dir}, storedVolume("data")...)
	_, err := s.Claim(t.Context(), "ns", "data")
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		startTime := time.Now()
		k, err := New(Config{Client: fake.NewClientset(), NodeName: "n"})
		require.NoError(t, err)
		claim, err := readThrough(t.Context(), k, objectDir(dir), podspec.Ref{Kind: claimKind, Namespace: "ns", Name: "data"}, func(ctx context.Context) (*corev1.PersistentVolumeClaim, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		require.NoError(t, err)
		assert.Equal(t, "pv-data", claim.Spec.VolumeName)
		assert.Equal(t, storedTimeout, time.Since(startTime))
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = readThrough(canceled, k, objectDir(dir), podspec.Ref{Kind: claimKind, Namespace: "ns", Name: "data"}, func(ctx context.Context) (*corev1.PersistentVolumeClaim, error) {
			return nil, ctx.Err()
		})
		require.ErrorIs(t, err, context.Canceled, "its pod has ended")
	})
}

// A server that answers for the pods of the node and is slow is waited for: the claim on disk may be that of an
// earlier pod, with the data of another volume. It is so once, and then for a minute as if it did not answer.
func TestReadThrough_WaitsForASlowServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, err := New(Config{Client: fake.NewClientset(), NodeName: "n"})
		require.NoError(t, err)
		dir, ref := objectDir(t.TempDir()), podspec.Ref{Kind: claimKind, Namespace: "ns", Name: "data"}
		// The server answers after a time with the claim of a UID.
		check := func(answersIn time.Duration, uid, wantUID types.UID, want time.Duration) {
			t.Helper()
			startTime := time.Now()
			claim, err := readThrough(t.Context(), k, dir, ref, func(ctx context.Context) (*corev1.PersistentVolumeClaim, error) {
				select {
				case <-time.After(answersIn):
					return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{UID: uid}}, nil
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			})
			require.NoError(t, err)
			assert.Equal(t, wantUID, claim.UID)
			assert.Equal(t, want, time.Since(startTime))
		}
		check(0, "old", "old", 0)
		check(2*time.Second, "new", "old", storedTimeout) // nothing is known of the server
		require.NoError(t, k.store.Replace(nil, "1"))
		check(2*time.Second, "new", "new", 2*time.Second)
		check(time.Hour, "newer", "new", objectTimeout)
		check(time.Hour, "newer", "new", storedTimeout)
		time.Sleep(unansweredAge)
		check(2*time.Second, "newer", "newer", 2*time.Second)
		k.store.fail(errors.New("connection refused"))
		check(time.Hour, "newest", "newer", storedTimeout)
	})
}

// What no desired pod needs is removed from disk, once all pods are known.
func TestStorage_ForgetsUnusedObjects(t *testing.T) {
	dir := t.TempDir()
	existing := append(storedVolume("data"), storedVolume("web-scratch")...)
	existing = append(existing, storedVolume("unused")...)
	existing = append(existing, storedVolume("inline")...)
	synced := false
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{
		claimVolume("data", "data"),
		{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
		{Name: "inline", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "inline.example"}}},
		{Name: "empty", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		claimVolume("never-read", "other"),
	}}}
	s, _ := newStorage(t, StorageConfig{Dir: dir, Pods: func() ([]*corev1.Pod, bool) { return []*corev1.Pod{pod}, synced }}, existing...)
	for _, name := range []string{"data", "web-scratch", "unused", "inline"} {
		_, err := s.read(t.Context(), name)
		require.NoError(t, err)
	}
	files := func() (names []string) {
		t.Helper()
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	s.sweep()
	assert.Len(t, files(), 12)
	synced = true
	s.sweep()
	assert.ElementsMatch(t, []string{
		"persistentvolumeclaim_ns_data.json", "persistentvolume__pv-data.json", "csidriver__data.example.json",
		"persistentvolumeclaim_ns_web-scratch.json", "persistentvolume__pv-web-scratch.json", "csidriver__web-scratch.example.json",
		"csidriver__inline.example.json",
	}, files())
}

// claimVolume returns a volume of a pod with a claim.
func claimVolume(name, claim string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}
}

func TestStorage_SecretRefs(t *testing.T) {
	local := storedVolume("local")
	local[1].(*corev1.PersistentVolume).Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/x"}}
	existing := append(local, newSecretVolume("data")...)
	existing = append(existing, newSecretVolume("web-scratch")...)
	existing = append(existing, storedVolume("none")...)
	ephemeral := func(name string) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}
	}
	for name, tc := range map[string]struct {
		noDir   bool
		volumes []corev1.Volume
		want    []podspec.Ref
	}{
		"of a claim":                      {volumes: []corev1.Volume{claimVolume("v", "data")}, want: volumeSecrets},
		"of an ephemeral volume":          {volumes: []corev1.Volume{ephemeral("scratch")}, want: volumeSecrets},
		"an ephemeral volume is no claim": {volumes: []corev1.Volume{ephemeral("data")}},
		"without a directory":             {noDir: true, volumes: []corev1.Volume{claimVolume("v", "data")}},
		"a volume without CSI":            {volumes: []corev1.Volume{claimVolume("v", "local")}},
		"a driver without Secrets":        {volumes: []corev1.Volume{claimVolume("v", "none")}},
		"a claim that was never read":     {volumes: []corev1.Volume{claimVolume("v", "unknown")}},
		"volumes without a claim": {volumes: []corev1.Volume{
			{Name: "empty", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			{Name: "inline", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "data.example"}}},
		}},
		"one volume of several": {volumes: []corev1.Volume{claimVolume("v", "none"), claimVolume("w", "data")}, want: volumeSecrets},
	} {
		t.Run(name, func(t *testing.T) {
			var cfg StorageConfig
			if !tc.noDir {
				cfg.Dir = t.TempDir()
			}
			s, _ := newStorage(t, cfg, existing...)
			for _, claim := range []string{"data", "web-scratch", "local", "none"} {
				_, err := s.read(t.Context(), claim)
				require.NoError(t, err)
			}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}, Spec: corev1.PodSpec{Volumes: tc.volumes}}
			other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "web"}, Spec: corev1.PodSpec{Volumes: tc.volumes}}
			assert.Equal(t, tc.want, s.SecretRefs([]*corev1.Pod{other, pod}))
		})
	}
}

func TestKube_StorageChecksItsConfiguration(t *testing.T) {
	k, err := New(Config{Client: fake.NewClientset(), NodeName: "n"})
	require.NoError(t, err)
	_, err = k.Storage(StorageConfig{Dir: "x"})
	require.EqualError(t, err, `kube: StorageConfig.Dir: "x" must be an absolute path`)
	file := t.TempDir() + "/file"
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	s, err := k.Storage(StorageConfig{Dir: file})
	require.NoError(t, err)
	require.ErrorContains(t, s.Run(t.Context()), "kube: directory of volumes")
	_, err = s.Claim(t.Context(), "ns", "c")
	require.ErrorContains(t, err, "kube: directory of volumes")
}
