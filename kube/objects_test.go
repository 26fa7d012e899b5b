package kube

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/sublet-dev/agent/podspec"
)

const secretText = "hunter2"

var secretRef = podspec.Ref{Kind: podspec.Secret, Namespace: "default", Name: "s"}

func newSecret(text string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s"}, Data: map[string][]byte{"k": []byte(text)}}
}

// objectsBench are Objects that run against a fake API server in a bubble.
type objectsBench struct {
	*nodeBench
	writer  *lockedWriter // of the log
	objects *Objects
	state   atomic.Pointer[podsOfSources]
	dir     string
	stop    func()
}

// podsOfSources are the pods that there are, as far as the sources have synced.
type podsOfSources struct {
	pods   []*corev1.Pod
	synced bool
}

func (b *objectsBench) setPods(pods ...*corev1.Pod) { b.state.Store(&podsOfSources{pods, true}) }

func startObjects(t *testing.T, dir string, existing ...runtime.Object) *objectsBench {
	t.Helper()
	b := &objectsBench{nodeBench: &nodeBench{t: t, client: fake.NewClientset(existing...), log: &strings.Builder{}}, dir: dir}
	b.setPods()
	b.writer = &lockedWriter{w: b.log}
	k, err := New(Config{Client: b.client, NodeName: "n", Logger: slog.New(slog.NewTextHandler(b.writer, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	require.NoError(t, err)
	b.objects, err = k.Objects(ObjectsConfig{Dir: dir, Pods: func() ([]*corev1.Pod, bool) {
		state := b.state.Load()
		return state.pods, state.synced
	}})
	require.NoError(t, err)
	return b
}

func (b *objectsBench) run() *objectsBench {
	ctx, cancel := context.WithCancel(b.t.Context())
	done := make(chan error, 1)
	go func() { done <- b.objects.Run(ctx) }()
	stopped := false
	b.stop = func() {
		if !stopped {
			stopped = true
			cancel()
			assert.NoError(b.t, <-done)
		}
		assert.NotContains(b.t, b.log.String(), secretText)
	}
	b.t.Cleanup(b.stop)
	synctest.Wait()
	return b
}

func (b *objectsBench) value() string {
	b.t.Helper()
	o, err := b.objects.Object(b.t.Context(), secretRef)
	require.NoError(b.t, err)
	return string(o.Data["k"])
}

func (b *objectsBench) update(s *corev1.Secret) {
	b.t.Helper()
	_, err := b.client.CoreV1().Secrets("default").Update(b.t.Context(), s, metav1.UpdateOptions{})
	require.NoError(b.t, err)
	b.wait(time.Second)
}

// unreachable makes all calls fail.
func (b *objectsBench) unreachable() (back func()) {
	return b.fail("*", "*", errors.New("connection refused"))
}

// podOf returns a pod that uses the secret.
func podOf() *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "uid"}}
	pod.Annotations = map[string]string{podspec.AnnotationSource: podspec.SourceAPI}
	pod.Spec.ServiceAccountName = "sa"
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}}}
	return pod
}

func TestKube_ObjectsChecksItsConfiguration(t *testing.T) {
	k, err := New(Config{Client: fake.NewClientset(), NodeName: "n"})
	require.NoError(t, err)
	_, err = k.Objects(ObjectsConfig{Dir: "x"})
	require.EqualError(t, err, `kube: ObjectsConfig.Dir: "x" must be an absolute path`)
}

// KU-5
func TestObjects_FollowChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startObjects(t, "", newSecret("one")).run()
		b.setPods(podOf())
		assert.Equal(t, "one", b.value())
		b.update(newSecret("two"))
		assert.Equal(t, "two", b.value())
		require.NoError(t, b.client.CoreV1().Secrets("default").Delete(t.Context(), "s", metav1.DeleteOptions{}))
		b.wait(time.Second)
		_, err := b.objects.Object(t.Context(), secretRef)
		require.ErrorIs(t, err, podspec.ErrObjectNotFound)
		b.wait(time.Hour)
		assert.Equal(t, 1, b.count("watch", "secrets"), "one watch serves all")
		for _, action := range b.client.Actions() {
			if w, ok := action.(k8stesting.WatchActionImpl); ok && action.Matches("watch", "secrets") {
				require.NotNil(t, w.ListOptions.TimeoutSeconds)
				assert.GreaterOrEqual(t, *w.ListOptions.TimeoutSeconds, int64(1800), "thousands of watches are not made again every few minutes")
			}
		}
	})
}

