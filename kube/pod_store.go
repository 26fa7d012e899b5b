package kube

import (
	"cmp"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/sublet-dev/agent/internal/notify"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
)

// podStore has the newest version of each pod of the node that the API server is known
// to have. It is written by the reflector of Pods, with what it lists and watches, and
// by Statuses, with the responses to its patches. It implements cache.ReflectorStore.
// Pods in it are read-only.
type podStore struct {
	nodeName string
	changed  chan struct{} // one slot: set returns something new

	mu      sync.Mutex                         // guards the fields below
	onEvent func(pod *corev1.Pod, exists bool) // called without lock for each change from the reflector; may be nil
	pods    map[types.NamespacedName]storedPod
	// order has the pods in the order in which they appeared, in which they are delivered,
	// with nil in the places of those that are gone. It spares each delivery of thousands of
	// pods to sort them.
	order  []*corev1.Pod
	synced bool
	awaits bool  // the Node: no pods are delivered yet
	err    error // why the API server cannot be listed or watched
	// deleted are the last versions of the pods that were deleted last, so that an older
	// event that arrives late does not bring one back.
	deleted []*corev1.Pod
	version string // up to which the present reflector has seen all changes; "": not known
}

type storedPod struct {
	*corev1.Pod
	index int // in podStore.order
}

const (
	maxDeleted = 256 // deleted pods that are remembered
	minOrder   = 64  // places of podStore.order for which it is not made smaller
)

func newPodStore(nodeName string) *podStore {
	return &podStore{
		nodeName: nodeName, changed: make(chan struct{}, 1),
		pods: map[types.NamespacedName]storedPod{},
	}
}

func keyOf(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

// isOlder reports whether a is an older version than b, or the same. Versions of a
// server that does not number them are taken in the order in which they arrive.
func isOlder(a, b *corev1.Pod) bool {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err == nil && order <= 0
}

// dropManagedFields removes what takes half of the memory of a pod and has no use here.
func dropManagedFields(pod *corev1.Pod) { pod.ManagedFields = nil }

// Add implements cache.ReflectorStore.
func (s *podStore) Add(obj any) error { return s.Update(obj) }

// Update implements cache.ReflectorStore.
func (s *podStore) Update(obj any) error {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil
	}
	dropManagedFields(pod)
	s.mu.Lock()
	updated := s.put(pod)
	s.mu.Unlock()
	if updated {
		notify.Send(s.changed)
		s.event(pod, true)
	}
	return nil
}

// event calls onEvent.
func (s *podStore) event(pod *corev1.Pod, exists bool) {
	s.mu.Lock()
	f := s.onEvent
	s.mu.Unlock()
	if f != nil {
		f(pod, exists)
	}
}

func (s *podStore) setOnEvent(f func(pod *corev1.Pod, exists bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onEvent = f
}

// put stores a pod unless it is older than what is known. s.mu is held.
func (s *podStore) put(pod *corev1.Pod) bool {
	if pod.Spec.NodeName != s.nodeName {
		return false // the server ignores the field selector
	}
	previous, ok := s.pods[keyOf(pod)]
	if ok && isOlder(pod, previous.Pod) {
		return false
	}
	for _, d := range s.deleted {
		if d.UID == pod.UID && isOlder(pod, d) {
			return false
		}
	}
	s.store(pod)
	return true
}

// store stores a pod. s.mu is held.
func (s *podStore) store(pod *corev1.Pod) {
	previous, ok := s.pods[keyOf(pod)]
	index := previous.index
	if !ok || previous.UID != pod.UID {
		if ok {
			s.order[index] = nil
		}
		index = len(s.order)
		s.order = append(s.order, nil)
	}
	s.order[index] = pod
	s.pods[keyOf(pod)] = storedPod{pod, index}
	s.compact()
}

// compact drops the places without a pod once they are the most. s.mu is held.
func (s *podStore) compact() {
	if len(s.order) < 2*len(s.pods)+minOrder {
		return
	}
	order := make([]*corev1.Pod, 0, len(s.pods))
	for _, pod := range s.order {
		if pod != nil {
			s.pods[keyOf(pod)] = storedPod{pod, len(order)}
			order = append(order, pod)
		}
	}
	s.order = order
}

// Delete implements cache.ReflectorStore.
func (s *podStore) Delete(obj any) error {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil
	}
	s.mu.Lock()
	previous, ok := s.pods[keyOf(pod)]
	if ok = ok && previous.UID == pod.UID; ok {
		s.remove(pod, pod.ResourceVersion)
	}
	s.mu.Unlock()
	if ok {
		notify.Send(s.changed)
		s.event(pod, false)
	}
	return nil
}

// remove forgets a pod but for the last version in which it can have existed. s.mu is held.
func (s *podStore) remove(pod *corev1.Pod, version string) {
	s.order[s.pods[keyOf(pod)].index] = nil
	delete(s.pods, keyOf(pod))
	s.compact()
	last := &corev1.Pod{}
	last.UID, last.ResourceVersion = pod.UID, version
	s.deleted = append(s.deleted, last)
	if len(s.deleted) > maxDeleted {
		s.deleted = slices.Clone(s.deleted[1:])
	}
}

