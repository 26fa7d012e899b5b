package kube

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/podspec"
)

// mirrorPods keeps a mirror pod in the API server for each static pod.
type mirrorPods struct {
	k *Kube

	mu sync.Mutex // guards the fields below
	// owners are the static pods whose mirror pod has a name. Another version of a
	// static pod is another pod of the same name, which runs for a while beside it.
	owners   map[types.NamespacedName]types.UID
	reported map[types.UID]bool      // static pods that have a status
	rejected map[types.UID]time.Time // when a static pod was found to get no mirror pod
}

// rejectionPeriod is how long a mirror pod that was rejected is not created again.
const rejectionPeriod = time.Minute

// mirrorHash is the value of the annotation that a mirror pod has of its static pod.
func mirrorHash(static *corev1.Pod) string {
	if hash := static.Annotations[podspec.AnnotationHash]; hash != "" {
		return hash
	}
	return string(static.UID)
}

// isMirrorOf reports whether mirror is the mirror pod of this version of the static pod,
// and stays.
func isMirrorOf(mirror, static *corev1.Pod) bool {
	return mirror.DeletionTimestamp == nil && mirror.Annotations[podspec.AnnotationMirror] == mirrorHash(static)
}

// owns reports whether the mirror pod of that name is that of this version of the static
// pod. The version that had its first status last is, if it is still desired.
func (m *mirrorPods) owns(static *corev1.Pod) bool {
	desired := m.k.isDesired(static.UID)
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, taken := m.owners[keyOf(static)]; desired && (!taken || !m.reported[static.UID]) {
		m.owners[keyOf(static)] = static.UID
	}
	m.reported[static.UID] = true
	return m.owners[keyOf(static)] == static.UID
}

// ensure returns the mirror pod of a static pod, which it creates or replaces if that is
// necessary. It returns nil if the pod has none.
func (m *mirrorPods) ensure(ctx context.Context, static *corev1.Pod) (*corev1.Pod, error) {
	if !m.owns(static) || m.isRejected(static.UID) {
		return nil, nil
	}
	mirror, synced := m.k.store.get(keyOf(static))
	if mirror == nil && !synced {
		var err error
		if mirror, err = m.read(ctx, static); err != nil {
			return nil, err
		}
	}
	for attempt := 0; ; attempt++ {
		switch {
		case mirror == nil:
		case isMirrorOf(mirror, static):
			return mirror, nil
		case !podspec.IsMirror(mirror):
			m.markRejected(static, fmt.Errorf("a pod that is not a mirror pod has the name, with UID %s", mirror.UID))
			return nil, nil
		default:
			if err := m.delete(ctx, mirror); err != nil {
				return nil, err
			}
		}
		created, err := m.create(ctx, static)
		if !apierrors.IsAlreadyExists(err) || attempt > 0 {
			return created, err
		}
		if mirror, err = m.read(ctx, static); err != nil {
			return nil, err
		}
	}
}

// read returns the pod in the API server that has the name of a static pod, or nil.
func (m *mirrorPods) read(ctx context.Context, static *corev1.Pod) (*corev1.Pod, error) {
	pod, err := m.k.cfg.Client.CoreV1().Pods(static.Namespace).Get(ctx, static.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get mirror pod: %w", err)
	}
	return pod, nil
}

// create creates a mirror pod. One that the server rejects for what it is returns nil: a
// static pod may use what a node must not put into the API server, such as Secrets.
func (m *mirrorPods) create(ctx context.Context, static *corev1.Pod) (*corev1.Pod, error) {
	// The Node is read each time: a mirror pod of one that was deleted meanwhile is garbage.
	node, err := m.k.cfg.Client.CoreV1().Nodes().Get(ctx, m.k.cfg.NodeName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get node for mirror pod: %w", err)
	}
	if node.DeletionTimestamp != nil {
		m.markRejected(static, fmt.Errorf("the Node %s is being deleted, and its mirror pods with it", node.Name))
		return nil, nil
	}
	created, err := m.k.cfg.Client.CoreV1().Pods(static.Namespace).Create(ctx, newMirror(static, node), metav1.CreateOptions{})
	switch {
	case err == nil:
		m.k.cfg.Logger.Info("mirror pod created", logattr.Pod(static), logattr.PodUID(static.UID))
		m.k.store.observe(created)
		return created, nil
	case apierrors.IsAlreadyExists(err):
		return nil, err
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsNotFound(err):
		m.markRejected(static, err)
		return nil, nil
	default:
		return nil, fmt.Errorf("create mirror pod: %w", err)
	}
}