func TestObjects_ConfigMaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c"}, Data: map[string]string{"k": "v"}}
		b := startObjects(t, "", cm).run()
		o, err := b.objects.Object(t.Context(), podspec.Ref{Kind: podspec.ConfigMap, Namespace: "default", Name: "c"})
		require.NoError(t, err)
		assert.Equal(t, "v", string(o.Data["k"]))
		_, err = b.objects.Object(t.Context(), podspec.Ref{Kind: "Pod", Namespace: "default", Name: "c"})
		require.ErrorIs(t, err, podspec.ErrObjectNotFound)
		_, err = b.objects.Object(t.Context(), podspec.Ref{Kind: podspec.ConfigMap, Namespace: "default", Name: "none"})
		require.ErrorIs(t, err, podspec.ErrObjectNotFound)
	})
}

// KU-5
func TestObjects_ImmutableIsNotWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		yes := true
		s := newSecret("fixed")
		s.Immutable = &yes
		b := startObjects(t, "", s).run()
		b.setPods(podOf())
		assert.Equal(t, "fixed", b.value())
		changed := newSecret("other")
		b.update(changed)
		b.wait(time.Minute)
		assert.Equal(t, "fixed", b.value())
		assert.Equal(t, 1, b.count("list", "secrets"))
	})
}

func TestObjects_AreForgottenWithTheirPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		b := startObjects(t, dir, newSecret("one")).run()
		b.setPods(podOf())
		b.value()
		b.wait(time.Minute)
		file := filepath.Join(dir, "secret_default_s.json")
		require.FileExists(t, file)
		b.state.Store(&podsOfSources{})
		b.wait(time.Minute)
		require.FileExists(t, file, "while pods are not all known nothing is forgotten")
		b.setPods()
		b.wait(time.Minute)
		assert.NoFileExists(t, file)
		assert.Empty(t, b.objects.followed)
		lists := b.count("list", "secrets")
		b.value()
		assert.Equal(t, lists+1, b.count("list", "secrets"), "it is followed once more")
	})
}

func TestObjects_ServerThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startObjects(t, "", newSecret("one"))
		back := b.unreachable()
		startTime := time.Now()
		_, err := b.objects.Object(t.Context(), secretRef)
		require.ErrorIs(t, err, errNoAnswer, "before Run")
		b.run()
		_, err = b.objects.Object(t.Context(), secretRef)
		require.ErrorContains(t, err, "connection refused")
		require.NotErrorIs(t, err, podspec.ErrObjectNotFound)
		assert.Equal(t, 20*time.Second, time.Since(startTime).Truncate(time.Second))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = b.objects.Object(ctx, secretRef)
		require.ErrorIs(t, err, context.Canceled)
		back()
		b.wait(time.Minute)
		assert.Equal(t, "one", b.value())
	})
}

// A node that starts without its API server has the objects of its last run, 0600. KU-2
func TestObjects_StartWithoutServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "new")
		b := startObjects(t, dir, newSecret(secretText)).run()
		b.setPods(podOf())
		b.value()
		b.wait(2 * time.Second)
		b.stop()
		info, err := os.Stat(filepath.Join(dir, "secret_default_s.json"))
		require.NoError(t, err)
		assert.EqualValues(t, 0o600, info.Mode().Perm())
		info, err = os.Stat(dir)
		require.NoError(t, err)
		assert.EqualValues(t, 0o700, info.Mode().Perm())
		require.NoError(t, os.WriteFile(filepath.Join(dir, ".secret_default_s.json.123"), nil, 0o600))

		b = startObjects(t, dir, newSecret("changed"))
		b.setPods(podOf())
		back := b.unreachable()
		b.run()
		assert.NoFileExists(t, filepath.Join(dir, ".secret_default_s.json.123"), "an interrupted write")
		assert.Equal(t, secretText, b.value())
		back()
		b.wait(time.Minute)
		assert.Equal(t, "changed", b.value())
		b.wait(2 * time.Second)
		data, err := os.ReadFile(filepath.Join(dir, "secret_default_s.json"))
		require.NoError(t, err)
		assert.NotContains(t, string(data), "aHVudGVyMg", "the old content is gone from disk")
	})
}

func TestObjects_DamagedAndForeignFilesAreNone(t *testing.T) {
	dir := objectDir(t.TempDir())
	require.NoError(t, os.WriteFile(filepath.Join(string(dir), objectFile(secretRef)), []byte("{"), 0o600))
	_, ok := dir.object(secretRef)
	assert.False(t, ok)
	other := secretRef
	other.Name = "t"
	require.NoError(t, dir.write(objectFile(secretRef), podspec.Object{Ref: other}))
	_, ok = dir.object(secretRef)
	assert.False(t, ok, "the file of another object")
	path := podspec.Ref{Kind: podspec.Secret, Namespace: "default", Name: "../../x"}
	require.NoError(t, dir.writeObject(podspec.Object{Ref: path}))
	_, ok = dir.object(path)
	assert.False(t, ok, "names that are paths are not kept")
}

