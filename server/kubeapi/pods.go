package kubeapi

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/podspec"
)

// podView is the pods as clients see them. Static pods look like mirror pods: a restart
// gives them another UID, so that a client that deletes one sees it go.
type podView struct {
	*collection
	refreshing refresher

	mu       sync.Mutex // guards restarts
	restarts map[types.UID]*restart
}

// restart is what clients see of a static pod that was deleted, by its UID on the node.
type restart struct {
	uid       types.UID    // that clients see since the last restart; "": that on the node
	deletedAt *metav1.Time // of the restart in progress
}

// refreshPods compares the pods of the node and of the Store with what clients know.
func (a *API) refreshPods(ctx context.Context) error {
	return a.pods.refreshing.do(ctx, a.comparePods)
}

func (a *API) comparePods() error {
	stored, removed := map[string]*corev1.Pod{}, map[types.UID]bool{}
	if a.cfg.Store != nil {
		stored, removed = a.cfg.Store.snapshot()
		maps.DeleteFunc(stored, func(_ string, pod *corev1.Pod) bool { return removed[pod.UID] })
	}
	onNode, uids := map[string]*corev1.Pod{}, map[types.UID]bool{}
	restarts := a.pods.visibleRestarts()
	for _, pod := range a.cfg.Pods() {
		key := keyOf(pod)
		uids[pod.UID] = true
		if s := stored[key]; removed[pod.UID] || s != nil && s.UID != pod.UID {
			continue // a pod of the same name follows it
		}
		if other := onNode[key]; other == nil || podspec.Replaces(pod, other) {
			onNode[key] = pod
		}
	}
	var all []object
	for key, pod := range onNode {
		if s := stored[key]; s != nil {
			all = append(all, storedPod(s, &pod.Status))
			continue
		}
		all = append(all, a.nodePod(pod, restarts[pod.UID]))
	}
	for key, s := range stored {
		if onNode[key] == nil {
			all = append(all, storedPod(s, &corev1.PodStatus{}))
		}
	}
	a.pods.forgetRestarts(uids)
	a.pods.replace(all)
	return nil
}

// storedPod returns a pod of the Store with its status on the node.
func storedPod(s *corev1.Pod, st *corev1.PodStatus) *corev1.Pod {
	pod := *s // shared with the Store and read-only, as is the status
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	pod.Status = *st
	if pod.Status.Phase == "" {
		pod.Status.Phase = corev1.PodPending
	}
	if pod.Status.QOSClass == "" {
		pod.Status.QOSClass = podspec.QOS(&pod)
	}
	return &pod
}

// previewOf returns a pod of the Store as a change would make it of what clients see now.
func previewOf(s, visible *corev1.Pod) *corev1.Pod {
	pod := storedPod(s, &visible.Status)
	pod.ResourceVersion = visible.ResourceVersion
	return pod
}

// nodePod returns a pod of another source.
func (a *API) nodePod(onNode *corev1.Pod, r restart) *corev1.Pod {
	pod := *onNode // shared with the agent and read-only
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	pod.ResourceVersion = ""
	if pod.CreationTimestamp.IsZero() {
		pod.CreationTimestamp = podspec.StartTime(onNode)
	}
	if pod.CreationTimestamp.IsZero() {
		pod.CreationTimestamp = a.startedAt()
	}
	if podspec.IsStatic(onNode) {
		// Clients know static pods by it: kubectl describe finds their events with it.
		pod.Annotations = maps.Clone(pod.Annotations)
		set(&pod.Annotations, podspec.AnnotationMirror, string(onNode.UID))
	}
	if r.uid != "" {
		pod.UID = r.uid
	}
	if r.deletedAt != nil && pod.DeletionTimestamp == nil {
		pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = r.deletedAt, pod.Spec.TerminationGracePeriodSeconds
	}
	return &pod
}

// onNode returns the pod of the node that a client sees, or nil.
func (a *API) onNode(visible *corev1.Pod) *corev1.Pod {
	restarts := a.pods.visibleRestarts()
	for _, pod := range a.cfg.Pods() {
		uid := pod.UID
		if r := restarts[uid]; r.uid != "" {
			uid = r.uid
		}
		if uid == visible.UID {
			return pod
		}
	}
	return nil
}

// beginRestart marks a pod as being deleted. It returns false if it is already.
func (a *API) beginRestart(uid types.UID) bool {
	a.pods.mu.Lock()
	defer a.pods.mu.Unlock()
	r := a.pods.restarts[uid]
	if r == nil {
		r = &restart{}
		a.pods.restarts[uid] = r
	}
	if r.deletedAt != nil {
		return false
	}
	r.deletedAt = &metav1.Time{Time: time.Now().Truncate(seconds)}
	return true
}

// endRestart makes a restarted pod a new one for clients.
func (a *API) endRestart(uid types.UID, err error) {
	a.pods.mu.Lock()
	defer a.pods.mu.Unlock()
	if r := a.pods.restarts[uid]; r != nil {
		r.deletedAt = nil
		if err == nil {
			r.uid = uuid.NewUUID()
		}
	}
}

// visibleRestarts returns what clients see of restarts.
func (v *podView) visibleRestarts() map[types.UID]restart {
	v.mu.Lock()
	defer v.mu.Unlock()
	all := make(map[types.UID]restart, len(v.restarts))
	for uid, r := range v.restarts {
		all[uid] = *r
	}
	return all
}

// forgetRestarts forgets pods that the node does not have any more.
func (v *podView) forgetRestarts(onNode map[types.UID]bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	maps.DeleteFunc(v.restarts, func(uid types.UID, r *restart) bool { return !onNode[uid] && r.deletedAt == nil })
}

// restart restarts a static pod.
func (a *API) restart(ctx context.Context, pod *corev1.Pod) {
	err := safe.Call(a.cfg.Logger, "Operator", func() error { return a.cfg.Operator.RestartPod(ctx, pod) })
	if err != nil && ctx.Err() == nil {
		a.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "pod restart failed", logattr.Pod(pod), logattr.Err(err))
	}
	a.endRestart(pod.UID, err)
	_ = safe.Call(a.cfg.Logger, "Pods", func() error { return a.refreshPods(ctx) })
}
