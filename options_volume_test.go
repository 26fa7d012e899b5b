package agent_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/admission"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/volume"
)

// A local volume is for the node that has the labels which admission uses.
func TestAgent_LocalVolumesOfTheNode(t *testing.T) {
	manifest := filepath.Join(t.TempDir(), "pv.yaml")
	require.NoError(t, os.WriteFile(manifest, []byte(`apiVersion: v1
kind: PersistentVolume
metadata: {name: data}
spec:
  local: {path: `+t.TempDir()+`}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [
    {key: kubernetes.io/hostname, operator: In, values: [edge-1]}, {key: disk, operator: In, values: [ssd]}]}]}}
`), 0o600))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "uid"}, Spec: corev1.PodSpec{
		Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}}},
		Containers: []corev1.Container{{Name: "c", VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}}},
	}}
	disk := func(kind string) agent.Option {
		return agent.WithNode(node.Config{Labels: map[string]string{"disk": kind}})
	}
	changing := agent.WithNodeLabels(func() map[string]string {
		return map[string]string{corev1.LabelHostname: "edge-1", "disk": "ssd"}
	})
	for name, tc := range map[string]struct {
		node string
		opt  agent.Option
		want string
	}{
		"this node":                   {"edge-1", disk("ssd"), ""},
		"another name":                {"edge-2", disk("ssd"), "is of another node"},
		"the labels of admission":     {"edge-1", agent.WithConfig(admission.Config{Labels: map[string]string{"disk": "ssd"}}), ""},
		"another label":               {"edge-1", disk("hdd"), "is of another node"},
		"the labels of a Node object": {"edge-3", changing, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var volumes agent.Volumes
			_, err := agent.New(agent.WithNodeName(tc.node), agent.WithRootDir(t.TempDir()), agent.WithSimulatedRuntime(), tc.opt,
				agent.WithConfig(volume.Config{Claims: volume.NewFiles(manifest), Unprivileged: true}),
				agent.WithVolumes(func(c *agent.Components) (_ agent.Volumes, err error) {
					volumes, err = agent.NewVolumes(c)
					return volumes, err
				}))
			require.NoError(t, err)
			_, err = volumes.Mount(t.Context(), pod, nil)
			if tc.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tc.want)
		})
	}
}
