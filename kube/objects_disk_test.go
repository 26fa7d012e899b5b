package kube

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
)

// replaceDir puts a file in the place of the directory, so that every write fails, until the
// result is called.
func (b *objectsBench) replaceDir() (restore func()) {
	b.t.Helper()
	away := b.dir + ".away"
	require.NoError(b.t, os.Rename(b.dir, away))
	require.NoError(b.t, os.WriteFile(b.dir, nil, 0o600))
	return func() {
		b.t.Helper()
		require.NoError(b.t, os.Remove(b.dir))
		require.NoError(b.t, os.Rename(away, b.dir))
	}
}

// logged returns how often a message is in the log, while there may be more.
func (b *objectsBench) logged(message string) int {
	b.writer.mu.Lock()
	defer b.writer.mu.Unlock()
	return strings.Count(b.log.String(), message)
}

// stored returns the value of the secret on disk, or "".
func (b *objectsBench) stored() string {
	o, _ := b.objects.disk.object(secretRef)
	return string(o.Data["k"])
}

// What could not be written is written within 30 s after the disk is back; it is tried no
// more often, and the pod is synced because of the change alone.
func TestObjects_FailedWritesAreRetried(t *testing.T) {
	const message = `msg="object not kept on disk"`
	synctest.Test(t, func(t *testing.T) {
		b := startObjects(t, filepath.Join(t.TempDir(), "objects"), newSecret("one"))
		agent := requeuing{make(chan types.UID, 100)}
		b.objects.k.setAgent(agent)
		b.run()
		b.setPods(podOf())
		b.value()
		b.wait(2500 * time.Millisecond)
		require.Equal(t, "one", b.stored())

		restore := b.replaceDir()
		b.update(newSecret("two"))
		assert.Equal(t, 1, b.logged(message))
		assert.Len(t, agent.uids, 1)
		b.wait(65 * time.Second)
		assert.Equal(t, 3, b.logged(message), "at once and every 30 s")
		assert.Len(t, agent.uids, 1, "a retry is no change")
		b.update(newSecret("three"))
		assert.Len(t, agent.uids, 2, "a pod has a change at once, even if it cannot be written")
		assert.Equal(t, 3, b.logged(message), "a change is no reason to retry")
		assert.Equal(t, "three", b.value())
		restore()
		require.Equal(t, "one", b.stored())
		b.wait(time.Minute)
		assert.Equal(t, "three", b.stored())
		b.update(newSecret("four"))
		assert.Equal(t, "four", b.stored(), "the next change is written at once")

		restore = b.replaceDir()
		require.NoError(t, b.client.CoreV1().Secrets("default").Delete(t.Context(), "s", metav1.DeleteOptions{}))
		b.wait(2 * time.Second)
		restore()
		require.Equal(t, "four", b.stored())
		b.wait(time.Minute)
		assert.NoFileExists(t, filepath.Join(b.dir, objectFile(secretRef)), "a removal is retried too")
		assert.Equal(t, 4, b.logged(message))
		assert.Len(t, agent.uids, 4)
	})
}

// What could not be written is written at the end at last.
func TestObjects_LastWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startObjects(t, filepath.Join(t.TempDir(), "objects"), newSecret("one")).run()
		b.setPods(podOf())
		b.value()
		b.wait(2500 * time.Millisecond)
		restore := b.replaceDir()
		b.update(newSecret("two"))
		restore()
		b.update(newSecret("three"))
		require.Equal(t, "one", b.stored())
		b.stop()
		assert.Equal(t, "three", b.stored())
	})
}

// Controllers write much into services that no variable tells: the file is left alone.
func TestObjects_ServicesAreWrittenWhenVariablesChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		b := startObjects(t, dir, service("default", "one", "10.0.0.1", corev1.ServicePort{Port: 1})).run()
		update := func(s *corev1.Service) os.FileInfo {
			t.Helper()
			_, err := b.client.CoreV1().Services("default").Update(t.Context(), s, metav1.UpdateOptions{})
			require.NoError(t, err)
			b.wait(2 * time.Second)
			info, err := os.Stat(filepath.Join(dir, servicesFile))
			require.NoError(t, err)
			return info
		}
		b.wait(2 * time.Second)
		s := service("default", "one", "10.0.0.1", corev1.ServicePort{Port: 1})
		before := update(s)
		s.Annotations = map[string]string{"example.com/leader": "a"}
		assert.True(t, os.SameFile(before, update(s)))
		s.Spec.Ports[0].Port = 2
		assert.False(t, os.SameFile(before, update(s)))
	})
}

