package runtimetest

import (
	"sync"

	"google.golang.org/protobuf/proto"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// podIndex maps the ids of sandboxes and containers to pods, from the calls that the proxy
// forwards.
type podIndex struct {
	mu         *sync.Mutex // guards the rest
	sandboxes  map[string]*v1.PodSandboxMetadata
	containers map[string]string // to sandbox
}

func newPodIndex() podIndex {
	return podIndex{mu: &sync.Mutex{}, sandboxes: map[string]*v1.PodSandboxMetadata{}, containers: map[string]string{}}
}

// learn records the ids in a response.
func (x podIndex) learn(req, resp proto.Message) {
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
	}
}

func (x podIndex) pods(items []*v1.PodSandbox) {
	for _, s := range items {
		x.sandboxes[s.GetId()] = s.GetMetadata()
	}
}

func (x podIndex) members(items []*v1.Container) {
	for _, c := range items {
		x.containers[c.GetId()] = c.GetPodSandboxId()
	}
}

// matches reports whether a request is about the pod want: a name, namespace/name or UID.
func (x podIndex) matches(req proto.Message, want string) bool {
	m := x.pod(req)
	if m == nil {
		return false
	}
	return want == m.GetName() || want == m.GetUid() || want == m.GetNamespace()+"/"+m.GetName()
}

// pod returns the pod that a request is about, or nil.
func (x podIndex) pod(req proto.Message) *v1.PodSandboxMetadata {
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
