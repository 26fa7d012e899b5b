// Package runtime is the model of pods in a container runtime: the observed state ([Pod],
// [Sandbox], [Container], [Image]), the actions that change it ([Action]), and [Plan], the
// pure function from the spec of a pod and its observed state to the actions that are
// needed. It corresponds to pkg/kubelet/container and to computePodActions in
// pkg/kubelet/kuberuntime of the kubelet.
//
// Nothing in this package does I/O, reads a clock or starts goroutines, and no type of a
// wire protocol appears in it. Values are read-only once they have been passed on.
//
// Package cri executes plans over the Container Runtime Interface. Another runtime takes
// its place by implementing the small interfaces of the components that use it, and the
// optional ones in this package: see [Capability] and examples/ownruntime. Programs that
// only decide call Plan, and PlanTermination for a pod that ends:
//
//	for _, action := range runtime.Plan(pod, runtime.PlanInput{Pod: observed}, time.Now()) {
//		fmt.Println(action.Type, action.Container, action.Reason)
//	}
package runtime
