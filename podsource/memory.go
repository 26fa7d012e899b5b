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

// Memory is a source that a program fills. Pods are copied when they are put. All
// methods may be called from any goroutine.
//
// A pod keeps its UID when it is put again under its name: the one it brings or,
// if it brings none, one made from its name alone, so that an agent that starts
// anew with the same pods finds them running, whatever was put and deleted before.
// A pod that is deleted and put again is therefore the same pod: it ends and starts
// anew, unless it was back before anybody noticed. A program that means another pod
// each time gives each a UID of its own, as an API server does.
type Memory struct {
	mu      sync.Mutex                // guards what follows
	set     Set                       // replaced, not changed: watchers read it
	named   map[[2]string]*corev1.Pod // those of set
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
	former := m.named
	m.named = make(map[[2]string]*corev1.Pod, len(pods))
	m.publish(m.with(nil, pods, former), m.set.Objects)
}

// Put adds pods, or replaces those of the same namespace and name.
func (m *Memory) Put(pods ...*corev1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.publish(m.with(slices.Clone(m.set.Pods), pods, m.named), m.set.Objects)
}

// Delete takes a pod out of the set, and reports whether it was in it.
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

// SetObjects replaces all ConfigMaps and Secrets. It keeps their data, which the
// caller must not change any more.
func (m *Memory) SetObjects(objects ...podspec.Object) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.publish(m.set.Pods, slices.Clone(objects))
}

// Watch fulfils Source. Several may watch at once.
func (m *Memory) Watch(ctx context.Context, hand func(Set)) error {
	for {
		m.mu.Lock()
		set, changed := m.set, m.changed
		m.mu.Unlock()
		hand(set)
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// publish makes a new version. The caller holds m.mu.
func (m *Memory) publish(pods []Manifest, objects []podspec.Object) {
	m.set = Set{Pods: pods, Objects: objects}
	close(m.changed)
	m.changed = make(chan struct{})
}

// with puts copies of put into pods and m.named. A pod without a UID gets the one
// of its name in former, if there is one.
func (m *Memory) with(pods []Manifest, put []*corev1.Pod, former map[[2]string]*corev1.Pod) []Manifest {
	replaced := make(map[*corev1.Pod]*corev1.Pod)
	for _, pod := range put {
		pod = pod.DeepCopy()
		key := nameInManifest(pod)
		if was := former[key]; pod.UID == "" && was != nil {
			pod.UID = was.UID
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
		for now := replaced[was]; now != nil; now = replaced[now] { // once more for each time it was put
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

// uidOf is the UID of the pod of a name. The ending is that of former versions,
// whose pods are so found running.
func uidOf(key [2]string) types.UID {
	sum := sha256.Sum256([]byte(key[0] + "/" + key[1] + "/0"))
	return types.UID(hex.EncodeToString(sum[:16]))
}
