package embedded_test

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/internal/embeddedtest"
)

// podUIDLabel is the label by which kubelets list the containers of a pod.
const podUIDLabel = "io.kubernetes.pod.uid"

// fill makes n pods of one container each, as an agent would write them,
// without a wire in between.
func (g *rig) fill(tb testing.TB, n int) {
	_, err := g.Images.PullImage(tb.Context(), &v1.PullImageRequest{Image: &v1.ImageSpec{Image: "busybox"}})
	require.NoError(tb, err)
	for i := range n {
		name := fmt.Sprintf("pod-%d", i)
		pod := embeddedtest.PodConfig(name, "kubernetes.io/config.source: file", "kubernetes.io/config.hash: 0123456789abcdef", "io.kubernetes.pod.terminationGracePeriod: 30")
		pod.Labels["io.kubernetes.pod.namespace"], pod.Labels["io.kubernetes.pod.uid"] = "default", name+"-uid"
		sb, err := g.RunPodSandbox(tb.Context(), &v1.RunPodSandboxRequest{Config: pod})
		require.NoError(tb, err)
		c, err := g.CreateContainer(tb.Context(), &v1.CreateContainerRequest{PodSandboxId: sb.GetPodSandboxId(), Config: &v1.ContainerConfig{
			Metadata: &v1.ContainerMetadata{Name: "c"}, Image: &v1.ImageSpec{Image: "busybox"}, Command: strings.Fields("nginx -g daemon"),
			Labels:      map[string]string{"io.kubernetes.container.name": "c", "io.kubernetes.pod.uid": name + "-uid", "io.kubernetes.pod.name": name},
			Annotations: map[string]string{"io.kubernetes.container.hash": "abcdef", "io.kubernetes.container.restartCount": "0"},
			Envs:        []*v1.KeyValue{{Key: "A", Value: []byte("1")}, {Key: "B", Value: []byte("2")}},
		}})
		require.NoError(tb, err)
		_, err = g.StartContainer(tb.Context(), &v1.StartContainerRequest{ContainerId: c.GetContainerId()})
		require.NoError(tb, err)
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

func TestRuntime_FiveThousandPodsAreSmallAndIdle(t *testing.T) {
	const pods = 5000
	g := newRig(t, embedded.Config{})
	s, err := g.CRI.GetContainerEvents(t.Context(), &v1.GetEventsRequest{})
	require.NoError(t, err)
	go func() { // a reader, so that events are made as well; it may be cut off
		for err := error(nil); err == nil; {
			_, err = s.Recv()
		}
	}()
	before, goroutines := heap(), runtime.NumGoroutine()
	g.fill(t, pods)
	var each uint64
	assert.Eventually(t, func() bool { // once the reader has had all events
		each = (heap() - before) / pods
		return each < 8<<10 && runtime.NumGoroutine()-goroutines < 20
	}, time.Minute, 100*time.Millisecond, "at rest")
	t.Logf("%d bytes a container, pod and request included, %d goroutines more", each, runtime.NumGoroutine()-goroutines)
}

// A slow start, stop or pull blocks no other call: in a bubble time passes only while
// all goroutines wait, so that the other calls take none.
func TestRuntime_SlowCallsBlockNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, embedded.Config{Images: []embedded.Image{{Ref: "slow", PullTime: time.Hour}}})
		g.fill(t, 3)
		_, c := g.make(t, embeddedtest.PodConfig("slow", "sim.sublet.dev/start-delay: 1h", "sim.sublet.dev/stop-after: 1h"))
		began := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := g.StartContainer(t.Context(), &v1.StartContainerRequest{ContainerId: c})
			assert.NoError(t, err)
			_, err = g.StopContainer(t.Context(), &v1.StopContainerRequest{ContainerId: c, Timeout: 7200})
			assert.NoError(t, err)
		})
		wg.Go(func() {
			_, err := g.PullImage(t.Context(), &v1.PullImageRequest{Image: &v1.ImageSpec{Image: "slow"}})
			assert.NoError(t, err)
		})
		for range 4 { // in the start, the pull, and the stop
			time.Sleep(29 * time.Minute)
			before := time.Now()
			list, err := g.ListContainers(t.Context(), &v1.ListContainersRequest{})
			require.NoError(t, err)
			assert.Len(t, list.GetContainers(), 4)
			_, err = g.ContainerStatus(t.Context(), &v1.ContainerStatusRequest{ContainerId: c})
			require.NoError(t, err)
			_, err = g.ListContainerStats(t.Context(), &v1.ListContainerStatsRequest{})
			require.NoError(t, err)
			_, err = g.ImageFsInfo(t.Context(), &v1.ImageFsInfoRequest{})
			require.NoError(t, err)
			sandbox, other := g.make(t, embeddedtest.PodConfig("other"))
			_, err = g.StartContainer(t.Context(), &v1.StartContainerRequest{ContainerId: other})
			require.NoError(t, err)
			_, err = g.RemovePodSandbox(t.Context(), &v1.RemovePodSandboxRequest{PodSandboxId: sandbox})
			require.NoError(t, err)
			assert.Zero(t, time.Since(before))
		}
		wg.Wait()
		assert.Equal(t, 2*time.Hour, time.Since(began))
	})
}

