package kube

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
)

// fakeReporter reports a status that a test changes.
type fakeReporter struct {
	mu     sync.Mutex
	status corev1.NodeStatus
	err    error
}

func newFakeReporter() *fakeReporter {
	return &fakeReporter{status: corev1.NodeStatus{
		Capacity:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")},
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}},
		Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.5"}, {Type: corev1.NodeInternalIP, Address: "fd00::5"}},
		NodeInfo:   corev1.NodeSystemInfo{BootID: "one"},
	}}
}

func (r *fakeReporter) change(f func(*corev1.NodeStatus)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.status)
}

func (r *fakeReporter) setReady(status corev1.ConditionStatus) {
	r.change(func(s *corev1.NodeStatus) { s.Conditions[0].Status = status })
}

func (r *fakeReporter) At(context.Context, time.Time) (corev1.NodeStatus, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return *r.status.DeepCopy(), r.err
}

func (r *fakeReporter) Conditions() []corev1.NodeCondition {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status.DeepCopy().Conditions
}

// nodeBench is a Node that runs against a fake API server in a bubble.
type nodeBench struct {
	t        *testing.T
	client   *fake.Clientset
	reporter *fakeReporter
	node     *Node
	log      *strings.Builder
}

func startNode(t *testing.T, cfg NodeConfig, existing ...runtime.Object) *nodeBench {
	t.Helper()
	b := &nodeBench{t: t, client: fake.NewClientset(existing...), reporter: newFakeReporter(), log: &strings.Builder{}}
	cfg.Reporter = b.reporter
	k, err := New(Config{Client: b.client, NodeName: "n", Logger: slog.New(slog.NewTextHandler(&lockedWriter{w: b.log}, nil))})
	require.NoError(t, err)
	b.node, err = k.Node(cfg)
	require.NoError(t, err)
	return b
}

func (b *nodeBench) run() *nodeBench {
	ctx, cancel := context.WithCancel(b.t.Context())
	done := make(chan error, 1)
	go func() { done <- b.node.Run(ctx) }()
	b.t.Cleanup(func() { cancel(); assert.NoError(b.t, <-done) })
	b.wait(time.Second)
	return b
}

type lockedWriter struct {
	mu sync.Mutex
	w  *strings.Builder
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

func (b *nodeBench) wait(d time.Duration) { time.Sleep(d); synctest.Wait() }

func (b *nodeBench) get() *corev1.Node {
	b.t.Helper()
	node, err := b.client.Tracker().Get(schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, "", "n")
	require.NoError(b.t, err)
	return node.(*corev1.Node)
}

func (b *nodeBench) lease() *coordinationv1.Lease {
	b.t.Helper()
	l, err := b.client.Tracker().Get(schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}, corev1.NamespaceNodeLease, "n")
	require.NoError(b.t, err)
	return l.(*coordinationv1.Lease)
}

// count returns how many calls of a verb were made for a resource.
func (b *nodeBench) count(verb, resource string) int {
	n := 0
	for _, a := range b.client.Actions() {
		if a.Matches(verb, resource) || a.GetSubresource() != "" && a.Matches(verb, resource+"/"+a.GetSubresource()) {
			n++
		}
	}
	return n
}

// fail makes the calls that match return err until the result is called.
func (b *nodeBench) fail(verb, resource string, err error) (stop func()) {
	var mu sync.Mutex
	failing := true
	b.client.PrependReactor(verb, resource, func(k8stesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		return failing, nil, err
	})
	return func() { mu.Lock(); defer mu.Unlock(); failing = false }
}

