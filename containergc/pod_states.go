package containergc

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// Sources returns what should run. A podsource.Mux implements it.
type Sources interface {
	// Pod returns the desired pod with the UID.
	Pod(uid types.UID) (*corev1.Pod, bool)
	// MayBeDesired reports whether the source may still deliver a pod of that name: it
	// has not synced.
	MayBeDesired(source, namespace, name string) bool
}

// PodWorkers returns what has become of a pod. A podworkers.Workers implements it.
type PodWorkers interface {
	IsKnown(uid types.UID) bool
	// IsFinished reports whether the pod is known and nothing is left to do for it.
	IsFinished(uid types.UID) bool
	// ShouldPodContentBeRemoved reports whether an unknown pod counts as deleted, because
	// all sources have synced.
	ShouldPodContentBeRemoved(uid types.UID) bool
}

// PodCache returns the last observed state of a pod. A podcache.Cache implements it.
type PodCache interface {
	Get(uid types.UID) (runtime.Pod, bool)
}

// PodStates derives the state of a pod from the components that know about it. All
// fields are required. Its method State is made for Config.PodState.
type PodStates struct {
	Sources Sources
	Workers PodWorkers
	Cache   PodCache
}

// State returns what may be removed of a pod. It does not block if none of the fields
// does.
func (s PodStates) State(uid types.UID) PodState {
	// The sources come first: a deleted pod is missing there before its worker has
	// finished. A pod that is added between the calls of the workers is kept.
	pod, desired := s.Sources.Pod(uid)
	f := podFacts{desired: desired, finished: s.Workers.IsFinished(uid)}
	// A source that has this status keeps it: the next agent does not need the containers for it.
	f.evicted = desired && podspec.IsEvicted(&pod.Status)
	f.known, f.removable = s.Workers.IsKnown(uid), s.Workers.ShouldPodContentBeRemoved(uid)
	if observed, ok := s.Cache.Get(uid); ok && len(observed.Sandboxes) > 0 {
		f.mayBeDesired = s.Sources.MayBeDesired(observed.Sandboxes[0].Source, observed.Namespace, observed.Name)
	}
	return f.state()
}

// RequestCollectionFor requests a collection soon if the pod has more exited containers
// than the policy keeps. It is to be called after each sync of a pod, so that those of a
// container that crashes again and again do not pile up within a Period.
func (c *Collector) RequestCollectionFor(pod runtime.Pod) {
	if c.cfg.Policy.MaxPerPodContainer == KeepAll || !hasRemains(&pod) {
		return
	}
	desired := func(types.UID) PodState { return PodDesired }
	if len(Plan([]runtime.Pod{pod}, desired, c.cfg.Policy, false, time.Now())) > 0 {
		c.RequestCollection()
	}
}
