package cri

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// kubeletPod puts a pod in the fake as a kubelet makes it: the source is in
// the sandbox alone. It returns the ids.
func (f *fake) kubeletPod(name, source string) (sandbox, container string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	sandbox, container = f.id("kube-sb"), f.id("kube-ct")
	uid := "uid-" + name
	labels := map[string]string{
		runtime.LabelPodName: name, runtime.LabelPodNamespace: "kube-system", runtime.LabelPodUID: uid,
	}
	f.sandboxes[sandbox] = &v1.PodSandboxStatus{
		Id: sandbox, Metadata: &v1.PodSandboxMetadata{Name: name, Namespace: "kube-system", Uid: uid}, Labels: labels,
		Annotations: map[string]string{podspec.AnnotationSource: source},
	}
	f.containers[container] = &v1.ContainerStatus{
		Id: container, Metadata: &v1.ContainerMetadata{Name: "main"}, State: v1.ContainerState_CONTAINER_RUNNING, StartedAt: 1,
		Labels: labels, Annotations: map[string]string{runtime.AnnotationHash: "5b4c2d7e"},
		Image: &v1.ImageSpec{Image: "registry/kube:1"}, ImageId: "sha256:kube",
	}
	f.inSandbox[container] = sandbox
	return sandbox, container
}

func uidsOf(pods []runtime.Pod) []types.UID {
	var uids []types.UID
	for i := range pods {
		uids = append(uids, pods[i].UID)
	}
	slices.Sort(uids)
	return uids
}

func podOfUID(uid types.UID) *corev1.Pod {
	pod := onePod("main")
	pod.UID, pod.Name = uid, string(uid)
	return pod
}

func startPod(t *testing.T, c *Client, pod *corev1.Pod) runtime.Pod {
	t.Helper()
	require.Empty(t, c.Apply(t.Context(), pod, startAll(pod), runtime.RunOptions{}).Failures)
	p, err := c.Pod(t.Context(), pod.UID)
	require.NoError(t, err)
	require.Len(t, p.Containers, 1)
	return p
}

// killPod kills a pod and returns what is left of it.
func killPod(t *testing.T, c *Client, uid types.UID) runtime.Pod {
	t.Helper()
	p, err := c.Pod(t.Context(), uid)
	require.NoError(t, err)
	require.NoError(t, c.Kill(t.Context(), podOfUID(uid), p, runtime.Termination{}))
	p, err = c.Pod(t.Context(), uid)
	require.NoError(t, err)
	return p
}

// OW-1
func TestClient_SeesWhatItsOwnerMade(t *testing.T) {
	for _, streams := range []bool{false, true} {
		f := newFake()
		f.streams = streams
		f.addImage(busybox)
		one, two := f.client(t, Config{Owner: "one"}), f.client(t, Config{Owner: "two"})
		f.kubeletPod("coredns", "api")
		startPod(t, one, podOfUID("uid-1"))
		startPod(t, two, podOfUID("uid-2"))
		for _, tt := range []struct {
			name   string
			client *Client
			want   []types.UID
		}{
			{"one owner", one, []types.UID{"uid-1"}},
			{"another", two, []types.UID{"uid-2"}},
			{"a client without an owner", f.client(t, Config{}), nil},
			{"an observer", f.client(t, Config{Observer: true}), []types.UID{"uid-1", "uid-2", "uid-coredns"}},
			{"one that adopts from this source", f.client(t, Config{Owner: "three", AdoptSources: []string{"api"}}), []types.UID{"uid-coredns"}},
			{"one that adopts from another", f.client(t, Config{Owner: "three", AdoptSources: []string{"file"}}), nil},
		} {
			pods, err := tt.client.Pods(t.Context())
			require.NoError(t, err)
			assert.Equal(t, tt.want, uidsOf(pods), tt.name)
			for _, uid := range []types.UID{"uid-1", "uid-2", "uid-coredns"} {
				p, err := tt.client.Pod(t.Context(), uid)
				require.NoError(t, err)
				n := 0
				if slices.Contains(tt.want, uid) {
					n = 1
				}
				assert.Len(t, p.Sandboxes, n, "%s %s", tt.name, uid)
				assert.Len(t, p.Containers, n, "%s %s", tt.name, uid)
			}
		}
	}
}

