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
// made them. Those without it were created by another program, for instance a
// kubelet.
const LabelOwner = "sublet.dev/owner"

// Annotations with what a restarted agent must know of a container that a previous
// process created.
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

// Annotations of sublet, with state that the kubelet keeps only in memory.
const (
	AnnotationContainerType     = "sublet.dev/container.kind"         // Container.Type, as its String
	AnnotationBackOffStep       = "sublet.dev/container.backoff-step" // Action.BackOffStep; 0 if missing
	AnnotationRestartGeneration = "sublet.dev/container.round"        // Action.RestartGeneration; 0 if missing
)
