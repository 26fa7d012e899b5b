package podsource

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
)

// Memory is a source that a program fills. As with an API server, a pod keeps
// its UID when it is put again under its name: the one it brings or, if it brings
// none, one made from its name, so that an agent that starts anew with the same
// pods finds them running. Pods are copied when they are put. All methods may be
// called from any goroutine.
type Memory struct {
	mu      sync.Mutex // guards what follows
	set     Set        // replaced, not changed: watchers read it
	past    map[[2]string]int
	changed chan struct{} // closed and replaced when set is replaced
}

var _ Source = (*Memory)(nil)

// NewMemory returns a Memory with these pods.
func NewMemory(pods ...*corev1.Pod) *Memory {
	m := &Memory{past: map[[2]string]int{}, changed: make(chan struct{})}
	m.Set(pods...)
	return m
}

// Set replaces all pods.
func (m *Memory) Set(pods ...*corev1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var next []Manifest
	for _, pod := range pods {
		next = m.with(next, pod)
	}
	for _, old := range m.set.Pods {
		if indexOf(next, written(old.Pod)) < 0 {
			m.past[written(old.Pod)]++
		}
	}
	m.publish(next, m.set.Objects)
}

// Put adds pods, or replaces those of the same namespace and name.
func (m *Memory) Put(pods ...*corev1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := slices.Clone(m.set.Pods)
	for _, pod := range pods {
		next = m.with(next, pod)
	}
	m.publish(next, m.set.Objects)
}

// Delete takes a pod out of the set, and reports whether it was in it. A pod of
// that name that is put later is another one, unless it brings its own UID.
func (m *Memory) Delete(namespace, name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := written(podNamed(namespace, name))
	i := indexOf(m.set.Pods, key)
	if i < 0 {
		return false
	}
	m.past[key]++
	m.publish(slices.Delete(slices.Clone(m.set.Pods), i, i+1), m.set.Objects)
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

// with returns pods with a copy of pod put in.
func (m *Memory) with(pods []Manifest, pod *corev1.Pod) []Manifest {
	pod = pod.DeepCopy()
	key := written(pod)
	i := indexOf(pods, key)
	if pod.UID == "" {
		if now := indexOf(m.set.Pods, key); now >= 0 {
			pod.UID = m.set.Pods[now].Pod.UID
		} else {
			pod.UID = uidOf(key, m.past[key])
		}
	}
	if i >= 0 {
		pods[i] = Manifest{Pod: pod}
		return pods
	}
	return append(pods, Manifest{Pod: pod})
}

func indexOf(pods []Manifest, key [2]string) int {
	return slices.IndexFunc(pods, func(m Manifest) bool { return written(m.Pod) == key })
}

// uidOf is the UID of the nth pod of a name.
func uidOf(key [2]string, nth int) types.UID {
	sum := sha256.Sum256([]byte(key[0] + "/" + key[1] + "/" + strconv.Itoa(nth)))
	return types.UID(hex.EncodeToString(sum[:16]))
}