func TestObjects_FailedWritesOfServicesAreRetried(t *testing.T) {
	const message = `msg="services not kept on disk"`
	synctest.Test(t, func(t *testing.T) {
		port := corev1.ServicePort{Port: 1}
		b := startObjects(t, filepath.Join(t.TempDir(), "objects"), service("default", "one", "10.0.0.1", port)).run()
		stored := func() (names []string) {
			var links []serviceLink
			b.objects.disk.read(servicesFile, &links)
			for _, l := range links {
				names = append(names, l.Name)
			}
			return names
		}
		create := func(name, ip string) {
			t.Helper()
			_, err := b.client.CoreV1().Services("default").Create(t.Context(), service("default", name, ip, port), metav1.CreateOptions{})
			require.NoError(t, err)
			b.wait(time.Second)
		}
		b.wait(2500 * time.Millisecond)
		require.Equal(t, []string{"one"}, stored())

		restore := b.replaceDir()
		create("three", "10.0.0.3")
		assert.Equal(t, 1, b.logged(message))
		b.wait(65 * time.Second)
		create("two", "10.0.0.2")
		assert.Equal(t, 3, b.logged(message), "at once and every 30 s")
		restore()
		require.Equal(t, []string{"one"}, stored())
		b.wait(time.Minute)
		assert.Equal(t, []string{"one", "three", "two"}, stored())
		create("four", "10.0.0.4")
		assert.Equal(t, []string{"four", "one", "three", "two"}, stored(), "the next change is written at once")
		assert.Equal(t, 3, b.logged(message))
	})
}

func TestObjects_FailedWritesOfTokensAreRetried(t *testing.T) {
	const message = `msg="token not kept on disk"`
	synctest.Test(t, func(t *testing.T) {
		b, server, get := startTokens(t, filepath.Join(t.TempDir(), "objects"), 3600)
		file := tokenKey{uid: "uid", audience: "vault", seconds: 3600}.file()
		stored := func() string {
			var onDisk token
			b.objects.disk.read(file, &onDisk)
			return string(onDisk.Token)
		}
		first := get()
		require.Equal(t, first, stored())
		b.wait(49 * time.Minute)

		restore := b.replaceDir()
		second := get()
		require.NotEqual(t, first, second, "it is renewed")
		b.wait(29 * time.Second)
		assert.Equal(t, second, get())
		assert.Equal(t, 1, b.logged(message))
		b.wait(time.Second)
		assert.Equal(t, second, get())
		assert.Equal(t, 2, b.logged(message), "at once and every 30 s")
		restore()
		b.wait(29 * time.Second)
		assert.Equal(t, second, get())
		require.Equal(t, first, stored())
		b.wait(time.Second)
		assert.Equal(t, second, get())
		assert.Equal(t, second, stored())
		assert.Len(t, server.requests, 2, "it is the same token")

		require.NoError(t, os.Remove(filepath.Join(b.dir, file)))
		b.wait(time.Minute)
		assert.Equal(t, second, get())
		assert.Empty(t, stored(), "what is written is not written once more")
		assert.Equal(t, 2, b.logged(message))

		b.wait(47 * time.Minute)
		restore = b.replaceDir()
		third := get()
		require.NotEqual(t, second, third)
		restore()
		b.unreachable()
		b.wait(50 * time.Minute)
		assert.Equal(t, third, get(), "it is due, and the API server is away")
		assert.Equal(t, third, stored())
	})
}

func TestObjects_FailedWritesOfCertificatesAreRetried(t *testing.T) {
	const message = `msg="pod certificate not kept on disk"`
	synctest.Test(t, func(t *testing.T) {
		s := startPodSigner(t, filepath.Join(t.TempDir(), "objects"))
		get := func() error {
			_, _, err := s.get(ed25519Projection())
			return err
		}
		files := func() []string {
			list, err := filepath.Glob(filepath.Join(s.dir, certificatePrefix+"uid_*.json"))
			require.NoError(t, err)
			return list
		}
		require.Error(t, get(), "it is not signed yet")
		restore := s.replaceDir()
		s.issue(s.requests[0])
		require.NoError(t, get())
		restore()
		s.wait(29 * time.Second)
		require.NoError(t, get())
		require.Empty(t, files())
		s.wait(time.Second)
		require.NoError(t, get())
		require.Len(t, files(), 1)
		require.NoError(t, os.Remove(files()[0]))
		s.wait(time.Minute)
		require.NoError(t, get())
		assert.Empty(t, files(), "what is written is not written once more")
		assert.Equal(t, 1, s.logged(message))
	})
}

