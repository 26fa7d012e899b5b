package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// desiredDrivers returns the drivers that the CSINode is to have, with those of the current one that may come
// back, and the labels that the Node lacks for them.
func (s *Storage) desiredDrivers(node *corev1.Node, current []storagev1.CSINodeDriver) ([]storagev1.CSINodeDriver, map[string]string) {
	var topology map[string]string
	if s.cfg.Topology != nil {
		topology = maps.Clone(s.cfg.Topology())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	drivers, rejected := []storagev1.CSINodeDriver{}, map[string]string{} // required, may be empty
	for _, d := range s.drivers {
		if why := s.contradiction(node, topology, d.TopologyKeys); why != "" {
			rejected[d.Name] = why
			continue
		}
		drivers = append(drivers, d)
	}
	labels := map[string]string{}
	for key, value := range topology {
		hasKey := func(d storagev1.CSINodeDriver) bool { return slices.Contains(d.TopologyKeys, key) }
		isRejected := !slices.ContainsFunc(drivers, hasKey) && slices.ContainsFunc(s.drivers, hasKey)
		if label, ok := node.Labels[key]; (!ok || label != value) && !isRejected && s.contradiction(node, topology, []string{key}) == "" {
			labels[key] = value
		}
	}
	for _, d := range current {
		if s.inherit && !s.own[d.Name] {
			drivers = append(drivers, d)
		}
	}
	s.logRejected(rejected)
	return drivers, labels
}

// contradiction returns why the topology with these keys is not that of the Node, or "": a label that is not
// from this process was set by an administrator, a cloud or another agent, and pods and volumes are placed by it. One that
// no node may set on itself has to be there: a patch with it would be rejected for all drivers.
func (s *Storage) contradiction(node *corev1.Node, topology map[string]string, keys []string) string {
	for _, key := range keys {
		value, reported := topology[key]
		label, ok := node.Labels[key]
		written, own := s.labels[key]
		if reported && ok && label != value && (!own || label != written) {
			return fmt.Sprintf("its topology has %s=%s, but the Node has the label %s=%s; remove the label if the driver is right", key, value, key, label)
		}
		if reported && label != value && isReservedLabel(key) {
			return fmt.Sprintf("its topology has %s=%s, a label that only an administrator can set on the Node", key, value)
		}
	}
	return ""
}

// logRejected logs which drivers are left out of the CSINode, once for each reason.
func (s *Storage) logRejected(rejected map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(rejected)) {
		if s.rejected[name] != rejected[name] {
			s.k.cfg.Logger.Warn("CSI driver left out of the CSINode", slog.String("driver", name), slog.String("reason", rejected[name]))
		}
	}
	s.rejected = rejected
}

// patchNode sets labels of the topology and the ids of the node.
func (s *Storage) patchNode(ctx context.Context, node *corev1.Node, drivers []storagev1.CSINodeDriver, labels map[string]string) error {
	ids := map[string]string{}
	for _, d := range drivers {
		ids[d.Name] = d.NodeID
	}
	text, err := json.Marshal(ids)
	if err != nil {
		return err
	}
	if len(labels) == 0 && (node.Annotations[nodeIDAnnotation] == string(text) || len(ids) == 0 && node.Annotations[nodeIDAnnotation] == "") {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": node.UID, "labels": labels, "annotations": map[string]string{nodeIDAnnotation: string(text)}}})
	if err != nil {
		return err
	}
	_, err = s.k.cfg.Client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("labels of the node: %w", err)
	}
	maps.Copy(s.labels, labels)
	return nil
}
