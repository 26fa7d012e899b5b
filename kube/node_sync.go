package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/node"
)

// watch follows the Node object until ctx is done.
func (n *Node) watch(ctx context.Context) {
	newFollower(n.kube, n.kube.cfg.Client.CoreV1().Nodes(), &corev1.Node{}, n.kube.cfg.NodeName, nodeStore{n}, nil).run(ctx)
}

// nodeStore is the store of a reflector for one Node.
type nodeStore struct{ n *Node }

// Add implements cache.ReflectorStore.
func (s nodeStore) Add(obj any) error { return s.Update(obj) }

// Update implements cache.ReflectorStore.
func (s nodeStore) Update(obj any) error {
	if current, ok := obj.(*corev1.Node); ok && current.Name == s.n.kube.cfg.NodeName {
		s.n.set(current)
	}
	return nil
}

// Delete implements cache.ReflectorStore.
func (s nodeStore) Delete(obj any) error {
	if deleted, ok := obj.(*corev1.Node); ok && deleted.Name == s.n.kube.cfg.NodeName {
		s.n.set(nil)
	}
	return nil
}

// Replace implements cache.ReflectorStore.
func (s nodeStore) Replace(list []any, _ string) error {
	if len(list) == 0 {
		s.n.set(nil)
	}
	for _, obj := range list {
		_ = s.Update(obj) // it returns nil
	}
	return nil
}

// Resync implements cache.ReflectorStore.
func (s nodeStore) Resync() error { return nil }

func (n *Node) set(current *corev1.Node) {
	n.kube.events.setNode(current)
	n.mu.Lock()
	n.current = current
	if current != nil {
		n.note(current)
	}
	n.mu.Unlock()
	if current != nil {
		n.kube.store.setNodeKnown()
	}
}

// observe takes over the response to a request, unless the watch has brought a newer version meanwhile.
func (n *Node) observe(response *corev1.Node) {
	n.kube.events.setNode(response)
	n.mu.Lock()
	if !n.hasNewer(response) {
		n.current = response
		n.note(response)
	}
	n.mu.Unlock()
	n.kube.store.setNodeKnown() // last: it delivers pods, which are admitted by the labels
}

