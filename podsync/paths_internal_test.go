package podsync

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
)

// EV-7: files of the node that containers of the pod can write to.
func TestWrittenFiles(t *testing.T) {
	s := &Syncer{cfg: Config{PodsDir: "/pods"}}
	pod := &corev1.Pod{}
	pod.UID = "uid-1"
	assert.Equal(t, []string{"/pods/uid-1/etc-hosts", "/pods/uid-1/containers"}, s.WrittenFiles(pod))
	pod.UID = "../uid"
	assert.Empty(t, s.WrittenFiles(pod), "it has no directory")
}