func TestKube_NodeChecksItsConfiguration(t *testing.T) {
	k, err := New(Config{Client: fake.NewClientset(), NodeName: "n"})
	require.NoError(t, err)
	_, err = k.Node(NodeConfig{
		Labels:       map[string]string{"kubernetes.io/role": "x", "node-role.kubernetes.io/x": "", "a b": "c", "edge.example/site": "a", "node.kubernetes.io/x": "y"},
		StatusPeriod: time.Millisecond,
	})
	for _, want := range []string{"Reporter: required", `"kubernetes.io/role" is reserved`, `"node-role.kubernetes.io/x" is reserved`, `invalid label a b="c"`, "period 1ms must be at least 1s"} {
		require.ErrorContains(t, err, want)
	}
	assert.NotContains(t, err.Error(), "edge.example")
	assert.NotContains(t, err.Error(), `"node.kubernetes.io/x"`)
}

// KU-6
func TestNode_Registers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		taint := corev1.Taint{Key: "edge", Effect: corev1.TaintEffectNoSchedule}
		b := startNode(t, NodeConfig{Labels: map[string]string{"site": "a"}, Taints: []corev1.Taint{taint}, ProviderID: "p", Unschedulable: true})
		assert.Equal(t, "a", b.node.Labels()["site"], "before the Node is known")
		b.run()
		node := b.get()
		assert.Equal(t, "n", node.Labels[corev1.LabelHostname])
		assert.Equal(t, "linux", node.Labels[corev1.LabelOSStable])
		assert.Equal(t, "a", node.Labels["site"])
		assert.Equal(t, "true", node.Annotations[controllerAttaches], "else no controller attaches a volume")
		assert.Equal(t, []corev1.Taint{taint}, node.Spec.Taints)
		assert.Equal(t, "p", node.Spec.ProviderID)
		assert.True(t, node.Spec.Unschedulable)
		assert.Equal(t, Version, node.Status.NodeInfo.KubeletVersion)
		assert.Equal(t, corev1.ConditionTrue, node.Status.Conditions[0].Status)
		assert.Len(t, node.Status.Addresses, 2)
		lease := b.lease()
		assert.Equal(t, "n", *lease.Spec.HolderIdentity)
		assert.EqualValues(t, 40, *lease.Spec.LeaseDurationSeconds)
		assert.Equal(t, "a", b.node.Labels()["site"])
	})
}

func TestNode_TakesUpARegisteredNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := metav1.NewTime(time.Now().Add(-time.Hour))
		existing := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", Labels: map[string]string{"theirs": "x", corev1.LabelOSStable: "plan9", "site": "old"}},
			Spec:       corev1.NodeSpec{Unschedulable: true},
			Status: corev1.NodeStatus{
				Capacity:    corev1.ResourceList{"example.com/gpu": resource.MustParse("2"), "hugepages-2Mi": resource.MustParse("1Gi")},
				Allocatable: corev1.ResourceList{"example.com/gpu": resource.MustParse("1"), "example.com/gone": resource.MustParse("1")},
				Conditions: []corev1.NodeCondition{
					{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: old},
					{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, LastTransitionTime: old},
				},
				NodeInfo: corev1.NodeSystemInfo{ContainerRuntimeVersion: "containerd://2", BootID: "zero"},
			},
		}
		events := &recorder{}
		taint := corev1.Taint{Key: "edge", Effect: corev1.TaintEffectNoSchedule}
		b := startNode(t, NodeConfig{Labels: map[string]string{"site": "a"}, Taints: []corev1.Taint{taint}, Recorder: events}, existing).run()
		b.wait(15 * time.Second)
		node := b.get()
		assert.Equal(t, "linux", node.Labels[corev1.LabelOSStable])
		assert.Equal(t, "a", node.Labels["site"])
		assert.Equal(t, "x", node.Labels["theirs"])
		assert.Equal(t, "true", node.Annotations[controllerAttaches])
		assert.True(t, node.Spec.Unschedulable, "a cordoned node stays so")
		assert.Contains(t, node.Status.Capacity, corev1.ResourceName("example.com/gpu"), "extended resources are others'")
		assert.Equal(t, int64(2), node.Status.Allocatable.Name("example.com/gpu", resource.DecimalSI).Value(), "an administrator sets their capacity alone")
		assert.NotContains(t, node.Status.Allocatable, corev1.ResourceName("example.com/gone"), "without a capacity there are none")
		assert.NotContains(t, node.Status.Capacity, corev1.ResourceName("hugepages-2Mi"), "page sizes are the node's")
		require.Len(t, node.Status.Conditions, 2)
		assert.Equal(t, old.Unix(), conditionOf(node, corev1.NodeReady).LastTransitionTime.Unix(), "a restart of the agent is no transition")
		assert.Equal(t, "containerd://2", node.Status.NodeInfo.ContainerRuntimeVersion, "kept until the runtime answers")
		assert.Equal(t, []string{"Starting", "Rebooted", "NodeNotSchedulable"}, events.reasons())
		assert.Contains(t, b.log.String(), "taint not set")
	})
}

