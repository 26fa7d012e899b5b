package cri

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/sublet-dev/agent/runtime"
)

// RT-11: on a node with SELinux a container can use its hosts file and its termination message.
func TestNode_SELinuxLabelsFilesOfContainers(t *testing.T) {
	for _, enabled := range []bool{false, true} {
		pod := onePod("main")
		pod.Spec.Containers[0].TerminationMessagePath = "/dev/termination-log"
		cfg := started(t, Config{Node: Node{SELinux: enabled}}, pod, runtime.RunOptions{Dir: t.TempDir()})
		assert.Len(t, cfg.GetMounts(), 2)
		for _, m := range cfg.GetMounts() {
			assert.Equal(t, enabled, m.GetSelinuxRelabel(), m.GetContainerPath())
		}
	}
}