// OW-1: both the sandbox and its containers are marked, and no label of a pod's
// own takes the place of the mark.
func TestClient_MarksWhatItMakes(t *testing.T) {
	f := newFake()
	f.addImage(busybox)
	c := f.client(t, Config{})
	c.SetOwner("node-1", nil)
	pod := podOfUID("uid-1")
	pod.Labels = map[string]string{runtime.LabelOwner: "somebody"}
	p := startPod(t, c, pod)
	assert.Equal(t, "node-1", f.sandboxes[p.Sandboxes[0].ID].GetLabels()[runtime.LabelOwner])
	assert.Equal(t, "node-1", f.containers[p.Containers[0].ID].GetLabels()[runtime.LabelOwner])

	reported := f.client(t, Config{Owner: "mine"})
	reported.SetOwner("node-1", nil)
	assert.Equal(t, "mine", reported.owner(), "what Config says counts")
	_, err := New(nil, Config{})
	require.Error(t, err)
	cfg := Config{Observer: true, Owner: "x"}
	require.ErrorContains(t, cfg.fill(), "Observer")
}

// OW-1: whatever ids it is given, a Client changes nothing of others.
func TestClient_ChangesNothingOfOthers(t *testing.T) {
	f := newFake()
	f.addImage(busybox)
	theirs := startPod(t, f.client(t, Config{Owner: "two"}), podOfUID("uid-2"))
	sb, ct := f.kubeletPod("coredns", "api")
	for name, c := range map[string]*Client{
		"another owner": f.client(t, Config{Owner: "one"}), "no owner": f.client(t, Config{}),
		"an observer": f.client(t, Config{Observer: true}),
	} {
		for _, id := range []string{ct, theirs.Containers[0].ID} {
			_, _, execErr := c.Exec(t.Context(), id, []string{"true"}, 0, 0)
			_, execURLErr := c.ExecURL(t.Context(), id, []string{"sh"}, runtime.Streams{Stdin: true})
			_, attachErr := c.AttachURL(t.Context(), id, runtime.Streams{Stdin: true})
			for what, err := range map[string]error{
				"remove": c.RemoveContainer(t.Context(), id), "stop": c.stopContainer(t.Context(), id, 0),
				"exec": execErr, "stream exec": execURLErr, "attach": attachErr,
				"checkpoint": c.CheckpointContainer(t.Context(), id, "/c.tar", 0), "reopen log": c.ReopenLog(t.Context(), id), "cpuset": c.UpdateCpuset(t.Context(), id, runtime.Cpuset{CPUs: "0"}),
			} {
				assert.ErrorIs(t, err, runtime.ErrNotOwner, "%s: %s %s", name, what, id)
			}
		}
		for _, id := range []string{sb, theirs.Sandboxes[0].ID} {
			_, forwardErr := c.PortForwardURL(t.Context(), id, []int32{80})
			assert.ErrorIs(t, forwardErr, runtime.ErrNotOwner, name)
			assert.ErrorIs(t, c.RemoveSandbox(t.Context(), id), runtime.ErrNotOwner, name)
			assert.ErrorIs(t, c.stopSandbox(t.Context(), id), runtime.ErrNotOwner, name)
		}
		assert.ErrorIs(t, c.Kill(t.Context(), podOfUID("uid-2"), theirs, runtime.Termination{}), runtime.ErrNotOwner, name)
	}
	for _, rpc := range []string{"StopContainer", "RemoveContainer", "ExecSync", "ReopenContainerLog", "StopPodSandbox", "RemovePodSandbox", "Exec", "Attach", "PortForward", "CheckpointContainer"} {
		assert.Zero(t, f.count(rpc), rpc)
	}
}

// What a Client has seen needs no further call before it is changed; what was not
// listed is queried, and a missing one is not an error.
func TestClient_AsksOnceWhoseItIs(t *testing.T) {
	f := newFake()
	f.addImage(busybox)
	p := startPod(t, f.client(t, Config{}), podOfUID("uid-1"))
	c := f.client(t, Config{})
	f.took()
	require.NoError(t, c.stopContainer(t.Context(), p.Containers[0].ID, 0))
	assert.Equal(t, []string{"ListContainers", "StopContainer"}, f.took())
	require.NoError(t, c.RemoveContainer(t.Context(), p.Containers[0].ID))
	assert.Equal(t, []string{"RemoveContainer"}, f.took())
	require.NoError(t, c.RemoveContainer(t.Context(), "never"))
	_, err := c.Pods(t.Context())
	require.NoError(t, err)
	f.took()
	require.NoError(t, c.stopSandbox(t.Context(), p.Sandboxes[0].ID))
	assert.Equal(t, []string{"StopPodSandbox"}, f.took())
	assert.False(t, c.owned.has(p.Containers[0].ID), "what is gone is forgotten")
}