func conditionOf(node *corev1.Node, kind corev1.NodeConditionType) corev1.NodeCondition {
	for _, c := range node.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return corev1.NodeCondition{}
}

type recorder struct {
	mu  sync.Mutex
	all []string
}

func (r *recorder) Record(e *corev1.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, e.Reason)
	if len(r.all) > 100 {
		panic("a recorder of the user")
	}
}

func (r *recorder) reasons() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all
}

// KU-6
func TestNode_SendsWhatChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := &recorder{}
		b := startNode(t, NodeConfig{Recorder: events}).run()
		b.wait(time.Minute)
		calls := b.count("patch", "nodes")

		b.reporter.setReady(corev1.ConditionFalse)
		b.wait(2 * time.Second)
		assert.Equal(t, corev1.ConditionFalse, conditionOf(b.get(), corev1.NodeReady).Status, "a transition is sent within a second or so")
		assert.Equal(t, calls+1, b.count("patch", "nodes"))
		assert.Equal(t, []string{"Starting", "NodeNotReady"}, events.reasons())

		b.reporter.change(func(s *corev1.NodeStatus) { s.Images = []corev1.ContainerImage{{Names: []string{"i"}}} })
		b.wait(11 * time.Second)
		assert.Len(t, b.get().Status.Images, 1)
		b.reporter.change(func(s *corev1.NodeStatus) { s.Addresses = s.Addresses[1:] })
		b.wait(11 * time.Second)
		require.Len(t, b.get().Status.Addresses, 1)
		assert.Equal(t, "fd00::5", b.get().Status.Addresses[0].Address)
	})
}

// KU-6
func TestNode_SendsAnUnchangedStatusRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startNode(t, NodeConfig{}).run()
		calls, renewals := b.count("patch", "nodes"), b.count("update", "leases")
		b.wait(time.Hour)
		assert.InDelta(t, 11.5, b.count("patch", "nodes")-calls, 0.5, "every five minutes; the first after 2.5 to 7.5")
		assert.Zero(t, b.count("get", "nodes"), "the watch tells what the server has")
		assert.InDelta(t, 365, b.count("update", "leases")-renewals, 20)
	})
}

// KU-6
func TestNode_RepairsLabelsOfTheSystem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startNode(t, NodeConfig{Labels: map[string]string{"site": "a"}}).run()
		node := b.get().DeepCopy()
		delete(node.Labels, corev1.LabelArchStable)
		delete(node.Annotations, controllerAttaches)
		node.Labels["site"] = "b"
		_, err := b.client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{})
		require.NoError(t, err)
		b.wait(11 * time.Second)
		assert.NotEmpty(t, b.get().Labels[corev1.LabelArchStable])
		assert.Equal(t, "true", b.get().Annotations[controllerAttaches])
		assert.Equal(t, "b", b.get().Labels["site"], "what an administrator sets while the agent runs is kept")
		assert.Equal(t, "b", b.node.Labels()["site"])
	})
}

