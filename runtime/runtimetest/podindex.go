package runtimetest

import (
	"maps"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxRemoved is the number of removed sandboxes and containers that are remembered: a rule also applies to
// calls that are repeated after a removal.
const maxRemoved = 1024

// podIndex maps the ids of sandboxes and containers to pods, from the calls that the proxy
// forwards.
type podIndex struct {
	mu         sync.Mutex // guards the rest
	sandboxes  map[string]*v1.PodSandboxMetadata
	containers map[string]string // to sandbox
	removed    []string          // ids, the oldest first
}

func newPodIndex() *podIndex {
	return &podIndex{sandboxes: map[string]*v1.PodSandboxMetadata{}, containers: map[string]string{}}
}

// learn records the ids in a response, and what it says is removed.
func (x *podIndex) learn(req, resp proto.Message) {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch r := resp.(type) {
	case *v1.RunPodSandboxResponse:
		if q, ok := req.(*v1.RunPodSandboxRequest); ok {
			x.sandboxes[r.GetPodSandboxId()] = q.GetConfig().GetMetadata()
		}
	case *v1.CreateContainerResponse:
		if q, ok := req.(*v1.CreateContainerRequest); ok {
			x.containers[r.GetContainerId()] = q.GetPodSandboxId()
		}
	case *v1.ListPodSandboxResponse:
		x.pods(r.GetItems())
	case *v1.StreamPodSandboxesResponse:
		x.pods(r.GetPodSandboxes())
	case *v1.ListContainersResponse:
		x.members(r.GetContainers())
	case *v1.StreamContainersResponse:
		x.members(r.GetContainers())
	case *v1.PodSandboxStatusResponse:
		x.sandboxes[r.GetStatus().GetId()] = r.GetStatus().GetMetadata()
	case *v1.RemovePodSandboxResponse:
		if q, ok := req.(*v1.RemovePodSandboxRequest); ok {
			x.forgetLater(q.GetPodSandboxId())
		}
	case *v1.RemoveContainerResponse:
		if q, ok := req.(*v1.RemoveContainerRequest); ok {
			x.forgetLater(q.GetContainerId())
		}
	case *v1.ContainerEventResponse: // of a sandbox, too
		if r.GetContainerEventType() == v1.ContainerEventType_CONTAINER_DELETED_EVENT {
			x.forgetLater(r.GetContainerId())
		}
	}
}

// forgetLater forgets a sandbox with its containers, or a container, when maxRemoved others were removed after it.
func (x *podIndex) forgetLater(id string) {
	_, isSandbox := x.sandboxes[id]
	_, isContainer := x.containers[id]
	if !isSandbox && !isContainer || slices.Contains(x.removed, id) {
		return
	}
	x.removed = append(x.removed, id)
	if len(x.removed) <= maxRemoved {
		return
	}
	oldest := x.removed[0]
	x.removed = slices.Delete(x.removed, 0, 1)
	delete(x.containers, oldest)
	if _, ok := x.sandboxes[oldest]; ok {
		delete(x.sandboxes, oldest)
		maps.DeleteFunc(x.containers, func(_, sandbox string) bool { return sandbox == oldest })
	}
}

func (x *podIndex) pods(items []*v1.PodSandbox) {
	for _, s := range items {
		x.sandboxes[s.GetId()] = s.GetMetadata()
	}
}

func (x *podIndex) members(items []*v1.Container) {
	for _, c := range items {
		x.containers[c.GetId()] = c.GetPodSandboxId()
	}
}

// matches reports whether a request is about the pod want: a name, namespace/name or UID.
func (x *podIndex) matches(req proto.Message, want string) bool {
	m := x.pod(req)
	if m == nil {
		return false
	}
	return want == m.GetName() || want == m.GetUid() || want == m.GetNamespace()+"/"+m.GetName()
}

// pod returns the pod that a request is about, or nil.
func (x *podIndex) pod(req proto.Message) *v1.PodSandboxMetadata {
	switch r := req.(type) {
	case *v1.RunPodSandboxRequest:
		return r.GetConfig().GetMetadata()
	case *v1.PullImageRequest:
		return r.GetSandboxConfig().GetMetadata()
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	switch r := req.(type) {
	case interface{ GetPodSandboxId() string }:
		return x.sandboxes[r.GetPodSandboxId()]
	case interface{ GetContainerId() string }:
		return x.sandboxes[x.containers[r.GetContainerId()]]
	}
	return nil
}