// Replace implements cache.ReflectorStore: list has all pods as of version, from which the
// watch goes on.
func (s *podStore) Replace(list []any, version string) error {
	listed := make(map[types.NamespacedName]*corev1.Pod, len(list))
	s.mu.Lock()
	var updated, removed []*corev1.Pod
	for _, obj := range list {
		pod, ok := obj.(*corev1.Pod)
		if !ok {
			continue
		}
		dropManagedFields(pod)
		listed[keyOf(pod)] = pod
		if s.put(pod) || s.restore(pod, version) {
			updated = append(updated, pod)
		}
	}
	for key, p := range s.pods {
		// A pod that was recreated since a stale list was made is newer than the listed one.
		if l := listed[key]; l == nil || l.UID != p.UID && !isOlder(l, p.Pod) {
			removed = append(removed, p.Pod)
		}
	}
	for _, pod := range removed {
		s.remove(pod, cmp.Or(version, pod.ResourceVersion)) // the response to an earlier patch may follow
	}
	s.synced, s.err, s.version = true, nil, version
	s.mu.Unlock()
	notify.Send(s.changed)
	for _, pod := range removed {
		s.event(pod, false)
	}
	for _, pod := range updated {
		s.event(pod, true)
	}
	return nil
}

// restore stores a listed pod that put takes for an older one, if the list as of version is about a later
// time than what is known of it: the data of the server are those of a backup. s.mu is held.
func (s *podStore) restore(pod *corev1.Pod, version string) bool {
	known := s.pods[keyOf(pod)].Pod
	switch {
	case pod.Spec.NodeName != s.nodeName:
		return false
	case known == nil:
	case known.UID == pod.UID && known.ResourceVersion == pod.ResourceVersion, !s.isBefore(known, version):
		return false
	}
	for _, d := range s.deleted {
		if d.UID == pod.UID && !s.isBefore(d, version) {
			return false
		}
	}
	s.deleted = slices.DeleteFunc(s.deleted, func(d *corev1.Pod) bool { return d.UID == pod.UID })
	s.store(pod)
	return true
}

// isBefore reports whether a list as of version has to have this version of a pod, or a later one. s.mu is held.
func (s *podStore) isBefore(pod *corev1.Pod, version string) bool {
	order, err := resourceversion.CompareResourceVersion(pod.ResourceVersion, version)
	if err == nil && order <= 0 {
		return true
	}
	order, err = resourceversion.CompareResourceVersion(version, s.version) // a list is never older but for that
	return err == nil && order < 0
}

// UpdateResourceVersion implements cache.ResourceVersionUpdater.
func (s *podStore) UpdateResourceVersion(version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version = version
}

// Resync implements cache.ReflectorStore.
func (s *podStore) Resync() error { return nil }

// fail records that the API server cannot be listed or watched; nil: it can.
func (s *podStore) fail(err error) {
	s.mu.Lock()
	same := s.err == nil && err == nil || s.err != nil && err != nil && s.err.Error() == err.Error()
	s.err = err
	s.mu.Unlock()
	if !same {
		notify.Send(s.changed)
	}
}

// failed reports whether the API server cannot be listed or watched.
func (s *podStore) failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err != nil
}

// observe stores the response to a request that created or patched a pod, unless the
// store has a newer version. It does nothing while the pods are not watched, as nothing
// would update it.
func (s *podStore) observe(pod *corev1.Pod) {
	dropManagedFields(pod)
	s.mu.Lock()
	ok := s.synced && s.put(pod)
	s.mu.Unlock()
	if ok {
		notify.Send(s.changed)
	}
}

// get returns the pod of that name, and whether all pods are known.
func (s *podStore) get(key types.NamespacedName) (pod *corev1.Pod, synced bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pods[key].Pod, s.synced
}

// isWatched reports whether all pods are known, and the last request for them was answered.
func (s *podStore) isWatched() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.synced && s.err == nil
}

// mirrors returns the mirror pods, and whether all are known.
func (s *podStore) mirrors() (pods []*corev1.Pod, synced bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pods {
		if podspec.IsMirror(p.Pod) {
			pods = append(pods, p.Pod)
		}
	}
	return pods, s.synced
}

// awaitNode delivers no pods until setNodeKnown is called: whether one may run depends on the labels of the Node,
// as with a kubelet.
func (s *podStore) awaitNode() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.awaits = true
}

// setNodeKnown ends awaitNode.
func (s *podStore) setNodeKnown() {
	s.mu.Lock()
	awaited := s.awaits
	s.awaits = false
	s.mu.Unlock()
	if awaited {
		notify.Send(s.changed)
	}
}

// set returns all pods but mirror pods, which no agent runs.
func (s *podStore) set() podsource.Set {
	s.mu.Lock()
	defer s.mu.Unlock()
	set := podsource.Set{Incomplete: !s.synced || s.awaits, Pods: make([]podsource.Manifest, 0, len(s.pods))}
	if s.err != nil {
		set.Errors = []podsource.SourceError{{Location: "API server", Err: s.err}}
	}
	if s.awaits {
		return set
	}
	for _, pod := range s.order {
		if pod != nil && !podspec.IsMirror(pod) {
			set.Pods = append(set.Pods, podsource.Manifest{Pod: pod})
		}
	}
	return set
}
