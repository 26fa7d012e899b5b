// Package admission decides whether a pod may run on this node: whether there
// is room for it, whether its host ports are free, whether node selector,
// affinity, operating system and taints let it, whether the kernel parameters that
// it sets are safe or allowed, and whether it asks for what this kind of node
// cannot do.
//
// The checks are pure: they look at the pod, at the other pods and at the
// configuration, and at nothing else. Reasons and messages are the kubelet's,
// so that what watches for OutOfcpu or NodeAffinity finds them here too.
package admission
