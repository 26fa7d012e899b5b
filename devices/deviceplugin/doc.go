// Package deviceplugin connects device plugins to a device manager: the registration
// socket of the kubelet's device plugin API v1beta1
// (k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1), and a client of each plugin.
//
// A plugin registers on the socket kubelet.sock of a directory, usually
// /var/lib/kubelet/device-plugins, and listens on a socket beside it, or it registers by a socket
// in the directory of a pluginregistry.Registry. A plugin that
// registers again replaces itself. When its connection ends, its devices become unhealthy
// until it is back; containers that run keep theirs.
package deviceplugin