// A Node that is deleted while its agent runs is registered with its taints once more. KU-6
func TestNode_IsRegisteredWhenDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startNode(t, NodeConfig{Taints: []corev1.Taint{{Key: "edge", Effect: corev1.TaintEffectNoSchedule}}}).run()
		require.NoError(t, b.client.CoreV1().Nodes().Delete(t.Context(), "n", metav1.DeleteOptions{}))
		require.NoError(t, b.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Delete(t.Context(), "n", metav1.DeleteOptions{}))
		b.wait(21 * time.Second)
		assert.Len(t, b.get().Spec.Taints, 1)
		assert.NotNil(t, b.lease().Spec.RenewTime)
	})
}

func TestNode_LeavesRegistrationToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startNode(t, NodeConfig{NoRegistration: true}).run()
		b.wait(time.Minute)
		assert.Zero(t, b.count("create", "nodes"))
		assert.Contains(t, b.log.String(), "get node")
		_, err := b.client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, metav1.CreateOptions{})
		require.NoError(t, err)
		b.wait(11 * time.Second)
		assert.Len(t, b.get().Status.Conditions, 1)
	})
}

// A node whose user may not create its Node uses the one that exists. KU-6
func TestNode_UsesANodeThatItMayNotCreate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startNode(t, NodeConfig{}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
		b.fail("create", "nodes", apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "n", nil))
		b.run()
		assert.Len(t, b.get().Status.Conditions, 1)
	})
}

// An API server that is away for an hour costs little, and has the status soon after.
func TestNode_APIServerAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startNode(t, NodeConfig{}).run()
		stop := b.fail("*", "*", errors.New("connection refused"))
		b.reporter.setReady(corev1.ConditionFalse)
		before := len(b.client.Actions())
		b.wait(time.Hour)
		assert.Less(t, len(b.client.Actions())-before, 3*3600/3, "about one call in five seconds for each of status and lease")
		stop()
		b.wait(10 * time.Second)
		assert.Equal(t, corev1.ConditionFalse, conditionOf(b.get(), corev1.NodeReady).Status)
		assert.WithinDuration(t, time.Now(), b.lease().Spec.RenewTime.Time, 20*time.Second)
	})
}

func TestNode_IncompleteStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startNode(t, NodeConfig{})
		b.reporter.err = errors.New("no images today")
		b.run()
		b.wait(time.Minute)
		assert.Equal(t, 1, strings.Count(b.log.String(), "no images today"), "it is logged once")
		assert.Len(t, b.get().Status.Conditions, 1, "the rest is sent")
	})
}

func TestNode_PatchHasTheUIDAsPrecondition(t *testing.T) {
	before := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u"}}
	after := before.DeepCopy()
	after.Status.Addresses = newFakeReporter().status.Addresses
	data, err := nodePatch(before, after)
	require.NoError(t, err)
	assert.JSONEq(t, `{"metadata":{"uid":"u"},"status":{"addresses":[{"type":"InternalIP","address":"10.0.0.5"},{"type":"InternalIP","address":"fd00::5"},{"$patch":"replace"}]}}`, string(data))
}

// The response to a patch may arrive after the event of a later change, of which no other event would come.
func TestNode_LateResponseHidesNoChange(t *testing.T) {
	b := startNode(t, NodeConfig{}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", ResourceVersion: "10"}})
	b.client.PrependReactor("patch", "nodes", func(a k8stesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != "status" {
			return false, nil, nil
		}
		patched := b.get().DeepCopy()
		patched.ResourceVersion = "11"
		changed := patched.DeepCopy()
		changed.ResourceVersion, changed.Labels = "12", map[string]string{"disk": "ssd"}
		require.NoError(t, nodeStore{b.node}.Update(changed))
		return true, patched, nil
	})
	require.NoError(t, b.node.sync(t.Context()))
	assert.Equal(t, "ssd", b.node.Labels()["disk"])
	b.node.set(nil)
	assert.Equal(t, "ssd", b.node.Labels()["disk"], "no pod is judged by less while the Node is registered again")
}