// volumeSecrets are those of the PersistentVolume of newSecretVolume.
var volumeSecrets = []podspec.Ref{
	{Kind: podspec.Secret, Namespace: "infra", Name: "stage"},
	{Kind: podspec.Secret, Namespace: "infra", Name: "publish"},
	{Kind: podspec.Secret, Namespace: "other", Name: "expand"},
}

// newSecretVolume returns storedVolume with a Secret for each call of its driver.
func newSecretVolume(name string) []runtime.Object {
	objects := storedVolume(name)
	source := objects[1].(*corev1.PersistentVolume).Spec.CSI
	source.NodeStageSecretRef = &corev1.SecretReference{Namespace: "infra", Name: "stage"}
	source.NodePublishSecretRef = &corev1.SecretReference{Namespace: "infra", Name: "publish"}
	source.NodeExpandSecretRef = &corev1.SecretReference{Namespace: "other", Name: "expand"}
	return objects
}

// startVolumeSecrets starts Objects that keep the Secrets of volumes, beside a Storage.
func startVolumeSecrets(t *testing.T, dir string, existing ...runtime.Object) (*objectsBench, *Storage) {
	t.Helper()
	b := startObjects(t, filepath.Join(dir, "objects"), existing...)
	storage, err := b.objects.k.Storage(StorageConfig{Dir: filepath.Join(dir, "storage")})
	require.NoError(t, err)
	b.objects, err = b.objects.k.Objects(ObjectsConfig{Dir: b.dir, Pods: b.objects.cfg.Pods, Refs: storage.SecretRefs})
	require.NoError(t, err)
	return b, storage
}

// A node that starts without its API server has the Secrets of the PersistentVolumes of its
// pods, to which no pod refers itself. They are read when a volume is mounted, and not later.
func TestObjects_SecretsOfPersistentVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, existing := t.TempDir(), newSecretVolume("data")
		for _, ref := range volumeSecrets {
			s := newSecret(secretText)
			s.Namespace, s.Name = ref.Namespace, ref.Name
			existing = append(existing, s)
		}
		pod := podOf()
		pod.Namespace = "ns"
		pod.Spec.Volumes = []corev1.Volume{claimVolume("v", "data")}
		requireFiles := func(b *objectsBench) {
			t.Helper()
			for _, ref := range volumeSecrets {
				require.FileExists(t, filepath.Join(b.dir, objectFile(ref)))
			}
		}

		b, storage := startVolumeSecrets(t, dir, existing...)
		b.run()
		b.setPods(pod)
		_, err := storage.read(t.Context(), "data")
		require.NoError(t, err)
		for _, ref := range volumeSecrets {
			_, err := b.objects.Object(t.Context(), ref)
			require.NoError(t, err)
		}
		b.wait(time.Minute)
		requireFiles(b)
		assert.Len(t, b.objects.followed, len(volumeSecrets))
		b.stop()

		b, _ = startVolumeSecrets(t, dir)
		b.setPods(pod)
		b.unreachable()
		b.run()
		b.wait(time.Minute)
		requireFiles(b)
		for _, ref := range volumeSecrets {
			o, err := b.objects.Object(t.Context(), ref)
			require.NoError(t, err)
			assert.Equal(t, secretText, string(o.Data["k"]), ref)
		}
		b.setPods()
		b.wait(time.Minute)
		for _, ref := range volumeSecrets {
			assert.NoFileExists(t, filepath.Join(b.dir, objectFile(ref)))
		}
		assert.Empty(t, b.objects.followed)
		_, err = b.objects.Object(t.Context(), volumeSecrets[0])
		require.ErrorContains(t, err, "connection refused")
	})
}

// An object with the longest names is kept, too, and apart from another one that begins like it.
func TestObjects_LongNamesOnDisk(t *testing.T) {
	dir := objectDir(t.TempDir())
	namespace, name := strings.Repeat("n", 63), strings.Repeat("s", 252)
	for _, length := range []int{150, 158, 159, 180, 252} {
		ref := podspec.Ref{Kind: podspec.Secret, Namespace: namespace, Name: name[:length]}
		for _, end := range []string{"", "1"} {
			long := ref
			long.Name += end
			require.NoError(t, dir.removeObject(long))
			require.NoError(t, dir.writeObject(podspec.Object{Ref: long, Version: end}))
		}
		for _, end := range []string{"", "1"} {
			long := ref
			long.Name += end
			o, ok := dir.object(long)
			require.True(t, ok, long.Name)
			assert.Equal(t, end, o.Version)
		}
		require.NoError(t, dir.keep(map[podspec.Ref]bool{ref: true}, nil))
		_, ok := dir.object(ref)
		assert.True(t, ok)
		entries, err := os.ReadDir(string(dir))
		require.NoError(t, err)
		assert.Len(t, entries, 1)
	}
}
