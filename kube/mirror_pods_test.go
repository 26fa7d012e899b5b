package kube_test

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/internal/kubetest"
	"github.com/sublet-dev/agent/kube"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
)

// newStaticPod returns a static pod as a source delivers it.
func newStaticPod(name, version string) *corev1.Pod {
	pod := newTestPod(name)
	pod.UID = ""
	pod.Labels = map[string]string{"version": version}
	podspec.AssignStaticIdentity(pod, nodeName, "file", "/manifests/"+name)
	podspec.AnnotateSource(pod, "file", time.Now())
	return pod
}

func putNode(fake *kubetest.Fake, uid string) {
	node := &corev1.Node{}
	node.Name, node.UID = nodeName, types.UID("uid-of-"+uid)
	fake.Put("nodes", node)
}

func TestMirrorPods_CreatedWithAnnotationsAndOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		putNode(fake, "1")
		k := newTestKube(t, fake)
		static := newStaticPod("web", "1")
		require.NoError(t, k.Statuses().SetStatus(t.Context(), static, running()))
		mirror := fake.Pod("default", "web-node-1")
		require.NotNil(t, mirror)
		require.NotEqual(t, static.UID, mirror.UID)
		hash := string(static.UID)
		require.Equal(t, hash, mirror.Annotations["kubernetes.io/config.mirror"])
		require.Equal(t, hash, mirror.Annotations["kubernetes.io/config.hash"])
		require.Equal(t, "file", mirror.Annotations["kubernetes.io/config.source"])
		require.NotEmpty(t, mirror.Annotations["kubernetes.io/config.seen"])
		isController := true
		require.Equal(t, []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: nodeName, UID: "uid-of-1", Controller: &isController}}, mirror.OwnerReferences)
		require.Equal(t, corev1.PodRunning, mirror.Status.Phase, "the status is that of the static pod")
		require.Equal(t, "1", mirror.Labels["version"])
	})
}

// Another version of a static pod is another pod of the same name. Until the first has
// ended, both have statuses.
func TestMirrorPods_ReplacedWhenOutdated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		putNode(fake, "1")
		k := newTestKube(t, fake)
		watchPods(t, k.Pods())
		first, second := newStaticPod("web", "1"), newStaticPod("web", "2")
		set := func(pod *corev1.Pod) {
			t.Helper()
			require.NoError(t, k.Statuses().SetStatus(t.Context(), pod, running()))
			synctest.Wait()
		}
		set(first)
		set(second)
		mirror := fake.Pod("default", "web-node-1")
		require.Equal(t, string(second.UID), mirror.Annotations[podspec.AnnotationMirror])
		require.Equal(t, 1, k.MirrorPods(), "one for both versions")
		set(first)
		require.NoError(t, k.Statuses().DeleteStatus(t.Context(), first))
		require.Equal(t, mirror.UID, fake.Pod("default", "web-node-1").UID, "the mirror pod of the second version stays")

		require.NoError(t, k.Statuses().DeleteStatus(t.Context(), second))
		require.Nil(t, fake.Pod("default", "web-node-1"), "removed with its pod")
	})
}

// A pod of that name that is no mirror pod is not the node's to replace.
func TestMirrorPods_LeaveOtherPodsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		putNode(fake, "1")
		other := newTestPod("web-node-1")
		fake.Put("pods", other)
		k := newTestKube(t, fake)
		static := newStaticPod("web", "1")
		require.NoError(t, k.Statuses().SetStatus(t.Context(), static, running()))
		require.NoError(t, k.Statuses().DeleteStatus(t.Context(), static))
		require.Equal(t, other.UID, fake.Pod("default", "web-node-1").UID)
		require.Equal(t, corev1.PodPending, fake.Pod("default", "web-node-1").Status.Phase)
	})
}

