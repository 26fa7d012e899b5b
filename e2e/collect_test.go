//go:build linux

package e2e

import (
	"context"
	"crypto/rand"
	"fmt"
	"math"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/internal/containerdtest"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/runtime"
	criclient "github.com/sublet-dev/agent/runtime/cri"
)

// IG-1, IG-3: pods start from twelve images on a disk that has room for half of
// them, while collection takes what is not in use. No start ever finds an image
// gone that it had seen, and what a pod uses stays. SUBLET_STARTS says how many
// pods there are; by default 60 on the newest containerd and 30 on others. On a slow
// machine SUBLET_STARTS_TIME bounds the time of the starts; at least fewStarts are made,
// half as many at a time, from half as many images on half the disk.
func TestStartsAgainstImageCollection(t *testing.T) {
	containerdtest.Stress(t, func(t *testing.T, n *containerdtest.Node) {
		starts := 30
		if s, err := strconv.Atoi(os.Getenv("SUBLET_STARTS")); err == nil {
			starts = s
		}
		limit, err := time.ParseDuration(os.Getenv("SUBLET_STARTS_TIME"))
		images, period := 12, 50*time.Millisecond
		if err == nil {
			images, period = 6, time.Second // each collection lists everything
		} else {
			limit = math.MaxInt64
		}
		c := newContest(t, n, images, period)
		c.loners(t)
		began := time.Now()
		starts = c.race(t, starts, limit)
		took := time.Since(began)
		c.mu.Lock()
		defer c.mu.Unlock()
		pulls := c.pulls()
		require.NotEmpty(t, c.removed, "no collection")
		t.Logf("measured: %s: %d starts in %v, %d images removed in %d collections that freed %d MB, %d pulls, at most %d %% of the disk",
			n.Name, starts, took.Round(time.Millisecond), len(c.removed), c.collections, c.freed>>20, pulls, c.most)
		assert.Empty(t, c.wrong, "what a pod heard of")
		assert.Greater(t, len(c.removed), starts/15, "collection was at work")
		assert.Greater(t, pulls, len(c.images)+starts/15, "and what it took was wanted again")
		for _, ref := range c.used {
			assert.NotContains(t, c.removed, ref, "in use, or pinned")
		}
	})
}

// gcRace is an agent that collects images as fast as it can, and pods that want
// them.
type gcRace struct {
	cc       grpc.ClientConnInterface
	registry *containerdtest.Registry
	disk     string
	images   []string
	used     []string // of pods that run all the while, and that of the sandboxes
	pods     *podsource.Memory
	parallel int // pods that start at a time: their images fit above the threshold of collections

	mu          sync.Mutex // guards the rest
	waits       map[string]chan struct{}
	removed     []string
	collections int
	freed       uint64
	most        uint64
	wrong       []string
}

func newContest(t *testing.T, n *containerdtest.Node, images int, period time.Duration) *gcRace {
	c := &gcRace{cc: n.Dial(t), registry: n.Registry, pods: podsource.NewMemory(), parallel: images / 3, waits: map[string]chan struct{}{}}
	pause := n.Registry.Addr() + "/test/pause:1"
	shared := []containerdtest.File{noise("shared", 1<<20)}
	for i := range images {
		layers := [][]containerdtest.File{{noise("own", (1+i%3)<<20)}}
		if i%2 == 0 {
			layers = slices.Insert(layers, 0, shared)
		}
		c.images = append(c.images, n.PushLayers(t, fmt.Sprint("test/app", i), "1", layers...))
	}
	c.used = []string{c.images[0], c.images[1], pause}
	c.disk = n.SmallRoot(t, images*64<<20/12)

	client, err := criclient.New(c, criclient.Config{Recorder: c, Pulls: criclient.PullLimits{MaxParallel: c.parallel, QPS: -1}})
	require.NoError(t, err)
	a, err := agent.New(
		agent.WithRuntime(client), agent.WithNodeName(nodeName), agent.WithRecorder(c),
		agent.WithNode(node.Config{CgroupRoot: n.CgroupParent, PodLogsDir: filepath.Join(n.Shared, "logs")}),
		agent.WithRootDir(filepath.Join(n.Shared, "agent")), agent.WithSource("memory", c.pods), agent.WithStatusSink(c),
		agent.WithConfig(imagegc.Config{
			Policy:     imagegc.Policy{HighThresholdPercent: 50, LowThresholdPercent: 35, MinAge: -1},
			KeepImages: []string{pause}, Period: period,
		}),
		agent.WithHooks(agent.Hooks{ImageGC: imagegc.Hooks{Removed: c.imageRemoved, Collected: c.collected}}),
	)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-ended)
	})
	return c
}

// noise is a file that no compression makes shorter.
func noise(name string, n int) containerdtest.File {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return containerdtest.File{Name: name, Data: b, Mode: 0o644}
}

