// Package pluginregistry finds the plugins of a node, such as CSI drivers and DRA drivers:
// each has a socket in a directory, usually plugins_registry in the root directory of a
// kubelet, and serves the plugin registration API of the kubelet there
// (k8s.io/kubelet/pkg/apis/pluginregistration/v1). It corresponds to
// pkg/kubelet/pluginmanager.
//
// A plugin is registered when its socket appears, and deregistered when the socket is
// removed or replaced. One that does not answer is tried again, and delays no other.
package pluginregistry