// make makes a container in a pod of its own.
func (g *rig) make(tb testing.TB, pod *v1.PodSandboxConfig) (sandbox, container string) {
	sb, err := g.RunPodSandbox(tb.Context(), &v1.RunPodSandboxRequest{Config: pod})
	require.NoError(tb, err)
	c, err := g.CreateContainer(tb.Context(), &v1.CreateContainerRequest{PodSandboxId: sb.GetPodSandboxId(), Config: &v1.ContainerConfig{
		Metadata: &v1.ContainerMetadata{Name: "c"}, Image: &v1.ImageSpec{Image: "busybox"},
	}})
	require.NoError(tb, err)
	return sb.GetPodSandboxId(), c.GetContainerId()
}

// Lists of one pod are taken from a book of their own, which must say what the
// whole list says, whatever went meanwhile.
func TestRuntime_ListsOfOnePodAgreeWithListsOfAll(t *testing.T) {
	g := newRig(t, embedded.Config{})
	g.fill(t, 5)
	of := func(labels map[string]string) (ids []string) {
		pods, err := g.ListPodSandbox(t.Context(), &v1.ListPodSandboxRequest{Filter: &v1.PodSandboxFilter{LabelSelector: labels}})
		require.NoError(t, err)
		for _, p := range pods.GetItems() {
			ids = append(ids, p.GetId())
		}
		containers, err := g.ListContainers(t.Context(), &v1.ListContainersRequest{Filter: &v1.ContainerFilter{LabelSelector: labels}})
		require.NoError(t, err)
		for _, c := range containers.GetContainers() {
			ids = append(ids, c.GetId())
		}
		return ids
	}
	for i := range 5 {
		pod := fmt.Sprintf("pod-%d", i)
		mine := of(map[string]string{podUIDLabel: pod + "-uid"})
		require.Len(t, mine, 2, pod)
		assert.Equal(t, mine, of(map[string]string{"io.kubernetes.pod.name": pod}), "found by another label, which no book is kept by")
		assert.Subset(t, of(nil), mine)
		assert.Empty(t, of(map[string]string{podUIDLabel: pod + "-uid", "app": "other"}), "all labels count")
		_, err := g.RemovePodSandbox(t.Context(), &v1.RemovePodSandboxRequest{PodSandboxId: mine[0]})
		require.NoError(t, err)
		assert.Empty(t, of(map[string]string{podUIDLabel: pod + "-uid"}), "it is gone")
		assert.Len(t, of(nil), 2*(4-i))
	}
	assert.Zero(t, embedded.IndexedByPod(g.Runtime), "nothing is left in the index")
}

func BenchmarkListOnePod(b *testing.B) {
	for _, pods := range []int{100, 10_000} {
		b.Run(fmt.Sprint("of=", pods), func(b *testing.B) {
			g := newRig(b, embedded.Config{})
			g.fill(b, pods)
			f := &v1.ContainerFilter{LabelSelector: map[string]string{podUIDLabel: "pod-50-uid"}}
			b.ReportAllocs()
			for b.Loop() {
				if n := embedded.CountContainers(g.Runtime, f); n != 1 {
					b.Fatal(n)
				}
			}
		})
	}
}

func BenchmarkListFiveThousandPods(b *testing.B) {
	g := newRig(b, embedded.Config{})
	g.fill(b, 5000)
	b.Run("in the runtime", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			r, err := g.ListPodSandbox(b.Context(), &v1.ListPodSandboxRequest{})
			if err != nil || len(r.GetItems()) != 5000 {
				b.Fatal(len(r.GetItems()), err)
			}
		}
	})
	b.Run("put into bytes", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := proto.Marshal(embedded.EncodedPodList(g.Runtime)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("over the wire", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			r, err := g.CRI.ListPodSandbox(b.Context(), &v1.ListPodSandboxRequest{})
			if err != nil || len(r.GetItems()) != 5000 {
				b.Fatal(len(r.GetItems()), err)
			}
		}
	})
}