// hasNewer reports whether a later version of that Node is known. n.mu is held.
func (n *Node) hasNewer(node *corev1.Node) bool {
	if n.current == nil || n.current.UID != node.UID {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(node.ResourceVersion, n.current.ResourceVersion)
	return err == nil && order < 0
}

// sync registers the node if it is not, and sends its status if it has changed or was
// not sent for long.
func (n *Node) sync(ctx context.Context) error {
	now := time.Now()
	status, err := n.status(ctx, now)
	ctx, cancel := context.WithTimeout(ctx, 3*callTimeout) // all of it, also after a reporter that was slow
	defer cancel()
	if text := fmt.Sprint(err); text != n.lastErr {
		if n.lastErr = text; err != nil {
			n.log.Warn("node status incomplete", logattr.Err(err))
		}
	}
	current := n.Current()
	if current == nil {
		if current, err = n.register(ctx, status, now); err != nil {
			return err
		}
		n.observe(current)
	}
	first := !n.started
	desired := n.desired(current, status, now, first)
	if desired, err = n.patchMeta(ctx, current, desired); err != nil {
		return err
	}
	changed := first || hasChanged(&current.Status, &desired.Status) && !n.isAnswered(current, desired)
	if changed || now.Sub(n.reportedAt) >= n.cfg.ReportPeriod {
		updated, err := n.patch(ctx, current, desired, "status")
		if err != nil {
			return err
		}
		n.reportedAt = now
		if changed {
			// Nodes that were started together, or changed together, do not report together.
			n.reportedAt = now.Add(rand.N(n.cfg.ReportPeriod) - n.cfg.ReportPeriod/2) //nolint:gosec // no secret
		}
		n.noteAnswer(desired, updated)
		n.observe(updated)
	}
	n.recordTransitions(current, desired, now)
	n.started, n.reported = true, n.withCheck(status.Conditions)
	return nil
}

// noteAnswer remembers what the server has made of a status, if that is something else. The first time it may be what another
// client has written meanwhile, which the patch does not correct.
func (n *Node) noteAnswer(desired, updated *corev1.Node) {
	isSecond := n.rejected != nil && !hasChanged(n.rejected, &desired.Status)
	n.rejected, n.answer = nil, nil
	if !hasChanged(&updated.Status, &desired.Status) {
		return
	}
	if n.rejected = &desired.Status; isSecond {
		n.answer = &updated.Status
	}
}

// isAnswered reports whether the server has made of this very status what it has: it, or a webhook, drops a part, and would
// drop it each time.
func (n *Node) isAnswered(current, desired *corev1.Node) bool {
	return n.answer != nil && !hasChanged(n.rejected, &desired.Status) && !hasChanged(n.answer, &current.Status)
}

// status returns what the node is to report. What the reporter has not found out in time, such as the
// images of a runtime that does not answer, is left out.
func (n *Node) status(ctx context.Context, now time.Time) (status corev1.NodeStatus, err error) {
	ctx, cancel := context.WithTimeout(ctx, reporterTimeout)
	defer cancel()
	err = safe.Call(n.log, "node status", func() (err error) {
		status, err = n.cfg.Reporter.At(ctx, now)
		return err
	})
	status.NodeInfo.KubeletVersion = n.cfg.Version
	if n.cfg.VolumesInUse != nil {
		status.VolumesInUse = nil // unknown after a panic
		safe.Do(n.log, "volumes in use", func() { status.VolumesInUse = n.cfg.VolumesInUse() })
	}
	n.knownInUse = nil
	if n.cfg.KnownVolumesInUse != nil {
		safe.Do(n.log, "known volumes in use", func() { n.knownInUse = n.cfg.KnownVolumesInUse() })
	}
	return status, err
}

// register creates the Node, or gets the one that exists.
func (n *Node) register(ctx context.Context, status corev1.NodeStatus, now time.Time) (*corev1.Node, error) {
	nodes := n.kube.cfg.Client.CoreV1().Nodes()
	if !n.cfg.NoRegistration {
		created := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: n.kube.cfg.NodeName, Labels: maps.Clone(n.cfg.Labels), Annotations: maps.Clone(n.cfg.Annotations)},
			Spec:       corev1.NodeSpec{Taints: n.cfg.registrationTaints(), ProviderID: n.cfg.ProviderID, Unschedulable: n.cfg.Unschedulable},
		}
		created = n.desired(created, status, now, true)
		created, err := nodes.Create(ctx, created, metav1.CreateOptions{})
		switch {
		case err == nil:
			n.log.Info("node registered", slog.String("node", created.Name))
			return created, nil
		case !apierrors.IsAlreadyExists(err) && !apierrors.IsForbidden(err):
			return nil, fmt.Errorf("register node: %w", err)
		}
		if existing, errGet := nodes.Get(ctx, n.kube.cfg.NodeName, metav1.GetOptions{}); errGet == nil {
			n.warnTaints(existing)
			return existing, nil
		}
		return nil, fmt.Errorf("register node: %w", err)
	}
	existing, err := nodes.Get(ctx, n.kube.cfg.NodeName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get node: %w", err)
	}
	return existing, nil
}

// warnTaints logs configured taints that a registered node does not have.
func (n *Node) warnTaints(existing *corev1.Node) {
	for _, t := range n.cfg.Taints {
		if !slices.ContainsFunc(existing.Spec.Taints, func(e corev1.Taint) bool { return e.MatchTaint(&t) }) {
			n.log.Warn("taint not set on the registered node, which only an administrator can do", slog.String("taint", t.ToString()))
		}
	}
}

