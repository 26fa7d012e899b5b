package embedded

import (
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// IndexedByPod returns the number of pods with objects in the indexes.
func IndexedByPod(r *Runtime) int { return len(r.pods.sandboxes) + len(r.pods.containers) }

// CountContainers returns the number of containers that match a filter, without encoding
// them.
func CountContainers(r *Runtime, f *v1.ContainerFilter) int { return len(r.listContainers(f)) }

// EncodedPodList returns the list of all sandboxes with its items encoded, as it goes
// over the wire.
func EncodedPodList(r *Runtime) proto.Message {
	return fill(&v1.ListPodSandboxResponse{}, r.listSandboxes(nil), (*podItem).bytes)
}
