package podsync_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/runtime"
)

// requestPod is a pod with two containers that request memory, in a runtime that reports no requests.
type requestPod struct {
	t   *testing.T
	n   *fakeNode
	s   *podsync.Syncer
	pod *corev1.Pod
	ids []string
}

func newRequestPod(t *testing.T) *requestPod {
	p := &requestPod{t: t, n: &fakeNode{phase: corev1.PodRunning, applied: runtime.ApplyResult{Changed: true}}, pod: newTestPod(), ids: []string{"c0", "d0"}}
	p.pod.Spec.Containers = append(p.pod.Spec.Containers, corev1.Container{Name: "other", Image: "busybox:1"})
	for i := range p.pod.Spec.Containers {
		p.pod.Spec.Containers[i].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("16Mi")}
	}
	podspec.Default(p.pod)
	p.restart()
	return p
}

func (p *requestPod) restart() { p.s = newSyncer(p.t, newConfig(p.t, p.n)) }

// resize changes the requests of the first containers.
func (p *requestPod) resize(requests ...string) {
	p.pod = p.pod.DeepCopy()
	for i, r := range requests {
		p.pod.Spec.Containers[i].Resources.Requests[corev1.ResourceMemory] = resource.MustParse(r)
	}
}

// sync returns which containers are updated.
func (p *requestPod) sync() (updated []string) {
	p.t.Helper()
	observed := runningPod(0)
	observed.Containers = append(observed.Containers, observed.Containers[0])
	for i := range observed.Containers {
		c := &observed.Containers[i]
		c.ID, c.Name = p.ids[i], p.pod.Spec.Containers[i].Name
		c.Hash = runtime.HashContainer(&p.pod.Spec.Containers[i])
		c.Resources = &runtime.Resources{CPURequest: new(resource.MustParse("2m"))}
	}
	p.n.plan = nil
	out, err := p.s.Sync(p.t.Context(), p.pod, observed)
	if len(p.n.applied.Failures) == 0 {
		require.NoError(p.t, err)
		require.Equal(p.t, len(p.n.plan) > 0, !out.RequeueAt.IsZero(), "nothing tells that it was done")
	}
	for _, a := range p.n.plan {
		updated = append(updated, a.Type.String()+" "+a.Container)
	}
	for i := range observed.Containers {
		require.Nil(p.t, observed.Containers[i].Resources.MemoryRequest, "what was observed is read-only")
	}
	return updated
}

// reported are the memory requests that the last status was made of; "" is that of the spec.
func (p *requestPod) reported() (out []string) {
	for _, c := range p.n.reports[len(p.n.reports)-1].Observed.Containers {
		text := ""
		if q := c.Resources.MemoryRequest; q != nil {
			text = q.String()
		}
		out = append(out, text)
	}
	return out
}

// RT-2: a container gets a memory request that is resized alone, once, although no runtime reports requests; until then the old
// one is reported.
func TestSync_ResizesMemoryRequestAlone(t *testing.T) {
	p := newRequestPod(t)
	assert.Empty(t, p.sync(), "what containers were made with is unknown and counts as equal")
	p.resize("32Mi")
	assert.Equal(t, []string{"UpdateResources main"}, p.sync())
	assert.Equal(t, []string{"16Mi", ""}, p.reported())
	assert.Empty(t, p.sync(), "it was done")
	assert.Equal(t, []string{"", ""}, p.reported())

	p.resize("32Mi", "32Mi")
	assert.Equal(t, []string{"UpdateResources other"}, p.sync())
	p.resize("0", "0")
	assert.Equal(t, []string{"UpdateResources main", "UpdateResources other"}, p.sync())
	assert.Empty(t, p.sync())

	p.resize("16Mi")
	p.ids[0] = "c1"
	assert.Equal(t, []string{"UpdateResources main"}, p.sync(), "it may have been made before the change")
	p.ids[0] = "c2"
	assert.Empty(t, p.sync())
}

// A resize that fails is tried again, of those containers alone that lack it; what is taken back before is not needed.
func TestSync_RetriesResizeOfMemoryRequest(t *testing.T) {
	p := newRequestPod(t)
	assert.Empty(t, p.sync())
	p.resize("32Mi", "32Mi")
	p.n.applied.Failures = map[string]runtime.Failure{"other": {Reason: "ResizeContainerError", Err: errors.New("hangs")}}
	assert.Equal(t, []string{"UpdateResources main", "UpdateResources other"}, p.sync())
	assert.Equal(t, []string{"UpdateResources other"}, p.sync())
	p.resize("32Mi", "64Mi")
	assert.Equal(t, []string{"UpdateResources other"}, p.sync())
	assert.Equal(t, []string{"", "16Mi"}, p.reported(), "the request that it has")
	p.resize("32Mi", "16Mi")
	assert.Empty(t, p.sync())

	p.resize("48Mi")
	p.n.applied.Failures = map[string]runtime.Failure{"": {Reason: "CreatePodSandboxError", Err: errors.New("no network")}}
	assert.Equal(t, []string{"UpdateResources main"}, p.sync())
	p.n.applied.Failures = nil
	assert.Equal(t, []string{"UpdateResources main"}, p.sync())
	assert.Empty(t, p.sync())
}

// A new process has the requests of the status that the previous one has saved.
func TestSync_ResizesMemoryRequestAfterRestart(t *testing.T) {
	p := newRequestPod(t)
	p.n.saved = corev1.PodStatus{Phase: corev1.PodRunning}
	for i, id := range p.ids {
		c := &p.pod.Spec.Containers[i]
		p.n.saved.ContainerStatuses = append(p.n.saved.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, ContainerID: "test://" + id, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, Resources: &c.Resources,
		})
	}
	p.restart()
	assert.Empty(t, p.sync())

	p.resize("32Mi")
	p.restart()
	assert.Equal(t, []string{"UpdateResources main"}, p.sync())
	assert.Empty(t, p.sync())

	p.ids[0] = "c1"
	p.restart()
	assert.Empty(t, p.sync(), "another container was made since")
}
