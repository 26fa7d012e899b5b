//go:build linux

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/cgroup"
	"github.com/sublet-dev/agent/internal/containerdtest"
	"github.com/sublet-dev/agent/internal/notify"
	"github.com/sublet-dev/agent/podspec"
	criclient "github.com/sublet-dev/agent/runtime/cri"
)

// none stands for a limit that is not set.
const none = -1

// amounts is a list of resources; "" leaves one out.
func amounts(cpu, memory string) corev1.ResourceList {
	list := corev1.ResourceList{}
	if cpu != "" {
		list[corev1.ResourceCPU] = resource.MustParse(cpu)
	}
	if memory != "" {
		list[corev1.ResourceMemory] = resource.MustParse(memory)
	}
	return list
}

// RT-2: whatever is added, taken away, raised or lowered of what a regular
// container and a sidecar may use, at once or not, the kernel has it soon after,
// and only a resize policy has a container restarted for it.
func TestResizeInPlace(t *testing.T) {
	const mi = 1 << 20
	steps := []struct {
		name             string
		requests, limits corev1.ResourceList
		policy           corev1.ResourceName // that restarts the container
		shares           int64
		quota, memory    int64
		restarts         bool
	}{
		{"no limits", amounts("100m", "16Mi"), nil, "", 102, none, none, false},
		{"a CPU limit added", amounts("100m", "16Mi"), amounts("500m", ""), "", 102, 50000, none, false},
		{"a memory limit added", amounts("100m", "16Mi"), amounts("500m", "64Mi"), "", 102, 50000, 64 * mi, false},
		{"both raised", amounts("100m", "16Mi"), amounts("800m", "128Mi"), "", 102, 80000, 128 * mi, false},
		{"both lowered", amounts("100m", "16Mi"), amounts("200m", "48Mi"), "", 102, 20000, 48 * mi, false},
		{"one raised, one lowered", amounts("100m", "16Mi"), amounts("400m", "32Mi"), "", 102, 40000, 32 * mi, false},
		{"the request raised", amounts("300m", "16Mi"), amounts("400m", "32Mi"), "", 307, 40000, 32 * mi, false},
		{"the CPU limit taken away", amounts("300m", "16Mi"), amounts("", "32Mi"), "", 307, none, 32 * mi, false},
		{"one added, one taken away", amounts("300m", "16Mi"), amounts("600m", ""), "", 307, 60000, none, false},
		{"the request lowered", amounts("50m", "16Mi"), amounts("600m", ""), "", 51, 60000, none, false},
		{"memory added by restart", amounts("50m", "16Mi"), amounts("600m", "64Mi"), corev1.ResourceMemory, 51, 60000, 64 * mi, true},
		{"CPU in place all the same", amounts("50m", "16Mi"), amounts("300m", "64Mi"), corev1.ResourceMemory, 51, 30000, 64 * mi, false},
		{"memory taken away by restart", amounts("50m", "16Mi"), amounts("300m", ""), corev1.ResourceMemory, 51, 30000, none, true},
		{"CPU by restart", amounts("50m", "16Mi"), nil, corev1.ResourceCPU, 51, none, none, true},
	}
	containerdtest.Each(t, func(t *testing.T, n *containerdtest.Node) {
		r := newRig(n.Dial(t), filepath.Join(n.Shared, "resize"), n.Busybox, n.CgroupParent)
		r.tap.eventful = true
		events := &resizes{changed: make(chan struct{}, 1)}
		r.opts = []agent.Option{agent.WithRecorder(events)}
		l := r.start(t)
		rt := cri.NewRuntimeServiceClient(r.cc)
		last := map[string]string{}
		for i, step := range steps {
			pod := r.pod("resized")
			pod.Generation = int64(i)
			always := corev1.ContainerRestartPolicyAlways
			c := &pod.Spec.Containers[0]
			c.Resources = corev1.ResourceRequirements{Requests: step.requests, Limits: step.limits}
			if step.policy != "" {
				c.ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: step.policy, RestartPolicy: corev1.RestartContainer}}
			}
			side := c.DeepCopy()
			side.Name, side.RestartPolicy = "side", &always
			pod.Spec.InitContainers = []corev1.Container{*side}
			l.Put(pod)
			want := bounds{step.shares, step.quota, step.memory, none}
			if step.quota != none {
				want.pod = 2 * step.quota // both containers have one
			}
			for _, name := range []string{"main", "side"} {
				id := bounded(t, rt, step.name, name, want)
				if i > 0 && step.restarts == (id == last[name]) {
					t.Errorf("%s: container %s was restarted: %t", step.name, name, id != last[name])
				}
				last[name] = id
			}
			if i > 0 && i <= 9 { // the messages of more than ten events are combined
				events.wait(t, pod.Generation)
			}
		}
		assert.NotContains(t, events.all(), "ResizeError")
		assert.NotContains(t, events.all(), `"generation":0`, "the first start is no resize")
		l.Set()
		l.stop()
	})
}