// The server may reject the mirror pod of a static pod that uses a Secret. It is not asked
// for every status.
func TestMirrorPods_Rejected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		putNode(fake, "1")
		reject := true
		fake.Intercept = func(w http.ResponseWriter, r *http.Request) bool {
			if !reject || r.Method != http.MethodPost {
				return false
			}
			kubetest.WriteError(w, http.StatusForbidden, metav1.StatusReasonForbidden)
			return true
		}
		k := newTestKube(t, fake)
		static := newStaticPod("web", "1")
		for range 5 {
			require.NoError(t, k.Statuses().SetStatus(t.Context(), static, running()))
		}
		require.Equal(t, 1, kubetest.Count(fake.Requests(), "POST"))
		reject = false
		time.Sleep(time.Minute)
		require.NoError(t, k.Statuses().SetStatus(t.Context(), static, running()))
		require.NotNil(t, fake.Pod("default", "web-node-1"))
	})
}

// The Node object may be deleted and registered again: mirror pods need the UID of the
// present one.
func TestMirrorPods_NodeWasRecreated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		k := newTestKube(t, fake)
		watchPods(t, k.Pods())
		require.ErrorContains(t, k.Statuses().SetStatus(t.Context(), newStaticPod("a", "1"), running()), "get node", "retried until the node is registered")
		putNode(fake, "1")
		require.NoError(t, k.Statuses().SetStatus(t.Context(), newStaticPod("a", "1"), running()))
		fake.Remove("nodes", "", nodeName)
		fake.Remove("pods", "default", "a-node-1") // by the garbage collector
		putNode(fake, "2")
		synctest.Wait()
		require.NoError(t, k.Statuses().SetStatus(t.Context(), newStaticPod("a", "1"), running()))
		require.Equal(t, "uid-of-2", string(fake.Pod("default", "a-node-1").OwnerReferences[0].UID))
	})
}

// A Node with finalizers stays for a while after it was deleted. A mirror pod that is made
// meanwhile would be garbage.
func TestMirrorPods_NodeIsBeingDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		putNode(fake, "1")
		node := fake.Node(nodeName)
		node.Finalizers, node.DeletionTimestamp = []string{"example.com/drain"}, new(metav1.Now())
		fake.Put("nodes", node)
		k := newTestKube(t, fake)
		static := newStaticPod("web", "1")
		for range 5 {
			require.NoError(t, k.Statuses().SetStatus(t.Context(), static, running()))
		}
		require.Nil(t, fake.Pod("default", "web-node-1"))
		require.Equal(t, 1, kubetest.Count(fake.Requests(), "GET /api/v1/nodes"), "the Node is not asked for with every status")

		fake.Remove("nodes", "", nodeName)
		putNode(fake, "2")
		time.Sleep(time.Minute)
		require.NoError(t, k.Statuses().SetStatus(t.Context(), static, running()))
		require.Equal(t, "uid-of-2", string(fake.Pod("default", "web-node-1").OwnerReferences[0].UID))
	})
}

// testAgent is an agent on a fake API server, with a simulated runtime and a source of
// static pods.
type testAgent struct {
	*agent.Agent
	fake   *kubetest.Fake
	static *podsource.Memory
	stop   func()
}

func startAgent(t *testing.T, fake *kubetest.Fake, root string, opts ...agent.Option) *testAgent {
	t.Helper()
	k, err := kube.New(kube.Config{Client: fake.Client(), NodeName: nodeName})
	require.NoError(t, err)
	a := &testAgent{fake: fake, static: podsource.NewMemory()}
	opts = append(opts, agent.WithSimulatedRuntime(), agent.WithRootDir(root), agent.WithSource("memory", a.static))
	a.Agent, err = agent.New(append(opts, k.Options(root+"/api")...)...)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	stopped := false
	a.stop = func() {
		if !stopped {
			stopped = true
			cancel()
			require.NoError(t, <-done)
		}
	}
	t.Cleanup(a.stop)
	time.Sleep(5 * time.Second)
	return a
}

func (a *testAgent) phase(name string) corev1.PodPhase {
	synctest.Wait()
	if pod := a.fake.Pod("default", name); pod != nil {
		return pod.Status.Phase
	}
	return "deleted"
}