// newMirror returns the mirror pod of a static pod. The Node owns it, so that it goes
// with the Node, and because NodeRestriction requires that.
func newMirror(static *corev1.Pod, node *corev1.Node) *corev1.Pod {
	mirror := &corev1.Pod{Spec: *static.Spec.DeepCopy()}
	mirror.Name, mirror.Namespace, mirror.Labels = static.Name, static.Namespace, static.Labels
	mirror.Annotations = maps.Clone(static.Annotations)
	if mirror.Annotations == nil {
		mirror.Annotations = map[string]string{}
	}
	delete(mirror.Annotations, podspec.AnnotationStatic)
	mirror.Annotations[podspec.AnnotationHash] = mirrorHash(static)
	mirror.Annotations[podspec.AnnotationMirror] = mirrorHash(static)
	mirror.Spec.NodeName = node.Name
	isController := true
	mirror.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID, Controller: &isController,
	}}
	return mirror
}

func (m *mirrorPods) markRejected(static *corev1.Pod, err error) {
	m.mu.Lock()
	_, known := m.rejected[static.UID]
	m.rejected[static.UID] = time.Now()
	m.mu.Unlock()
	if !known {
		m.k.cfg.Logger.Warn("mirror pod rejected, static pod runs without", logattr.Pod(static), logattr.PodUID(static.UID), logattr.Err(err))
	}
}

func (m *mirrorPods) isRejected(uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	at, ok := m.rejected[uid]
	return ok && time.Since(at) < rejectionPeriod
}

// delete removes a mirror pod at once.
func (m *mirrorPods) delete(ctx context.Context, mirror *corev1.Pod) error {
	if err := m.k.deletePod(ctx, mirror); err != nil {
		return fmt.Errorf("mirror pod: %w", err)
	}
	m.k.cfg.Logger.Info("mirror pod deleted", logattr.Pod(mirror), logattr.PodUID(mirror.UID))
	return nil
}

// remove removes the mirror pod of a static pod that is finished. The mirror pod of
// another version stays.
func (m *mirrorPods) remove(ctx context.Context, static *corev1.Pod) error {
	m.mu.Lock()
	isOwner := m.owners[keyOf(static)] == static.UID
	m.mu.Unlock()
	if isOwner {
		mirror, synced := m.k.store.get(keyOf(static))
		if mirror == nil && !synced {
			var err error
			if mirror, err = m.read(ctx, static); err != nil {
				return err
			}
		}
		if mirror != nil && mirror.Annotations[podspec.AnnotationMirror] == mirrorHash(static) {
			if err := m.delete(ctx, mirror); err != nil {
				return err
			}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.owners[keyOf(static)] == static.UID {
		delete(m.owners, keyOf(static))
	}
	delete(m.reported, static.UID)
	delete(m.rejected, static.UID)
	return nil
}

// removeOrphans removes the mirror pods of static pods that went while no agent ran. It
// does nothing before all sources have synced, and leaves those alone whose manifest cannot be
// read: their static pods run.
func (m *mirrorPods) removeOrphans(ctx context.Context) {
	mirrors, synced := m.k.store.mirrors()
	if !synced {
		return
	}
	bounded, cancel := context.WithTimeout(ctx, sendTimeout) // statuses are compared after it
	defer cancel()
	for _, mirror := range m.k.undesired(mirrors) {
		m.mu.Lock()
		_, owned := m.owners[keyOf(mirror)]
		m.mu.Unlock()
		if owned {
			continue
		}
		if err := m.delete(bounded, mirror); err != nil && ctx.Err() == nil {
			m.k.cfg.Logger.Warn("deleting mirror pod failed", logattr.Pod(mirror), logattr.Err(err))
		}
		if bounded.Err() != nil {
			return
		}
	}
}