// loners are pods that run from first to last.
func (c *gcRace) loners(t *testing.T) {
	for i, ref := range c.used[:2] {
		p := c.pod(fmt.Sprint("loner", i), ref, "sleep 1000000 & wait")
		p.Spec.TerminationGracePeriodSeconds = new(int64)
		c.start(t, p)
	}
}

func (c *gcRace) pod(name, image, script string) *corev1.Pod {
	p := new(corev1.Pod)
	p.Name, p.Namespace = name, "default"
	p.Spec.HostNetwork, p.Spec.RestartPolicy = true, corev1.RestartPolicyNever
	p.Spec.Containers = []corev1.Container{{
		Name: "main", Image: image, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"sh", "-c", script},
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError, // so that a failure says why
	}}
	return p
}

// fewStarts is enough for images to be collected and pulled again.
const fewStarts = 24

// mostRounds times the wanted starts is how many race makes at most.
const mostRounds = 10

// race starts pods, some at a time, each from an image at random, and removes
// them as soon as they ran. It goes on until collection and pulls have met often
// enough, which is up to chance. It returns how many it has started within the limit.
func (c *gcRace) race(t *testing.T, starts int, limit time.Duration) (started int) {
	began := time.Now()
	next := make(chan int)
	var wg sync.WaitGroup
	for range c.parallel {
		wg.Go(func() {
			for i := range next {
				p := c.pod(fmt.Sprint("p", i), c.images[mathrand.IntN(len(c.images))], "exit 0")
				c.start(t, p)
				c.pods.Delete(p.Namespace, p.Name)
			}
		})
	}
	enough := func() bool { return started >= starts && c.isContested(started) || started >= mostRounds*starts }
	for ; !enough() && (started < fewStarts || time.Since(began) < limit); started++ {
		next <- started
	}
	close(next)
	wg.Wait()
	return started
}

// isContested reports whether many images were removed and wanted again, for so many starts.
func (c *gcRace) isContested(starts int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.removed) > starts/15 && c.pulls() > len(c.images)+starts/15
}

// pulls is how often the images were pulled.
func (c *gcRace) pulls() (n int) {
	for _, ref := range c.images {
		n += c.registry.Pulls(ref)
	}
	return n
}

// start waits until a pod ran.
func (c *gcRace) start(t *testing.T, p *corev1.Pod) {
	ran := make(chan struct{})
	c.mu.Lock()
	c.waits[p.Name] = ran
	c.mu.Unlock()
	c.pods.Put(p)
	late := time.NewTimer(testTimeout)
	defer late.Stop()
	select {
	case <-ran:
	case <-late.C:
		assert.Fail(t, "it never ran", p.Name)
	}
}

// SetStatus implements status.Sink.
func (c *gcRace) SetStatus(_ context.Context, p *corev1.Pod, st corev1.PodStatus) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch st.Phase {
	case corev1.PodRunning, corev1.PodSucceeded:
		if ran := c.waits[p.Name]; ran != nil {
			close(ran)
			delete(c.waits, p.Name)
		}
	case corev1.PodFailed:
		if c.waits[p.Name] == nil {
			return nil // it ran and was removed: the signal may meet runc before the exec, which exits with 2
		}
		c.wrong = append(c.wrong, fmt.Sprintf("%s failed: %+v", p.Name, st))
	}
	return nil
}

// Record implements agent.Recorder. What is heard of pods that have been removed,
// and of the node's room, is not about images.
func (c *gcRace) Record(e *corev1.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	other := e.InvolvedObject.Kind == "Node" || e.Reason == "FailedKillPod" || strings.Contains(e.Message, context.Canceled.Error())
	if e.Type == corev1.EventTypeWarning && !other {
		c.wrong = append(c.wrong, e.InvolvedObject.Name+": "+e.Reason+": "+e.Message)
	}
}

// Invoke implements grpc.ClientConnInterface. A container that could not be made
// is looked at here too, though the agent would try it again.
func (c *gcRace) Invoke(ctx context.Context, method string, req, resp any, opts ...grpc.CallOption) error {
	err := c.cc.Invoke(ctx, method, req, resp, opts...)
	if err != nil && ctx.Err() == nil && (strings.HasSuffix(method, "/CreateContainer") || strings.HasSuffix(method, "/StartContainer")) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.wrong = append(c.wrong, method+": "+err.Error())
	}
	return err
}

// NewStream implements grpc.ClientConnInterface.
func (c *gcRace) NewStream(ctx context.Context, d *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return c.cc.NewStream(ctx, d, method, opts...)
}

func (c *gcRace) imageRemoved(image runtime.Image, _ imagegc.Reason, _ time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.wrong = append(c.wrong, err.Error())
		return
	}
	c.removed = append(c.removed, image.Tags...)
}

func (c *gcRace) collected(r imagegc.Result, _ error) {
	var s unix.Statfs_t
	err := unix.Statfs(c.disk, &s)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.wrong = append(c.wrong, err.Error())
		return
	}
	c.most = max(c.most, 100-s.Bavail*100/s.Blocks)
	if len(r.Removed) > 0 {
		c.collections++
		c.freed += r.BytesFreed
	}
}