// KU-4: the mirror pod follows the static pod, whatever others do to it.
func TestMirrorPods_OfAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		putNode(fake, "1")
		orphan := newTestPod("orphan")
		orphan.Annotations = map[string]string{podspec.AnnotationMirror: "x"}
		fake.Put("pods", orphan)
		a := startAgent(t, fake, t.TempDir())
		static := newTestPod("web")
		a.static.Put(static)
		time.Sleep(5 * time.Second)
		require.Equal(t, corev1.PodRunning, a.phase("web"))
		mirror := fake.Pod("default", "web")
		require.Equal(t, string(static.UID), mirror.Annotations[podspec.AnnotationMirror])

		fake.Remove("pods", "default", "web")
		time.Sleep(5 * time.Second)
		require.Equal(t, corev1.PodRunning, a.phase("web"), "created again after it was deleted")
		require.NotEqual(t, mirror.UID, fake.Pod("default", "web").UID)

		now := metav1.Now()
		deleted := fake.Pod("default", "web")
		deleted.DeletionTimestamp = &now
		fake.Put("pods", deleted)
		time.Sleep(15 * time.Second)
		require.Nil(t, fake.Pod("default", "web").DeletionTimestamp, "kubectl delete replaces it, too")
		require.Equal(t, corev1.PodRunning, a.phase("web"))

		time.Sleep(time.Minute)
		require.Nil(t, fake.Pod("default", "orphan"), "one whose static pod went while no agent ran")
		a.static.Delete("default", "web")
		time.Sleep(time.Minute)
		require.Nil(t, fake.Pod("default", "web"), "removed with its pod")
	})
}

// KU-4: the static pod of a manifest that an agent has never read is left alone, and so is its mirror pod.
func TestMirrorPods_OfInvalidManifest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		putNode(fake, "1")
		root, dir := t.TempDir(), t.TempDir()
		write := func(name, content string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name+".yaml"), []byte(content), 0o600))
		}
		for _, name := range []string{"web", "other"} {
			write(name, "apiVersion: v1\nkind: Pod\nmetadata: {name: "+name+"}\nspec: {containers: [{name: c, image: registry.example/app}]}\n")
		}
		source := agent.WithSource("file", podsource.File(dir, podsource.FileNotifier(nil)))
		first := startAgent(t, fake, root, source)
		require.Equal(t, corev1.PodRunning, first.phase("web-node-1"))
		first.stop()
		mirror := fake.Pod("default", "web-node-1")

		write("web", "apiVersion: v1\nkind: Pod\nspec: {")
		second := startAgent(t, fake, root, source)
		time.Sleep(3 * time.Minute)
		require.Equal(t, corev1.PodRunning, second.phase("web-node-1"))
		require.Equal(t, mirror.UID, fake.Pod("default", "web-node-1").UID)

		require.NoError(t, os.Remove(filepath.Join(dir, "web.yaml")))
		time.Sleep(3 * time.Minute)
		require.Equal(t, corev1.PodPhase("deleted"), second.phase("web-node-1"))
		require.Equal(t, corev1.PodRunning, second.phase("other-node-1"))
	})
}

// A mirror pod whose deletion the API server does not answer does not keep statuses from being corrected.
func TestMirrorPods_DeletionHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := kubetest.NewFake(t)
		orphan := newTestPod("orphan")
		orphan.Annotations = map[string]string{podspec.AnnotationMirror: "x"}
		fake.Put("pods", orphan)
		fake.Put("pods", newTestPod("a"))
		fake.Intercept = func(_ http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodDelete {
				return false
			}
			_, _ = io.Copy(io.Discard, r.Body) // only then the end of the request is noticed
			<-r.Context().Done()
			return true
		}
		a := startAgent(t, fake, t.TempDir())
		time.Sleep(time.Minute)
		pod := fake.Pod("default", "a")
		pod.Status.Phase = corev1.PodUnknown
		fake.Put("pods", pod)
		time.Sleep(20 * time.Second)
		require.Equal(t, corev1.PodRunning, a.phase("a"))
	})
}