// RT-2: a container gets a memory request that is resized alone, once, also if that was done while no agent ran. It is not
// restarted, and the kernel of cgroup v2 throttles it by the new request.
func TestResizeOfMemoryRequestAlone(t *testing.T) {
	const mi = 1 << 20
	containerdtest.Each(t, func(t *testing.T, n *containerdtest.Node) {
		r := newRig(n.Dial(t), filepath.Join(n.Shared, "request"), n.Busybox, n.CgroupParent)
		r.tap.eventful = true
		r.cri.Node = criclient.Node{MemoryQoS: podspec.MemoryQoS{ThrottlingFactor: 0.5}}.WithDetected(criclient.DetectNode(os.DirFS("/")))
		events := &resizes{changed: make(chan struct{}, 1)}
		r.opts = []agent.Option{agent.WithRecorder(events)}
		rt := cri.NewRuntimeServiceClient(r.cc)
		l := r.start(t)
		id := ""
		for i, request := range []string{"16Mi", "32Mi", "48Mi", "48Mi"} {
			pod := r.pod("request")
			pod.Generation = int64(i)
			pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: amounts("50m", request), Limits: amounts("", "64Mi")}
			if i > 1 {
				l.stop()
				l = r.start(t)
			}
			l.Put(pod)
			if i == 1 || i == 2 {
				events.wait(t, pod.Generation)
			}
			now := bounded(t, rt, request, "main", bounds{51, none, 64 * mi, none})
			if id == "" {
				id = now
			}
			assert.Equal(t, id, now)
			r.tap.mu.Lock()
			assert.Equal(t, min(i, 2), r.tap.calls["UpdateContainerResources"])
			r.tap.mu.Unlock()
			if high := throttledAt(t, rt, id); high != 0 {
				asked := amounts("", request)
				assert.Equal(t, (asked.Memory().Value()+64*mi)/2, high)
			}
		}
		l.Set()
		l.stop()
	})
}

// throttledAt returns memory.high of a container; 0 without cgroup v2.
func throttledAt(t *testing.T, rt cri.RuntimeServiceClient, id string) int64 {
	t.Helper()
	st, err := rt.ContainerStatus(t.Context(), &cri.ContainerStatusRequest{ContainerId: id, Verbose: true})
	require.NoError(t, err)
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pidOf(t, st.GetInfo())))
	require.NoError(t, err)
	for line := range strings.Lines(string(groups)) {
		if dir, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return figure(filepath.Join("/sys/fs/cgroup", dir), "memory.high")
		}
	}
	return 0
}

// CR-1: in a short period a container has at least 1 ms, which its pod has too: it runs, and limits that come to the
// same are no resize.
func TestCPUQuotaPeriod(t *testing.T) {
	const period = 5 * time.Millisecond
	containerdtest.Each(t, func(t *testing.T, n *containerdtest.Node) {
		r := newRig(n.Dial(t), filepath.Join(n.Shared, "period"), n.Busybox, n.CgroupParent)
		r.tap.eventful = true
		r.cri.Node.CPUQuotaPeriod = period
		r.opts = []agent.Option{agent.WithConfig(cgroup.Config{CPUQuotaPeriod: period})}
		l := r.start(t)
		pod := r.pod("period")
		put := func(step string, quota int64) {
			t.Helper()
			pod = pod.DeepCopy()
			pod.Generation++
			pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: amounts("20m", ""), Limits: amounts(step, "")}
			l.Put(pod)
			bounded(t, cri.NewRuntimeServiceClient(r.cc), step, "main", bounds{20, quota, none, quota})
		}
		put("50m", 1000)
		put("100m", 1000)
		put("300m", 1500)
		put("60m", 1000)
		r.tap.mu.Lock()
		defer r.tap.mu.Unlock()
		assert.Equal(t, 2, r.tap.calls["UpdateContainerResources"])
	})
}

