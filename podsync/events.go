package podsync

import (
	"encoding/json"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// Reasons of events about what a sync changes; the kubelet uses the same.
const (
	reasonSandboxChanged  = "SandboxChanged"
	reasonResizeStarted   = "ResizeStarted"
	reasonResizeError     = "ResizeError"
	reasonResizeCompleted = "ResizeCompleted"
)

// resizeState is what the events of a pod say of its resize already.
type resizeState struct {
	pod     *corev1.Pod // as it was last synced; nil: not by this process
	started bool        // and has not completed
	failure string      // why it does not get on

	memoryRequests map[string]resource.Quantity // of running containers by id, where the spec has others
}

// restore continues with a resize that an earlier process has recorded, by the status that it saved.
func (r *resizeState) restore(status *corev1.PodStatus) {
	if c := resizeInProgress(status); c != nil {
		r.started, r.failure = true, failureOf(c)
	}
}

func resizeInProgress(status *corev1.PodStatus) *corev1.PodCondition {
	return podspec.TrueCondition(status, corev1.PodResizeInProgress)
}

func failureOf(c *corev1.PodCondition) string {
	if c == nil || c.Reason != corev1.PodReasonError {
		return ""
	}
	return c.Message
}

// recordResize records that a resize has started or fails. It starts with other resources in the
// spec, of which the containers may need none changed, or if a container has others than its spec.
func (s *Syncer) recordResize(pod *corev1.Pod, st *podState, status *corev1.PodStatus) {
	r, c := &st.resize, resizeInProgress(status)
	failure := failureOf(c)
	changed := r.pod != nil && r.pod != pod && !sameResources(&r.pod.Spec, &pod.Spec)
	r.pod = pod
	if changed || c != nil && failure == "" && !r.started {
		r.started, r.failure = true, ""
		s.record(pod, corev1.EventTypeNormal, reasonResizeStarted, "Resize started: "+resizeText(pod, ""))
	}
	if r.started && failure != "" && failure != r.failure {
		s.record(pod, corev1.EventTypeWarning, reasonResizeError, "Resize failed, and is tried again: "+resizeText(pod, failure))
	}
	r.failure = failure
}

// recordResized records that a resize has completed, after a sync for which there was nothing to do.
func (s *Syncer) recordResized(pod *corev1.Pod, st *podState, status *corev1.PodStatus) {
	if !st.resize.started || st.blocked != nil || resizeInProgress(status) != nil {
		return
	}
	st.resize.started = false
	s.record(pod, corev1.EventTypeNormal, reasonResizeCompleted, "Resize completed: "+resizeText(pod, ""))
}

func sameResources(a, b *corev1.PodSpec) bool {
	same := func(x, y corev1.Container) bool {
		return x.Name == y.Name && equality.Semantic.DeepEqual(x.Resources, y.Resources)
	}
	return equality.Semantic.DeepEqual(a.Resources, b.Resources) &&
		slices.EqualFunc(a.InitContainers, b.InitContainers, same) && slices.EqualFunc(a.Containers, b.Containers, same)
}

// resizeText describes the resources that a pod is resized to, in the JSON that the kubelet's events of
// resizes have.
func resizeText(pod *corev1.Pod, failure string) string {
	type container struct {
		Name      string                      `json:"name"`
		Resources corev1.ResourceRequirements `json:"resources"`
	}
	list := func(containers []corev1.Container) []container {
		var out []container
		for i := range containers {
			out = append(out, container{containers[i].Name, containers[i].Resources})
		}
		return out
	}
	text, err := json.Marshal(struct {
		Resources      *corev1.ResourceRequirements `json:"resources,omitempty"`
		InitContainers []container                  `json:"initContainers,omitempty"`
		Containers     []container                  `json:"containers,omitempty"`
		Generation     int64                        `json:"generation"`
		Error          string                       `json:"error,omitempty"`
	}{pod.Spec.Resources, list(pod.Spec.InitContainers), list(pod.Spec.Containers), pod.Generation, failure})
	if err != nil {
		return err.Error() // not of these types
	}
	return string(text)
}

// recordSandboxChange records that the plan replaces the sandbox of the pod, once for each new one.
func (s *Syncer) recordSandboxChange(pod *corev1.Pod, st *podState, plan []runtime.Action) {
	for i := range plan {
		a := &plan[i]
		if a.Type != runtime.CreateSandbox || a.Attempt <= st.sandboxAttempt {
			continue
		}
		st.sandboxAttempt = a.Attempt
		s.record(pod, corev1.EventTypeNormal, reasonSandboxChanged, "A new sandbox replaces that of the pod, with all its containers: "+sandboxText(a.Reason))
	}
}

func sandboxText(reason string) string {
	switch reason {
	case runtime.ReasonSandboxLost:
		return "it does not run any more"
	case runtime.ReasonMultipleSandboxes:
		return "more than one is running"
	case runtime.ReasonNetworkModeChanged:
		return "spec.hostNetwork has changed"
	case runtime.ReasonNoPodIP:
		return "it has no IP address any more"
	}
	return reason
}

// record records an event about the pod.
func (s *Syncer) record(pod *corev1.Pod, eventType, reason, message string) {
	if s.cfg.Recorder != nil {
		s.cfg.Recorder.Record(podspec.NewEvent(pod, eventType, reason, message, time.Now()))
	}
}
