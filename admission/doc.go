// Package admission decides whether a pod may run on this node. It corresponds to the
// admission handlers in pkg/kubelet/lifecycle and pkg/kubelet/sysctl of the kubelet.
//
// It checks resources and the number of pods, host ports, node selector and affinity, node
// name, operating system, taints, sysctls, and fields that this kind of node does not
// support. The checks are pure functions of the pod, the other pods and the configuration.
// Reasons and messages are the kubelet's, so that tools that search for OutOfcpu or
// NodeAffinity work unchanged.
//
//	admitter, err := admission.New(admission.Config{
//		NodeName:    "edge-1",
//		Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")},
//		MaxPods:     110,
//	})
//	if err != nil {
//		return err
//	}
//	if result := admitter.Admit(pod, others); !result.Admitted {
//		fmt.Println(result.Reason, result.Message)
//	}
package admission
