package runtime

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// OperationType is the kind of an Operation. Its value describes it in words.
type OperationType string

// The operation types.
const (
	OperationPullImage       OperationType = "pull image" // from the request to the result: waits for other pulls included
	OperationCreateSandbox   OperationType = "create sandbox"
	OperationStopSandbox     OperationType = "stop sandbox"
	OperationCreateContainer OperationType = "create container"
	OperationStartContainer  OperationType = "start container"
	OperationKillContainer   OperationType = "kill container" // preStop hook included
	OperationPostStartHook   OperationType = "run postStart hook"
	OperationPreStopHook     OperationType = "run preStop hook"
)

// Operation is something that a runtime does for a pod, as passed to hooks. It consists of
// one or more calls of the container runtime. Fields that do not apply are empty.
type Operation struct {
	Type OperationType
	Pod  *corev1.Pod // read-only; a pod known from the runtime only has just UID, namespace and name
	// SandboxID and ContainerID are empty before the operation that creates the object has
	// succeeded.
	SandboxID, ContainerID string
	Container              string // name in the pod spec
	Image                  string // as in the pod spec
	GracePeriod            time.Duration
	Reason                 string // why a container or sandbox is stopped, if known
	ImageBytes             uint64 // size of the image that was pulled, once that has succeeded; 0: unknown
}
