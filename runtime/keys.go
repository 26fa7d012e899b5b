package runtime

// Labels of sandboxes and containers that identify their pod and container. The names are
// the kubelet's, so that crictl shows them, and a pod of a kubelet can be adopted.
const (
	LabelPodName       = "io.kubernetes.pod.name"
	LabelPodNamespace  = "io.kubernetes.pod.namespace"
	LabelPodUID        = "io.kubernetes.pod.uid"
	LabelContainerName = "io.kubernetes.container.name"
)

// LabelOwner is the label of sandboxes and containers with the id of the agent that has
// created them. Those without it were created by another program, for example a kubelet.
const LabelOwner = "sublet.dev/owner"

// Annotations with the parts of a spec that an agent needs for a container that a previous
// process has created. The names are the kubelet's.
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
	AnnotationContainerType     = "sublet.dev/container.type"               // Container.Type.String()
	AnnotationImage             = "sublet.dev/container.image"              // image in the spec; unknown if missing
	AnnotationBackOffStep       = "sublet.dev/container.backoff-step"       // Action.BackOffStep; 0 if missing
	AnnotationBackOffBoot       = "sublet.dev/container.backoff-boot"       // id of the boot in which the step counts; any if missing
	AnnotationBackOffResources  = "sublet.dev/container.backoff-resources"  // HashResources of the spec for which the step counts; any if missing
	AnnotationRestartGeneration = "sublet.dev/container.restart-generation" // Action.RestartGeneration; 0 if missing
	AnnotationMemoryRequest     = "sublet.dev/container.memory-request"     // bytes, of a container that is restarted for another one; unknown if missing
)