// A Client remembers nothing of what it has removed, but for adopted pods, whose containers'
// late events it recognises.
func TestClient_ForgetsWhatItRemoves(t *testing.T) {
	f := newFake()
	f.addImage(busybox)
	c := f.client(t, Config{Owner: "one"})
	pod := podOfUID("uid-1")
	for _, byOne := range []bool{false, true} {
		startPod(t, c, pod)
		require.Len(t, c.owned.ids, 2)
		p := killPod(t, c, pod.UID)
		if byOne {
			require.NoError(t, c.RemoveContainer(t.Context(), p.Containers[0].ID))
			require.NoError(t, c.RemoveSandbox(t.Context(), p.Sandboxes[0].ID))
		} else {
			require.NoError(t, c.Remove(t.Context(), p))
		}
		assert.Empty(t, c.owned.ids)
	}

	f.events = make(chan *v1.ContainerEventResponse, 1)
	_, ct := f.kubeletPod("web", "file")
	f.events <- &v1.ContainerEventResponse{ContainersStatuses: []*v1.ContainerStatus{{Id: ct, Labels: map[string]string{runtime.LabelPodUID: "uid-web"}}}}
	close(f.events)
	c = f.client(t, Config{Owner: "one", AdoptSources: []string{"file"}})
	require.NoError(t, c.Remove(t.Context(), killPod(t, c, "uid-web")))
	var notified []types.UID
	require.Error(t, c.Watch(t.Context(), func(u types.UID) { notified = append(notified, u) }))
	assert.Equal(t, []types.UID{"uid-web"}, notified)
}

// RT-17, OW-1: a name that a sandbox of another owner has is not made free, and
// the error says whose it is.
func TestClient_LeavesANameToItsOwner(t *testing.T) {
	f := newFake()
	f.addImage(busybox)
	other := startPod(t, f.client(t, Config{Owner: "two"}), podOfUID("uid-1"))
	f.mu.Lock()
	f.sandboxes[other.Sandboxes[0].ID].State = v1.PodSandboxState_SANDBOX_NOTREADY
	f.mu.Unlock()
	pod := podOfUID("uid-1")
	got := f.client(t, Config{Owner: "one"}).Apply(t.Context(), pod, startAll(pod), runtime.RunOptions{}).Failures[""]
	require.ErrorIs(t, got.Err, runtime.ErrNotOwner)
	assert.Contains(t, got.Message, other.Sandboxes[0].ID)
	assert.Contains(t, got.Message, "owner two")
	assert.Zero(t, f.count("StopPodSandbox")+f.count("RemovePodSandbox"))
}

// OW-1: word of a pod of others is not passed on.
func TestClient_WatchesItsOwn(t *testing.T) {
	f := newFake()
	f.events = make(chan *v1.ContainerEventResponse, 8)
	event := func(uid, owner, source string) *v1.ContainerEventResponse {
		labels := map[string]string{runtime.LabelPodUID: uid}
		if owner != "" {
			labels[runtime.LabelOwner] = owner
		}
		return &v1.ContainerEventResponse{PodSandboxStatus: &v1.PodSandboxStatus{
			Metadata: &v1.PodSandboxMetadata{Uid: uid}, Labels: labels, Annotations: map[string]string{podspec.AnnotationSource: source},
		}}
	}
	f.events <- event("ours", "one", "file")
	f.events <- event("theirs", "two", "file")
	f.events <- event("static", "", "file")
	f.events <- event("from-api", "", "api")
	f.events <- &v1.ContainerEventResponse{ContainersStatuses: []*v1.ContainerStatus{{Id: "x", Labels: map[string]string{runtime.LabelPodUID: "dead"}}}}
	close(f.events)
	var hints []types.UID
	c := f.client(t, Config{Owner: "one", AdoptSources: []string{"api"}})
	require.Error(t, c.Watch(t.Context(), func(u types.UID) { hints = append(hints, u) }))
	assert.Equal(t, []types.UID{"ours", "from-api"}, hints)
}

// OW-1: the images of a runtime are in use by all owners.
func TestClient_ImagesInUseAreThoseOfAll(t *testing.T) {
	f := newFake()
	f.addImage(busybox)
	c := f.client(t, Config{Owner: "one"})
	startPod(t, f.client(t, Config{Owner: "two"}), podOfUID("uid-2"))
	f.kubeletPod("coredns", "api")
	refs, err := c.ImagesInUse(t.Context())
	require.NoError(t, err)
	for _, ref := range []string{"registry/kube:1", busybox} {
		assert.Contains(t, refs, ref)
	}
}

// OW-2: an adopted pod is the Client's in every respect; nothing tells it from
// one that bears the label.
func TestClient_AdoptedPodIsItsOwn(t *testing.T) {
	f := newFake()
	f.addImage(busybox)
	sb, ct := f.kubeletPod("web", "file")
	c := f.client(t, Config{Owner: "one", AdoptSources: []string{"file"}})
	require.NoError(t, c.mayChangeContainer(context.Background(), ct), "before anything was listed")
	require.NoError(t, c.Remove(t.Context(), killPod(t, c, "uid-web")))
	assert.NotContains(t, f.sandboxes, sb)
}
