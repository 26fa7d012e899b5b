package runtime

// FeatureRestartAllContainers is the name under which a node declares that restart rules may
// restart all containers of a pod. A scheduler gives pods with such rules to no other node.
const FeatureRestartAllContainers = "RestartAllContainersOnContainerExits"

// Names under which a node declares that it resizes init containers while they run, and pod-level
// resources. An API server rejects such a resize of a pod on any other node.
const (
	FeatureResizeInitContainers = "InPlacePodVerticalScalingInitContainers"
	FeatureResizePodLevel       = "InPlacePodLevelResourcesVerticalScaling"
)

// DeclaredFeatures returns what a node with the runtime rt declares in its status, sorted: the
// features of pods that schedulers and the API server ask a node for, and that Plan has.
// What a PodSyncer supports is not known.
func DeclaredFeatures(rt any) []string {
	if RunsPods(rt) {
		return nil
	}
	return []string{FeatureResizePodLevel, FeatureResizeInitContainers, FeatureRestartAllContainers}
}
