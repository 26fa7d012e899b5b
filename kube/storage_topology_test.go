package kube

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// VD-8: a label that others have set stays, and a driver that denies it is not in the CSINode until the label is
// gone. A driver may correct what it said itself.
func TestStorage_TopologyContradictsNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		topology := map[string]string{"zone": "a", "rack": "7"}
		s, client := newStorage(t, StorageConfig{Topology: func() map[string]string {
			mu.Lock()
			defer mu.Unlock()
			return topology
		}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"zone": "b"}}})
		var log strings.Builder
		s.k.cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		zonal, other := storagev1.CSINodeDriver{Name: "zonal", NodeID: "1", TopologyKeys: []string{"rack", "zone"}}, storagev1.CSINodeDriver{Name: "other", NodeID: "2"}
		s.SetDrivers([]storagev1.CSINodeDriver{zonal, other})
		requireState := func(labels map[string]string, ids string, drivers ...storagev1.CSINodeDriver) {
			t.Helper()
			time.Sleep(2 * csiNodePeriod)
			synctest.Wait()
			node, err := client.CoreV1().Nodes().Get(ctx, "n", metav1.GetOptions{})
			require.NoError(t, err)
			require.Equal(t, labels, node.Labels)
			require.JSONEq(t, ids, node.Annotations[nodeIDAnnotation])
			n, err := client.StorageV1().CSINodes().Get(ctx, "n", metav1.GetOptions{})
			require.NoError(t, err)
			require.ElementsMatch(t, drivers, n.Spec.Drivers)
		}
		relabel := func(patch string) {
			t.Helper()
			_, err := client.CoreV1().Nodes().Patch(ctx, "n", types.MergePatchType, []byte(`{"metadata": {"labels": `+patch+`}}`), metav1.PatchOptions{})
			require.NoError(t, err)
		}
		requireState(map[string]string{"zone": "b"}, `{"other": "2"}`, other)
		require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
		assert.Contains(t, log.String(), `driver=zonal reason="its topology has zone=a, but the Node has the label zone=b; remove the label if the driver is right"`)

		relabel(`{"zone": null}`)
		requireState(map[string]string{"zone": "a", "rack": "7"}, `{"other": "2", "zonal": "1"}`, zonal, other)

		mu.Lock()
		topology = map[string]string{"zone": "", "rack": "7"}
		mu.Unlock()
		s.SetDrivers([]storagev1.CSINodeDriver{zonal, other})
		requireState(map[string]string{"zone": "", "rack": "7"}, `{"other": "2", "zonal": "1"}`, zonal, other)

		relabel(`{"zone": null}`)
		requireState(map[string]string{"zone": "", "rack": "7"}, `{"other": "2", "zonal": "1"}`, zonal, other)
		cancel()
		require.NoError(t, <-done)
	})
}

// A label that a node may not set on itself keeps a driver out of the CSINode until an administrator has set it: a patch with it
// would be rejected, with the ids and labels of all drivers. // VD-8
func TestStorage_TopologyHasAReservedLabel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const reserved = "node-restriction.kubernetes.io/zone"
		s, client := newStorage(t, StorageConfig{Topology: func() map[string]string { return map[string]string{reserved: "a", "rack": "7"} }},
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
		var log strings.Builder
		s.k.cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		s.SetDrivers([]storagev1.CSINodeDriver{{Name: "zonal", NodeID: "1", TopologyKeys: []string{reserved}}, {Name: "other", NodeID: "2", TopologyKeys: []string{"rack"}}})
		requireNode := func(labels map[string]string, ids string) {
			t.Helper()
			time.Sleep(2 * csiNodePeriod)
			synctest.Wait()
			node, err := client.CoreV1().Nodes().Get(ctx, "n", metav1.GetOptions{})
			require.NoError(t, err)
			require.Equal(t, labels, node.Labels)
			require.JSONEq(t, ids, node.Annotations[nodeIDAnnotation])
		}
		requireNode(map[string]string{"rack": "7"}, `{"other": "2"}`)
		require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
		assert.Contains(t, log.String(), `driver=zonal reason="its topology has node-restriction.kubernetes.io/zone=a, a label that only an administrator can set on the Node"`)

		_, err := client.CoreV1().Nodes().Patch(ctx, "n", types.MergePatchType, []byte(`{"metadata": {"labels": {"`+reserved+`": "a"}}}`), metav1.PatchOptions{})
		require.NoError(t, err)
		requireNode(map[string]string{"rack": "7", reserved: "a"}, `{"other": "2", "zonal": "1"}`)
		cancel()
		require.NoError(t, <-done)
	})
}
