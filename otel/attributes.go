package otel

import (
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

// schemaURL is the version of the semantic conventions that the attributes follow.
const schemaURL = "https://opentelemetry.io/schemas/1.43.0"

// Attributes of the semantic conventions.
const (
	keyPodUID         = attribute.Key("k8s.pod.uid")
	keyPodName        = attribute.Key("k8s.pod.name")
	keyNamespace      = attribute.Key("k8s.namespace.name")
	keyContainerName  = attribute.Key("k8s.container.name")
	keyContainerID    = attribute.Key("container.id")
	keyImageName      = attribute.Key("container.image.name")
	keyImageTags      = attribute.Key("container.image.tags")
	keyImageDigests   = attribute.Key("container.image.repo_digests")
	keyErrorType      = attribute.Key("error.type")
	errorTypeFallback = "_OTHER"
)

// Attributes for which there is no convention.
const (
	keySandboxID   = attribute.Key("sublet.sandbox.id")
	keyGracePeriod = attribute.Key("sublet.termination.grace_period") // seconds
	keyReason      = attribute.Key("sublet.termination.reason")
	keyWait        = attribute.Key("sublet.sync.wait") // seconds
	keyUnchanged   = attribute.Key("sublet.sync.unchanged")
	keyOrphan      = attribute.Key("sublet.pod.orphan")
	keyCancelled   = attribute.Key("sublet.cancelled")
)

// syncName names the Syncer method that is called in phase p.
func syncName(p podworkers.Phase) string {
	switch p {
	case podworkers.Syncing:
		return "sync pod"
	case podworkers.Terminating:
		return "terminate pod"
	default:
		return "finish pod"
	}
}

func syncAttributes(call podworkers.SyncCall) []attribute.KeyValue {
	attributes := podAttributes(call.Pod, 4)
	if !call.RequestedAt.IsZero() {
		attributes = append(attributes, keyWait.Float64(max(0, time.Since(call.RequestedAt)).Seconds()))
	}
	if call.Orphan {
		attributes = append(attributes, keyOrphan.Bool(true))
	}
	if call.Phase != podworkers.Syncing {
		attributes = append(attributes, keyGracePeriod.Float64(call.Termination.GracePeriod.Seconds()))
		attributes = appendText(attributes, keyReason, call.Termination.Reason)
	}
	return attributes
}

func operationAttributes(op runtime.Operation) []attribute.KeyValue {
	attributes := podAttributes(op.Pod, 7)
	attributes = appendText(attributes, keyContainerName, op.Container)
	attributes = appendText(attributes, keyContainerID, op.ContainerID)
	attributes = appendText(attributes, keySandboxID, op.SandboxID)
	attributes = appendImage(attributes, op.Image)
	if op.Type == runtime.OperationKillContainer || op.Type == runtime.OperationPreStopHook {
		attributes = append(attributes, keyGracePeriod.Float64(op.GracePeriod.Seconds()))
	}
	return appendText(attributes, keyReason, op.Reason)
}

// createdAttributes returns what is known only after an operation has created something.
func createdAttributes(op runtime.Operation) []attribute.KeyValue {
	switch op.Type {
	case runtime.OperationCreateSandbox:
		return appendText(nil, keySandboxID, op.SandboxID)
	case runtime.OperationCreateContainer:
		return appendText(nil, keyContainerID, op.ContainerID)
	default:
		return nil
	}
}

// podAttributes returns the identity of a pod, with room for more.
func podAttributes(pod *corev1.Pod, more int) []attribute.KeyValue {
	if pod == nil {
		return nil
	}
	return append(make([]attribute.KeyValue, 0, 3+more),
		keyPodUID.String(string(pod.UID)), keyNamespace.String(pod.Namespace), keyPodName.String(pod.Name))
}

func appendText(attributes []attribute.KeyValue, key attribute.Key, value string) []attribute.KeyValue {
	if value == "" {
		return attributes
	}
	return append(attributes, key.String(value))
}

// appendImage splits an image reference as the conventions want it.
func appendImage(attributes []attribute.KeyValue, image string) []attribute.KeyValue {
	name, digest, _ := strings.Cut(image, "@")
	tag := ""
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name, tag = name[:i], name[i+1:]
	}
	attributes = appendText(attributes, keyImageName, name)
	if tag != "" {
		attributes = append(attributes, keyImageTags.StringSlice([]string{tag}))
	}
	if digest != "" {
		attributes = append(attributes, keyImageDigests.StringSlice([]string{name + "@" + digest}))
	}
	return attributes
}
