package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/csiname"
	"github.com/sublet-dev/agent/internal/csitest"
)

const clusterVolume = `metadata: {name: disk}
spec:
  accessModes: [ReadWriteOnce]
  capacity: {storage: 1Gi}
  persistentVolumeReclaimPolicy: Retain
  storageClassName: fast
  claimRef: {namespace: default, name: data}
  csi: {driver: csitest.example, volumeHandle: v1, fsType: ext4}
`

const clusterClaim = `metadata: {name: data, namespace: default}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}, storageClassName: fast, volumeName: disk}
`

// csiCluster is a cluster node with a CSI driver whose volumes have to be attached.
type csiCluster struct {
	*clusterNode
	driver *csitest.Driver
	unique corev1.UniqueVolumeName
}

func (c *csiCluster) patch(t types.PatchType, resource, name, patch string, subresources ...string) {
	c.t.Helper()
	rest := c.admin.CoreV1().RESTClient()
	if resource == "volumeattachments" {
		rest = c.admin.StorageV1().RESTClient()
	}
	request := rest.Patch(t).Resource(resource).Name(name).SubResource(subresources...).Body([]byte(patch))
	if resource == "persistentvolumeclaims" {
		request = request.Namespace("default")
	}
	require.NoError(c.t, request.Do(c.ctx).Error())
}

// nodeIs waits until the Node is as it should be.
func (c *csiCluster) nodeIs(is func(n *corev1.Node) error) {
	c.t.Helper()
	c.eventually(longRunTime, func() error {
		n, err := c.admin.CoreV1().Nodes().Get(c.ctx, "node", metav1.GetOptions{})
		if err != nil {
			return err
		}
		return is(n)
	})
}

func (c *csiCluster) inUse(want ...corev1.UniqueVolumeName) {
	c.t.Helper()
	c.nodeIs(func(n *corev1.Node) error {
		if got := n.Status.VolumesInUse; fmt.Sprint(got) != fmt.Sprint(want) {
			return fmt.Errorf("volumesInUse %v, want %v", got, want)
		}
		return nil
	})
}

// createVolume makes a volume with a claim that is bound to it.
func (c *csiCluster) createVolume() {
	c.t.Helper()
	require.NoError(c.t, c.driver.CreateVolumeDir("v1"))
	_, err := c.admin.CoreV1().PersistentVolumes().Create(c.ctx, decode[corev1.PersistentVolume](c.t, clusterVolume), metav1.CreateOptions{})
	require.NoError(c.t, err)
	claim, err := c.admin.CoreV1().PersistentVolumeClaims("default").Create(c.ctx, decode[corev1.PersistentVolumeClaim](c.t, clusterClaim), metav1.CreateOptions{})
	require.NoError(c.t, err)
	c.patch(types.MergePatchType, "persistentvolumes", "disk", fmt.Sprintf(`{"spec":{"claimRef":{"uid":%q}}}`, claim.UID))
	c.patch(types.MergePatchType, "persistentvolumes", "disk", `{"status":{"phase":"Bound"}}`, "status")
	c.patch(types.MergePatchType, "persistentvolumeclaims", "data", `{"status":{"phase":"Bound","capacity":{"storage":"1Gi"},"accessModes":["ReadWriteOnce"]}}`, "status")
	yes := true
	_, err = c.admin.StorageV1().CSIDrivers().Create(c.ctx, &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: csitest.Name}, Spec: storagev1.CSIDriverSpec{AttachRequired: &yes, PodInfoOnMount: &yes},
	}, metav1.CreateOptions{})
	require.NoError(c.t, err)
}

// attach does what the attach controller and an attacher do.
func (c *csiCluster) attach() {
	c.t.Helper()
	name, volume := csiname.Attachment(csitest.Name, "v1", "node"), "disk"
	_, err := c.admin.StorageV1().VolumeAttachments().Create(c.ctx, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: csitest.Name, NodeName: "node", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume}},
	}, metav1.CreateOptions{})
	require.NoError(c.t, err)
	c.patch(types.MergePatchType, "volumeattachments", name, `{"status":{"attached":true,"attachmentMetadata":{"device":"vda"}}}`, "status")
	c.inUse(c.unique) // the node says that it waits for the volume
	c.patch(types.StrategicMergePatchType, "nodes", "node", fmt.Sprintf(`{"status":{"volumesAttached":[{"name":%q,"devicePath":""}]}}`, c.unique), "status")
}

