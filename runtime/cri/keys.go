package cri

import (
	"encoding/json"
	"hash/fnv"
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

// Labels and annotations by which a pod is known from the runtime alone. The
// names are the kubelet's, so that crictl and a kubelet read them too.
const (
	labelPodName      = "io.kubernetes.pod.name"
	labelPodNamespace = "io.kubernetes.pod.namespace"
	labelPodUID       = "io.kubernetes.pod.uid"
	labelContainer    = "io.kubernetes.container.name"

	annHash          = "io.kubernetes.container.hash"
	annRestartCount  = "io.kubernetes.container.restartCount"
	annMessagePath   = "io.kubernetes.container.terminationMessagePath"
	annMessagePolicy = "io.kubernetes.container.terminationMessagePolicy"
	annPreStop       = "io.kubernetes.container.preStopHandler"
	annPorts         = "io.kubernetes.container.ports"
	annGrace         = "io.kubernetes.pod.terminationGracePeriod"
	annDeletionGrace = "io.kubernetes.pod.deletionGracePeriod"

	annKind = "sublet.dev/container.kind"
	annStep = "sublet.dev/container.backoff-step"
)

// hashOf tells container specs apart. It is stored with the container.
func hashOf(ct *corev1.Container) string {
	text, _ := json.Marshal(ct)
	h := fnv.New64a()
	_, _ = h.Write(text)
	return strconv.FormatUint(h.Sum64(), 16)
}
