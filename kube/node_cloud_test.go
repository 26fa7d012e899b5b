package kube

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// KU-13
func TestNode_LeavesAddressesToTheCloud(t *testing.T) {
	const hint = "alpha.kubernetes.io/provided-node-ip"
	byCloud := []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: "10.1.0.7"}, {Type: corev1.NodeExternalIP, Address: "192.0.2.7"}, {Type: corev1.NodeHostName, Address: "n.cloud.example"},
	}
	onlyName := []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "n"}}
	detected := newFakeReporter().status.Addresses
	registered := func(addresses ...corev1.NodeAddress) *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", Annotations: map[string]string{hint: "192.0.2.99", "other": "x"}},
			Status:     corev1.NodeStatus{Addresses: addresses},
		}
	}
	for name, tc := range map[string]struct {
		cloud     bool
		nodeIPs   []string
		existing  *corev1.Node
		want      []corev1.NodeAddress
		wantHint  string
		wantTaint bool
	}{
		"a new Node":                           {true, nil, nil, onlyName, "", true},
		"a new Node with a given address":      {true, []string{"10.0.0.5"}, nil, detected, "10.0.0.5", true},
		"a new Node with two given addresses":  {true, []string{"10.0.0.5", "fd00::5"}, nil, detected, "10.0.0.5,fd00::5", true},
		"a new Node of a family":               {true, []string{"0.0.0.0"}, nil, detected, "", true},
		"a Node that the cloud knows":          {true, nil, registered(byCloud...), byCloud, "", false},
		"a Node that the cloud knows, given":   {true, []string{"10.0.0.5"}, registered(byCloud...), byCloud, "10.0.0.5", false},
		"a Node that has no addresses":         {true, nil, registered(), onlyName, "", false},
		"a new Node without a cloud":           {false, []string{"10.0.0.5"}, nil, detected, "", false},
		"a Node that has had a cloud":          {false, []string{"10.0.0.5"}, registered(byCloud...), detected, "", false},
		"a Node without a cloud and addresses": {false, nil, registered(), detected, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var existing []runtime.Object
				if tc.existing != nil {
					existing = append(existing, tc.existing)
				}
				b := startNode(t, NodeConfig{ExternalCloudProvider: tc.cloud, NodeIPs: tc.nodeIPs, Taints: []corev1.Taint{{Key: "own", Effect: corev1.TaintEffectNoExecute}}}, existing...)
				assert.Empty(t, b.node.kube.NodeAddresses())
				b.run()
				got := b.get()
				assert.Equal(t, tc.want, got.Status.Addresses)
				assert.Equal(t, tc.want, b.node.kube.NodeAddresses())
				assert.Equal(t, tc.wantHint, got.Annotations[hint])
				var taints []string
				for _, taint := range got.Spec.Taints {
					taints = append(taints, taint.ToString())
				}
				const uninitialized = "node.cloudprovider.kubernetes.io/uninitialized=true:NoSchedule"
				if tc.wantTaint {
					assert.Equal(t, []string{"own:NoExecute", uninitialized}, taints)
				} else {
					assert.NotContains(t, taints, uninitialized)
				}
				if tc.existing != nil {
					assert.Equal(t, "x", got.Annotations["other"])
				}
				assert.NotContains(t, b.log.String(), "uninitialized", "an existing Node needs no taint")
			})
		})
	}
}

// KU-13: what the cloud sets later stays, too.
func TestNode_KeepsAddressesOfTheCloud(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startNode(t, NodeConfig{ExternalCloudProvider: true, NodeIPs: []string{"10.0.0.5"}}).run()
		byCloud := []corev1.NodeAddress{{Type: corev1.NodeExternalIP, Address: "192.0.2.7"}}
		n := b.get().DeepCopy()
		n.Status.Addresses = byCloud
		_, err := b.client.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{})
		require.NoError(t, err)
		b.reporter.change(func(s *corev1.NodeStatus) {
			s.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.6"}}
		})
		b.wait(10 * time.Minute)
		assert.Equal(t, byCloud, b.get().Status.Addresses)
		assert.Equal(t, byCloud, b.node.kube.NodeAddresses())
	})
}
