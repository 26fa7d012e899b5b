package runtime

// FeatureRestartAllContainers is the name under which a node declares that restart rules may
// restart all containers of a pod. A scheduler gives pods with such rules to no other node.
const FeatureRestartAllContainers = "RestartAllContainersOnContainerExits"

// DeclaredFeatures returns what a node with the runtime rt declares in its status, sorted: the
// features of pods that schedulers and the API server ask a node for, and that Plan has.
// What a PodSyncer supports is not known.
func DeclaredFeatures(rt any) []string {
	if RunsPods(rt) {
		return nil
	}
	return []string{FeatureRestartAllContainers}
}
