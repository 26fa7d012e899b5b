package translate

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// A host port leads to one port of the pod: that of a regular container rather than that of a sidecar.
func TestTranslator_PortMappingsOfOneHostPort(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	tr := bare(func(p *corev1.Pod, ct *corev1.Container) {
		p.Spec.InitContainers = []corev1.Container{
			{Name: "first", RestartPolicy: &always, Ports: []corev1.ContainerPort{{ContainerPort: 1, HostPort: 80}, {ContainerPort: 2, HostPort: 81}}},
			{Name: "second", RestartPolicy: &always, Ports: []corev1.ContainerPort{{ContainerPort: 3, HostPort: 81}, {ContainerPort: 4}, {ContainerPort: 5, HostPort: 80, Protocol: corev1.ProtocolUDP}}},
		}
		ct.Ports = []corev1.ContainerPort{{ContainerPort: 6, HostPort: 80, Protocol: corev1.ProtocolTCP}, {ContainerPort: 7}, {ContainerPort: 8, HostPort: 80, HostIP: "127.0.0.1"}}
	})
	cfg, err := tr.Sandbox(0)
	require.NoError(t, err)
	var got []string
	for _, m := range cfg.GetPortMappings() {
		got = append(got, fmt.Sprint(m.GetHostIp(), ":", m.GetHostPort(), " ", m.GetContainerPort(), " ", m.GetProtocol()))
	}
	assert.Equal(t, []string{":81 3 TCP", ":0 4 TCP", ":80 5 UDP", ":80 6 TCP", ":0 7 TCP", "127.0.0.1:80 8 TCP"}, got)
}
