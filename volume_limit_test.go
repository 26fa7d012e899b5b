package agent_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/internal/agenttest"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/volume"
)

// fullNode is a volume driver that has no place for a volume. unmounted are the pods that have ended.
type fullNode struct{ unmounted chan types.UID }

func (fullNode) Sources() []string { return []string{"nfs"} }
func (fullNode) Mount(context.Context, volume.DriverVolume) (runtime.Volume, error) {
	return runtime.Volume{}, fmt.Errorf("attach volume to the node: %w: no slot", runtime.ErrVolumeLimit)
}

func (f fullNode) Unmount(_ context.Context, uid types.UID) error {
	f.unmounted <- uid
	return nil
}

// PS-7: a pod for whose volume the node has no place fails, so that its controller makes another one.
func TestAgent_VolumeLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, driver := agenttest.New(t, agenttest.Config{}), fullNode{make(chan types.UID, 10)}
		pod := agenttest.Pod("db")
		pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "s", Path: "/"}}}}
		pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
		h.AddOptions(agent.WithConfig(volume.Config{Drivers: []volume.Driver{driver}}),
			agent.WithSource("cluster", podsource.NotStatic(podsource.NewMemory(pod))))
		h.Start()
		time.Sleep(time.Minute)
		synctest.Wait()
		st := h.LastStatus("db")
		require.Equal(t, corev1.PodFailed, st.Phase)
		require.Equal(t, "VolumeAttachmentLimitExceeded", st.Reason)
		require.Equal(t, `Pod was rejected: mount volumes: MountVolume.SetUp failed for volume "v": attach volume to the node: the node has as many volumes as it can: no slot`, st.Message)
		require.NotEmpty(t, driver.unmounted)
		h.Stop()
		h.ShutDown()
	})
}
