package runtime

// Labels by which pods and containers are known in a runtime. The names are the
// kubelet's, so that crictl reads them and either agent can take up the other's
// pods.
const (
	LabelPodName       = "io.kubernetes.pod.name"
	LabelPodNamespace  = "io.kubernetes.pod.namespace"
	LabelPodUID        = "io.kubernetes.pod.uid"
	LabelContainerName = "io.kubernetes.container.name"
)

// LabelOwner is the label of sandboxes and containers that names the agent that
// made them. What bears no such label was made by something else, a kubelet for
// instance.
const LabelOwner = "sublet.dev/owner"

// Annotations that carry what an agent that starts again has to know of a
// container that another process made.
const (
	AnnotationHash                     = "io.kubernetes.container.hash"
	AnnotationRestartCount             = "io.kubernetes.container.restartCount"
	AnnotationTerminationMessagePath   = "io.kubernetes.container.terminationMessagePath"
	AnnotationTerminationMessagePolicy = "io.kubernetes.container.terminationMessagePolicy"
	AnnotationPreStop                  = "io.kubernetes.container.preStopHandler"
	AnnotationPorts                    = "io.kubernetes.container.ports"
	AnnotationGracePeriod              = "io.kubernetes.pod.terminationGracePeriod"
	AnnotationDeletionGracePeriod      = "io.kubernetes.pod.deletionGracePeriod"
)

// Annotations of our own: what the kubelet keeps in memory and loses with it.
const (
	AnnotationContainerType     = "sublet.dev/container.kind"         // Kind, as its String
	AnnotationBackOffStep       = "sublet.dev/container.backoff-step" // Action.Step; none is 0
	AnnotationRestartGeneration = "sublet.dev/container.round"        // Action.Round; none is 0
)