// withAll returns names with those of more that are not among them.
func withAll(names, more []corev1.UniqueVolumeName) []corev1.UniqueVolumeName {
	for _, name := range more {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// controllerAttaches is the annotation of nodes to which the controller-manager of the
// cluster attaches volumes. It leaves others alone.
const controllerAttaches = "volumes.kubernetes.io/controller-managed-attach-detach"

// desired returns a copy of current with what this node sets. At the start, all labels and
// annotations are set; later only those that schedulers and controllers rely on.
func (n *Node) desired(current *corev1.Node, status corev1.NodeStatus, now time.Time, start bool) *corev1.Node {
	d := current.DeepCopy()
	for key, value := range n.cfg.Labels {
		if start || strings.HasPrefix(key, "kubernetes.io/") || strings.HasPrefix(key, "beta.kubernetes.io/") {
			metav1.SetMetaDataLabel(&d.ObjectMeta, key, value)
		}
	}
	for key, value := range n.cfg.Annotations {
		if start || key == controllerAttaches {
			metav1.SetMetaDataAnnotation(&d.ObjectMeta, key, value)
		}
	}
	n.cfg.setProvidedIP(&d.ObjectMeta)
	s := &d.Status
	s.Capacity = resources(s.Capacity, status.Capacity)
	if start && n.cfg.ResetExtendedResources != nil {
		safe.Do(n.log, "reset extended resources", func() { n.resetExtended(s.Capacity, status.Capacity) })
	}
	s.Allocatable = allocatable(s.Capacity, status)
	s.DaemonEndpoints, s.DeclaredFeatures = status.DaemonEndpoints, status.DeclaredFeatures
	if n.cfg.VolumesInUse == nil || status.VolumesInUse != nil {
		s.VolumesInUse = status.VolumesInUse
	} else {
		s.VolumesInUse = withAll(s.VolumesInUse, n.knownInUse)
	}
	runtimeVersion := s.NodeInfo.ContainerRuntimeVersion
	s.NodeInfo = status.NodeInfo
	setDefault(&s.NodeInfo.ContainerRuntimeVersion, runtimeVersion)
	s.Addresses = n.cfg.addresses(s.Addresses, status.Addresses)
	if status.Images != nil {
		s.Images = status.Images
	}
	if status.RuntimeHandlers != nil {
		s.RuntimeHandlers = status.RuntimeHandlers
	}
	if status.Features != nil {
		s.Features = status.Features
	}
	s.Conditions = conditions(s.Conditions, node.SetTimes(s.Conditions, n.withCheck(status.Conditions), now))
	return d
}

// resources returns ours, and those of others that the Node has: extended resources.
func resources(existing, ours corev1.ResourceList) corev1.ResourceList {
	out := ours.DeepCopy()
	if out == nil {
		out = corev1.ResourceList{}
	}
	for name, q := range existing {
		isNative := !strings.Contains(string(name), "/") // those are the node's: sizes of huge pages may vanish
		if _, ok := out[name]; !ok && !isNative {
			out[name] = q
		}
	}
	return out
}

// resetExtended sets the extended resources of capacity that are not ours to 0, if that is to be done.
func (n *Node) resetExtended(capacity, ours corev1.ResourceList) {
	if !n.cfg.ResetExtendedResources() {
		return
	}
	for name, q := range capacity {
		if _, isOurs := ours[name]; isOurs || q.IsZero() || !strings.Contains(string(name), "/") || strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix) {
			continue
		}
		n.log.Info("extended resource of an earlier machine reset", slog.String("resource", string(name)), slog.String("capacity", q.String()))
		capacity[name] = *resource.NewQuantity(0, resource.DecimalSI)
	}
}

// allocatable returns ours, and all of the extended resources that others have given the Node, as an
// administrator does by its capacity alone.
func allocatable(capacity corev1.ResourceList, ours corev1.NodeStatus) corev1.ResourceList {
	out := resources(nil, ours.Allocatable)
	for name, q := range capacity {
		if _, isOurs := ours.Capacity[name]; !isOurs {
			out[name] = q
		}
	}
	return out
}

// conditions returns ours after those of others, Ready last.
func conditions(existing, ours []corev1.NodeCondition) []corev1.NodeCondition {
	out := slices.Clone(existing)
	out = slices.DeleteFunc(out, func(e corev1.NodeCondition) bool {
		return slices.ContainsFunc(ours, func(c corev1.NodeCondition) bool { return c.Type == e.Type })
	})
	return append(out, ours...)
}

// hasChanged reports whether a status has to be sent. Heartbeats and the order of
// conditions alone do not count.
func hasChanged(current, desired *corev1.NodeStatus) bool {
	plain := func(s *corev1.NodeStatus) *corev1.NodeStatus {
		s = s.DeepCopy()
		for i := range s.Conditions {
			s.Conditions[i].LastHeartbeatTime = metav1.Time{}
			s.Conditions[i].LastTransitionTime = metav1.NewTime(s.Conditions[i].LastTransitionTime.Truncate(time.Second))
		}
		slices.SortStableFunc(s.Conditions, func(a, b corev1.NodeCondition) int { return strings.Compare(string(a.Type), string(b.Type)) })
		return s
	}
	return !apiequality.Semantic.DeepEqual(plain(current), plain(desired))
}

// patchMeta sends labels and annotations if they have changed.
func (n *Node) patchMeta(ctx context.Context, current, desired *corev1.Node) (*corev1.Node, error) {
	if maps.Equal(current.Labels, desired.Labels) && maps.Equal(current.Annotations, desired.Annotations) {
		return desired, nil
	}
	meta := current.DeepCopy()
	meta.Labels, meta.Annotations = desired.Labels, desired.Annotations
	_, err := n.patch(ctx, current, meta, "")
	return desired, err
}

// patch sends the difference of two states of the Node, if it is still the same object.
func (n *Node) patch(ctx context.Context, current, desired *corev1.Node, subresources ...string) (*corev1.Node, error) {
	data, err := nodePatch(current, desired)
	if err != nil {
		return nil, fmt.Errorf("make a patch of the node: %w", err)
	}
	if subresources[0] == "" {
		subresources = nil
	}
	updated, err := n.kube.cfg.Client.CoreV1().Nodes().Patch(ctx, current.Name, types.StrategicMergePatchType, data, metav1.PatchOptions{}, subresources...)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		n.set(nil) // deleted, or recreated by another: it is got or registered next
		return nil, fmt.Errorf("patch node: %w", err)
	case err != nil:
		return nil, fmt.Errorf("patch node: %w", err)
	}
	return updated, nil
}

func nodePatch(current, desired *corev1.Node) ([]byte, error) {
	before, err := json.Marshal(current)
	if err != nil {
		return nil, err
	}
	after, err := json.Marshal(desired)
	if err != nil {
		return nil, err
	}
	data, err := strategicpatch.CreateTwoWayMergePatch(before, after, corev1.Node{})
	if err != nil {
		return nil, err
	}
	var patch map[string]any
	if err := json.Unmarshal(data, &patch); err != nil {
		return nil, err
	}
	if status, ok := patch["status"].(map[string]any); ok && status["addresses"] != nil {
		// The merge key of addresses is their type, of which there may be two.
		var addresses []any
		for _, a := range desired.Status.Addresses {
			addresses = append(addresses, map[string]any{"type": a.Type, "address": a.Address})
		}
		status["addresses"] = append(addresses, map[string]any{"$patch": "replace"})
		delete(status, "$setElementOrder/addresses")
	}
	meta, _ := patch["metadata"].(map[string]any)
	if meta == nil {
		meta = map[string]any{}
	}
	meta["uid"] = current.UID // a precondition
	patch["metadata"] = meta
	return json.Marshal(patch)
}