// tokenServer answers token requests.
type tokenServer struct {
	requests []authenticationv1.TokenRequestSpec
	seconds  int64
	account  types.UID // of the service account
	err      error
}

func (s *tokenServer) react(a k8stesting.Action) (bool, runtime.Object, error) {
	if a.GetSubresource() != "token" {
		return false, nil, nil
	}
	if s.err != nil {
		return true, nil, s.err
	}
	request := a.(k8stesting.CreateAction).GetObject().(*authenticationv1.TokenRequest).DeepCopy()
	if request.UID != "" && request.UID != s.account {
		return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "serviceaccounts"}, "sa", nil)
	}
	s.requests = append(s.requests, *request.Spec.DeepCopy())
	request.Spec.ExpirationSeconds = &s.seconds
	request.Status.Token = secretText + strings.Repeat("+", len(s.requests))
	return true, request, nil
}

func startTokens(t *testing.T, dir string, seconds int64) (*objectsBench, *tokenServer, func() string) {
	b := startObjects(t, dir)
	server := &tokenServer{seconds: seconds}
	b.client.PrependReactor("create", "serviceaccounts", server.react)
	b.run()
	b.setPods(podOf())
	return b, server, func() string {
		got, err := b.objects.ServiceAccountToken(t.Context(), podOf(), &corev1.ServiceAccountTokenProjection{Audience: "vault", ExpirationSeconds: &seconds})
		require.NoError(t, err)
		return string(got)
	}
}

// KU-5
func TestObjects_TokensAreBoundToThePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, server, get := startTokens(t, "", 3600)
		get()
		want := int64(3600)
		assert.Equal(t, []authenticationv1.TokenRequestSpec{{
			Audiences: []string{"vault"}, ExpirationSeconds: &want,
			BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: "p", UID: "uid"},
		}}, server.requests)
	})
}

// KU-5
func TestObjects_TokensAreRenewed(t *testing.T) {
	for name, tc := range map[string]struct {
		seconds int64
		after   time.Duration
	}{
		"after 80 % of their life": {3600, 48 * time.Minute},
		"after a day at last":      {365 * 86400, 24 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, server, get := startTokens(t, "", tc.seconds)
				first := get()
				b.wait(tc.after - time.Second)
				assert.Equal(t, first, get())
				b.wait(2 * time.Second)
				assert.NotEqual(t, first, get())
				get()
				assert.Len(t, server.requests, 2)
			})
		})
	}
}

// While the API server does not answer, a pod keeps its token and may start with it. KU-2
func TestObjects_TokensWithoutServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		b, server, get := startTokens(t, dir, 600)
		first := get()
		b.wait(2 * time.Second)
		server.err = errors.New("connection refused")
		b.wait(time.Hour)
		assert.Equal(t, first, get(), "an expired token is better than none")
		b.stop()
		assert.Equal(t, 1, strings.Count(b.log.String(), "not renewed"), "and it is asked for every ten seconds at most")

		b, server, get = startTokens(t, dir, 600)
		server.err = errors.New("connection refused")
		assert.Equal(t, first, get(), "after a reboot")
		assert.Equal(t, first, get())
		server.err = nil
		b.wait(11 * time.Second)
		assert.Equal(t, secretText+"+", get())
		b.setPods()
		b.wait(time.Minute)
		files, err := os.ReadDir(dir)
		require.NoError(t, err)
		for _, f := range files {
			assert.NotContains(t, f.Name(), tokenPrefix, "tokens go with their pods")
		}
	})
}

// A Secret of 1 MiB that changes ten times a second costs one write a second.
func TestObjects_FrequentChangesAreWrittenOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		b := startObjects(t, dir, newSecret("start")).run()
		b.setPods(podOf())
		b.value()
		big := bytes.Repeat([]byte("x"), 1<<20)
		var inodes []string
		for i := range 30 {
			big[0] = byte('a' + i%26)
			s := newSecret("")
			s.Data["k"] = bytes.Clone(big)
			_, err := b.client.CoreV1().Secrets("default").Update(t.Context(), s, metav1.UpdateOptions{})
			require.NoError(t, err)
			b.wait(100 * time.Millisecond)
			if data, err := os.ReadFile(filepath.Join(dir, "secret_default_s.json")); err == nil {
				if version := string(data[len(data)-60:]); len(inodes) == 0 || inodes[len(inodes)-1] != version {
					inodes = append(inodes, version)
				}
			}
		}
		assert.LessOrEqual(t, len(inodes), 5)
		assert.Equal(t, string(big), b.value())
	})
}
