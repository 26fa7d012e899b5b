package podsource

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
)

// Memory is a source that the program fills. Pods are copied when they are added. All
// methods may be called from any goroutine.
//
// A pod without a UID gets the UID of the pod it replaces or one derived from its
// namespace and name. A restarted agent with the same pods therefore finds them
// running. A pod that is deleted and put again is the same pod: it is terminated and
// started again, unless it was put before the deletion was delivered. A program that
// means a different pod must set a different UID, like an API server.
type Memory struct {
	mu      sync.Mutex                // guards the fields below
	set     Set                       // read by watchers, never modified
	named   map[[2]string]*corev1.Pod // the pods of set
	changed chan struct{}             // closed and replaced when set is replaced
}

var _ Source = (*Memory)(nil)

// NewMemory returns a Memory with these pods.
func NewMemory(pods ...*corev1.Pod) *Memory {
	m := &Memory{changed: make(chan struct{})}
	m.Set(pods...)
	return m
}

// Set replaces all pods.
func (m *Memory) Set(pods ...*corev1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	previous := m.named
	m.named = make(map[[2]string]*corev1.Pod, len(pods))
	m.publish(m.with(nil, pods, previous), m.set.Objects)
}

// Put adds pods, or replaces those of the same namespace and name.
func (m *Memory) Put(pods ...*corev1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.publish(m.with(slices.Clone(m.set.Pods), pods, m.named), m.set.Objects)
}

// Delete removes a pod and reports whether it existed.
func (m *Memory) Delete(namespace, name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := nameInManifest(podNamed(namespace, name))
	pod := m.named[key]
	if pod == nil {
		return false
	}
	delete(m.named, key)
	m.publish(slices.DeleteFunc(slices.Clone(m.set.Pods), is(pod)), m.set.Objects)
	return true
}

// SetObjects replaces all ConfigMaps and Secrets. Their data is not copied and must not
// be modified afterwards.
func (m *Memory) SetObjects(objects ...podspec.Object) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.publish(m.set.Pods, slices.Clone(objects))
}

// Watch implements Source. It may be called several times concurrently.
func (m *Memory) Watch(ctx context.Context, deliver func(Set)) error {
	for {
		m.mu.Lock()
		set, changed := m.set, m.changed
		m.mu.Unlock()
		deliver(set)
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// publish replaces the set and wakes watchers.
// held: m.mu
func (m *Memory) publish(pods []Manifest, objects []podspec.Object) {
	m.set = Set{Pods: pods, Objects: objects}
	close(m.changed)
	m.changed = make(chan struct{})
}

// with adds copies of put to pods and m.named. A pod without a UID gets that of the pod
// of its name in previous, if there is one.
// held: m.mu
func (m *Memory) with(pods []Manifest, put []*corev1.Pod, previous map[[2]string]*corev1.Pod) []Manifest {
	replaced := make(map[*corev1.Pod]*corev1.Pod)
	for _, pod := range put {
		pod = pod.DeepCopy()
		key := nameInManifest(pod)
		if p := previous[key]; pod.UID == "" && p != nil {
			pod.UID = p.UID
		} else if pod.UID == "" {
			pod.UID = uidOf(key)
		}
		was := m.named[key]
		m.named[key] = pod
		if was == nil {
			pods = append(pods, Manifest{Pod: pod})
			continue
		}
		replaced[was] = pod
	}
	for i := 0; i < len(pods) && len(replaced) > 0; i++ {
		was := pods[i].Pod
		for now := replaced[was]; now != nil; now = replaced[now] { // repeated if a pod was put more than once
			pods[i].Pod = now
			delete(replaced, was)
			was = now
		}
	}
	return pods
}

func is(pod *corev1.Pod) func(Manifest) bool {
	return func(m Manifest) bool { return m.Pod == pod }
}

// uidOf returns the UID for a name. The suffix is that of previous versions, so that
// their pods are found running.
func uidOf(key [2]string) types.UID {
	sum := sha256.Sum256([]byte(key[0] + "/" + key[1] + "/0"))
	return types.UID(hex.EncodeToString(sum[:16]))
}