// VD-5, VD-7: in a cluster with a real API server and the rights of a node, a volume is staged
// after it was attached, the CSINode and the Node say what the driver says, the volume is
// in use until its pod has ended, and a claim that becomes larger is expanded.
func TestRun_UpstreamAPIServerCSI(t *testing.T) {
	n := newClusterNode(t)
	dir, err := os.MkdirTemp("", "csi") //nolint:usetesting // a short path for the sockets
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	registry := filepath.Join(dir, "plugins")
	require.NoError(t, os.Mkdir(registry, 0o700))
	c := &csiCluster{clusterNode: n, driver: &csitest.Driver{Dir: filepath.Join(n.node.Shared, "driver")}, unique: csiname.Unique(csitest.Name, "v1")}
	stop, err := c.driver.Serve(filepath.Join(dir, "csi.sock"), filepath.Join(registry, "csi.sock"))
	require.NoError(t, err)
	defer stop(false)
	c.extra = append(c.extra, "-csi", "-plugin-registry-dir", registry, "-sync-frequency=5s")
	c.start()

	c.nodeIs(func(n *corev1.Node) error {
		if n.Labels[csitest.TopologyKey] != "node" || n.Annotations["csi.volume.kubernetes.io/nodeid"] != `{"csitest.example":"node"}` {
			return fmt.Errorf("labels %v, annotations %v", n.Labels, n.Annotations)
		}
		return nil
	})
	c.eventually(longRunTime, func() error {
		csiNode, err := c.admin.StorageV1().CSINodes().Get(c.ctx, "node", metav1.GetOptions{})
		if err != nil || len(csiNode.Spec.Drivers) != 1 {
			return fmt.Errorf("CSINode: %+v: %w", csiNode, err)
		}
		d := csiNode.Spec.Drivers[0]
		require.Equal(t, csitest.Name+" node", d.Name+" "+d.NodeID)
		require.Equal(t, []string{csitest.TopologyKey}, d.TopologyKeys)
		require.EqualValues(t, csitest.MaxVolumes, *d.Allocatable.Count)
		return nil
	})

	c.createVolume()
	c.createPod("db", fmt.Sprintf(`  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
  containers:
  - name: main
    image: %s
    imagePullPolicy: IfNotPresent
    command: ["sh", "-c", "trap 'exit 0' TERM; echo kept >/data/file; sleep 1000000 & wait"]
    volumeMounts: [{name: data, mountPath: /data}]
`, c.node.Busybox))
	c.inUse(c.unique)
	require.Empty(t, c.driver.Calls("NodeStageVolume"), "it is not attached")
	c.attach()
	c.phase("db", corev1.PodRunning)
	file := filepath.Join(c.driver.VolumeDir("v1"), "data", "file")
	c.eventually(longRunTime, func() error { _, err := os.Stat(file); return err })

	c.patch(types.MergePatchType, "persistentvolumeclaims", "data", `{"status":{"conditions":[{"type":"FileSystemResizePending","status":"True"}]}}`, "status")
	c.patch(types.MergePatchType, "persistentvolumes", "disk", `{"spec":{"capacity":{"storage":"2Gi"}}}`)
	c.eventually(3*longRunTime, func() error {
		claim, err := c.admin.CoreV1().PersistentVolumeClaims("default").Get(c.ctx, "data", metav1.GetOptions{})
		if err != nil || claim.Status.Capacity.Storage().String() != "2Gi" || len(claim.Status.Conditions) > 0 {
			return fmt.Errorf("claim: %+v: %w", claim.Status, err)
		}
		return nil
	})
	require.EqualValues(t, int64(2<<30), c.driver.Size("v1"))
	c.hasEvent("db", "FileSystemResizeSuccessful")

	c.eventually(2*longRunTime, func() error { // the driver is asked every minute
		_, summary, err := c.get("/stats/summary")
		if !strings.Contains(strings.Join(strings.Fields(string(summary)), ""), `"name":"data","pvcRef":{"name":"data","namespace":"default"}`) {
			return fmt.Errorf("summary: %s: %w", summary, err)
		}
		return nil
	})
	require.NoError(t, c.admin.CoreV1().Pods("default").Delete(c.ctx, "db", metav1.DeleteOptions{}))
	c.phase("db", "")
	c.inUse()
	c.eventually(longRunTime, func() error { return nothingLeft(c.root) })
	if _, err := os.Stat(file); err != nil {
		t.Fatal(errors.Join(errors.New("the data is lost"), err))
	}
}