// CR-1: the runtime gets the path of the cgroup of a pod, by which it finds what the pod uses.
func TestPodCgroupStats(t *testing.T) {
	containerdtest.Each(t, func(t *testing.T, n *containerdtest.Node) {
		r := newRig(n.Dial(t), filepath.Join(n.Shared, "figures"), n.Busybox, n.CgroupParent)
		l := r.start(t)
		l.Put(r.pod("figures"))
		rt := cri.NewRuntimeServiceClient(r.cc)
		bounded(t, rt, "figures", "main", bounds{2, none, none, none})
		list, err := rt.ListPodSandbox(t.Context(), &cri.ListPodSandboxRequest{})
		require.NoError(t, err)
		require.Len(t, list.GetItems(), 1)
		resp, err := rt.PodSandboxStats(t.Context(), &cri.PodSandboxStatsRequest{PodSandboxId: list.GetItems()[0].GetId()})
		require.NoError(t, err)
		assert.Positive(t, resp.GetStats().GetLinux().GetMemory().GetWorkingSetBytes().GetValue())
	})
}

// resizes records the events of resizes.
type resizes struct {
	mu      sync.Mutex
	texts   []string
	changed chan struct{}
}

// Record implements agent.Recorder.
func (r *resizes) Record(e *corev1.Event) {
	if strings.HasPrefix(e.Reason, "Resize") {
		r.mu.Lock()
		r.texts = append(r.texts, e.Reason+" "+e.Message)
		r.mu.Unlock()
		notify.Send(r.changed)
	}
}

func (r *resizes) all() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.texts, "\n")
}

// wait waits for the events of the resize to a generation, in their order.
func (r *resizes) wait(t *testing.T, generation int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), longRunTime)
	defer cancel()
	of := regexp.MustCompile(fmt.Sprintf(`(?s)ResizeStarted [^\n]*"generation":%d\}.*ResizeCompleted [^\n]*"generation":%[1]d\}`, generation))
	for !of.MatchString(r.all()) {
		select {
		case <-r.changed:
		case <-ctx.Done():
			t.Fatalf("no events of the resize to generation %d; events are\n%s", generation, r.all())
		}
	}
}

// bounds are what the kernel grants a container, and its pod of time on the CPU.
type bounds struct{ shares, quota, memory, pod int64 }

// bounded waits until the newest container of a name has these bounds, and
// returns its id.
func bounded(t *testing.T, rt cri.RuntimeServiceClient, step, name string, want bounds) string {
	t.Helper()
	var have bounds
	var id string
	for end := time.Now().Add(longRunTime); time.Now().Before(end); time.Sleep(tick) {
		list, err := rt.ListContainers(t.Context(), &cri.ListContainersRequest{Filter: &cri.ContainerFilter{
			State:         &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING},
			LabelSelector: map[string]string{"io.kubernetes.container.name": name},
		}})
		require.NoError(t, err)
		if len(list.GetContainers()) != 1 {
			continue
		}
		id = list.GetContainers()[0].GetId()
		st, err := rt.ContainerStatus(t.Context(), &cri.ContainerStatusRequest{ContainerId: id, Verbose: true})
		if err != nil {
			continue // it ends
		}
		if have = boundsOf(pidOf(t, st.GetInfo()), want); have == want {
			return id
		}
	}
	t.Fatalf("%s: container %s has %+v and should have %+v", step, name, have, want)
	return ""
}

// boundsOf reads the bounds of a process's cgroups. On version 2 there are no
// shares, and how runtimes turn them into weights differs.
func boundsOf(pid int, want bounds) (b bounds) {
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return b
	}
	for line := range strings.Lines(string(groups)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		for controller := range strings.SplitSeq(parts[1], ",") {
			dir := filepath.Join("/sys/fs/cgroup", controller, parts[2])
			switch controller {
			case "cpu":
				b.shares, b.quota = figure(dir, "cpu.shares"), figure(dir, "cpu.cfs_quota_us")
				b.pod = figure(filepath.Dir(dir), "cpu.cfs_quota_us")
			case "memory":
				b.memory = figure(dir, "memory.limit_in_bytes")
			case "":
				if _, err := os.Stat(filepath.Join(dir, "cpu.max")); err == nil {
					b = bounds{want.shares, figure(dir, "cpu.max"), figure(dir, "memory.max"), figure(filepath.Dir(dir), "cpu.max")}
				}
			}
		}
	}
	return b
}

// figure is the first number of a file, or none.
func figure(dir, file string) int64 {
	text, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	n, err := strconv.ParseInt(first, 10, 64)
	if err != nil || n >= 1<<62 {
		return none
	}
	return n
}
