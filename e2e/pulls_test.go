//go:build linux

package e2e

import (
	"context"
	"crypto/rand"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/containerdtest"
	criclient "github.com/sublet-dev/agent/runtime/cri"
)

// pulled is how many containers the pods here have, each of an image of its own.
const pulled = 3

// images pushes images that no runtime has seen yet, of so many bytes each that
// cannot be compressed.
func images(t testing.TB, n *containerdtest.Node, bytes int) (refs [pulled]string) {
	t.Helper()
	for i := range refs {
		data := make([]byte, bytes)
		_, _ = rand.Read(data) // never fails
		refs[i] = n.PushBusybox(t, "test/pulled", strings.ToLower(rand.Text()), containerdtest.File{Name: "data", Data: data, Mode: 0o644})
	}
	return refs
}

// pulledPod is a pod with a container of each image.
func (r *benchEnv) pulledPod(refs [pulled]string) *corev1.Pod {
	p := r.pod("pulled")
	main := p.Spec.Containers[0]
	p.Spec.Containers = nil
	for i, ref := range refs {
		c := *main.DeepCopy()
		c.Name, c.Image = fmt.Sprint("c", i), ref
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
	return p
}

// meeting is a connection that lets the calls of some names pass when so many of
// them are under way at once. A call that has to wait too long for the others
// fails.
type meeting struct {
	grpc.ClientConnInterface
	names map[string]bool
	want  int

	mu   sync.Mutex // guards the rest
	here []string
	met  chan struct{}
}

func newMeeting(cc grpc.ClientConnInterface, want int, names ...string) *meeting {
	m := &meeting{ClientConnInterface: cc, names: map[string]bool{}, want: want, met: make(chan struct{})}
	for _, name := range names {
		m.names[name] = true
	}
	return m
}

// Invoke implements grpc.ClientConnInterface.
func (m *meeting) Invoke(ctx context.Context, method string, req, resp any, opts ...grpc.CallOption) error {
	name := method[strings.LastIndex(method, "/")+1:]
	if m.names[name] {
		m.mu.Lock()
		m.here = append(m.here, name)
		if len(m.here) == m.want {
			close(m.met)
		}
		m.mu.Unlock()
		late := time.NewTimer(longRunTime)
		defer late.Stop()
		select {
		case <-m.met:
		case <-late.C:
			m.mu.Lock()
			defer m.mu.Unlock()
			return fmt.Errorf("%s waited for others, of which there were %v", name, m.here)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return m.ClientConnInterface.Invoke(ctx, method, req, resp, opts...)
}

// RT-16, IM-3: the images of a pod are pulled at the same time, and while its
// sandbox is made. None of the four calls is let through before all of them are
// under way, so that the pod would not start if one waited for another.
func TestPullsOverlap(t *testing.T) {
	containerdtest.Each(t, func(t *testing.T, n *containerdtest.Node) {
		m := newMeeting(n.Dial(t), pulled+1, "PullImage", "RunPodSandbox")
		r := newRig(m, filepath.Join(n.Shared, "overlap"), n.Busybox, n.CgroupParent)
		r.tap.eventful = true
		r.cri = criclient.Config{Pulls: criclient.PullLimits{MaxParallel: pulled}}
		l := r.start(t)
		l.up(t, r.pulledPod(images(t, n, 1000)))
		l.down(t, 1)
		l.stop()
		m.mu.Lock()
		defer m.mu.Unlock()
		assert.ElementsMatch(t, []string{"PullImage", "PullImage", "PullImage", "RunPodSandbox"}, m.here, "and each once")
	})
}

// BenchmarkPullStart starts a pod of three containers whose images have to be
// pulled, by turns with the whole agent at its defaults, from the source to the
// reported status, and with the raw calls one after the other. Each blob takes the
// registry as long as the name says: a network that is far, or none.
func BenchmarkPullStart(b *testing.B) {
	const bytes = 4 << 20
	containerdtest.EachBench(b, func(b *testing.B, n *containerdtest.Node) {
		r := newRig(n.Dial(b), filepath.Join(n.Shared, "pulls"), n.Busybox, n.CgroupParent)
		r.tap.eventful = true
		for _, far := range []time.Duration{0, 100 * time.Millisecond} {
			b.Run(fmt.Sprint("blobs=", far), func(b *testing.B) {
				n.Registry.Delay(0)
				r.settled(b).stop()
				n.Registry.Delay(far)
				var raw, ours []time.Duration
				for b.Loop() {
					raw = append(raw, r.rawPulls(b, images(b, n, bytes)))
					l, refs := r.settled(b), images(b, n, bytes)
					ours = append(ours, l.up(b, r.pulledPod(refs))...)
					l.down(b, 1)
					l.stop()
					r.empty(b)
				}
				b.Logf("raw %v, agent %v", raw, ours)
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(ms(median(raw)), "raw-ms")
				b.ReportMetric(ms(median(ours)), "agent-ms")
				b.ReportMetric(float64(median(ours))/float64(median(raw)), "agent/raw")
			})
		}
	})
}

// rawPulls starts such a pod by raw calls, one after the other, and removes it.
func (r *benchEnv) rawPulls(b *testing.B, refs [pulled]string) time.Duration {
	b.Helper()
	p, is, ctx := r.raw(b, 1)[0], cri.NewImageServiceClient(r.cc), b.Context()
	var containers [pulled]*cri.CreateContainerRequest
	for i := range refs {
		c := proto.CloneOf(p.container)
		c.Config.Metadata.Name = fmt.Sprint("c", i)
		c.Config.LogPath = fmt.Sprintf("%d.log", i)
		containers[i] = c
	}
	began := time.Now()
	for i, ref := range refs {
		image, err := is.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: ref}, SandboxConfig: p.sandbox.GetConfig()})
		require.NoError(b, err)
		containers[i].Config.Image = &cri.ImageSpec{Image: image.GetImageRef()}
	}
	s, err := p.rt.RunPodSandbox(ctx, p.sandbox)
	require.NoError(b, err)
	for _, c := range containers {
		c.PodSandboxId = s.GetPodSandboxId()
		made, err := p.rt.CreateContainer(ctx, c)
		require.NoError(b, err)
		_, err = p.rt.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: made.GetContainerId()})
		require.NoError(b, err)
	}
	took := time.Since(began)
	_, err = p.rt.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: s.GetPodSandboxId()})
	require.NoError(b, err)
	_, err = p.rt.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: s.GetPodSandboxId()})
	require.NoError(b, err)
	return took
}
