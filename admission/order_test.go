package admission

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/podspec"
)

// SL-3: of several reasons the one that a kubelet reports first is reported: for a critical pod not
// the resources, because others can be preempted for them.
func TestAdmitter_FirstReason(t *testing.T) {
	node := Config{NodeName: "edge", Allocatable: list("1", "1Gi"), Taints: []corev1.Taint{{Key: "down", Effect: corev1.TaintEffectNoExecute}}}
	const tolerant = "tolerations: [{operator: Exists}]"
	const cpu, selector, name, port = "requests: {cpu: 2}", "nodeSelector: {zone: b}", "nodeName: other", "ports: [{containerPort: 1, hostPort: 80}]"
	other := pod(t, "other", "{containers: [{name: a, image: i, "+port+"}]}")
	for _, tc := range []struct {
		container, spec  string
		reason, critical string
	}{
		{"resources: {" + cpu + "}", selector + ", " + tolerant, "OutOfcpu", ReasonNodeAffinity},
		{"resources: {" + cpu + "}", name + ", " + tolerant, "OutOfcpu", ReasonNodeName},
		{"resources: {" + cpu + "}", "restartPolicy: Always", "OutOfcpu", ReasonTaint},
		{"resources: {" + cpu + "}, " + port, tolerant, "OutOfcpu", ReasonNodePorts}, // no pod is preempted for a port
		{port, selector + ", " + name, ReasonNodeAffinity, ReasonNodeAffinity},
		{port, name, ReasonNodeName, ReasonNodeName},
		{port, "restartPolicy: Always", ReasonNodePorts, ReasonNodePorts},
		{port, tolerant, ReasonNodePorts, ReasonNodePorts},
		{"resources: {requests: {cpu: 2, memory: 2Gi}}, " + port, "os: {name: windows}", ReasonOS, ReasonOS},
	} {
		p := pod(t, "a", "{containers: [{name: a, image: i, "+tc.container+"}], "+tc.spec+"}")
		assert.Equal(t, tc.reason, admit(t, node, p, other).Reason, "%s %s", tc.container, tc.spec)
		withPriority(p, podspec.SystemCriticalPriority)
		assert.Equal(t, tc.critical, admit(t, node, p, other).Reason, "critical: %s %s", tc.container, tc.spec)
	}
}

// SL-3: cpu, memory and ephemeral storage are reported before others.
func TestAdmitter_FirstResource(t *testing.T) {
	node := Config{MaxPods: 1, Allocatable: list("0", "0")}
	node.Allocatable[corev1.ResourceEphemeralStorage], node.Allocatable["a.io/gpu"] = resource.Quantity{}, resource.Quantity{}
	p := pod(t, "a", "{containers: [{name: a, image: i, resources: {limits: "+
		"{a.io/gpu: 1, cpu: 1, ephemeral-storage: 1, hugepages-2Mi: 2Mi, memory: 1}}}]}")
	var names []corev1.ResourceName
	result := admit(t, node, p, pod(t, "b", "{containers: [{name: a, image: i}]}"))
	for _, r := range result.Insufficient {
		names = append(names, r.Name)
	}
	assert.Equal(t, []corev1.ResourceName{"pods", "cpu", "memory", "ephemeral-storage", "a.io/gpu", "hugepages-2Mi"}, names)
	require.Equal(t, "OutOfpods", result.Reason)
}
