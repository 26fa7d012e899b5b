// Package podspec decodes, defaults and validates pods, and computes facts about a v1.Pod:
// QoS class, effective requests and limits, identity, priority, a summary in a line, and the values of the
// downward API. The kubelet has these in pkg/kubelet/config, pkg/kubelet/types and
// pkg/kubelet/qos, and takes the rest from pkg/apis/core, as an API server does.
//
// All functions are pure and may be called from any goroutine. They do not change their
// arguments, except those that say so. The way of a manifest to a pod:
//
//	pods, objects, err := podspec.Decode(data, podspec.DecodeOptions{})
//	if err != nil {
//		return err
//	}
//	for _, pod := range pods {
//		podspec.AssignStaticIdentity(pod, "edge-1", "file", path)
//		podspec.Default(pod)
//		if err := podspec.Validate(pod); err != nil {
//			return err
//		}
//	}
package podspec
