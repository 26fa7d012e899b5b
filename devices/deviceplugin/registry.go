package deviceplugin

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/pluginregistry"
)

// PluginType is the type of device plugins in a pluginregistry.Registry.
const PluginType = "DevicePlugin"

// Handler returns what gets the plugins that register by a socket in a directory of the agent, as
// with the kubelet's plugins_registry, instead of with the socket of the Server. The name of such a
// plugin is that of its resource. Before Run, and after it, plugins are rejected.
func (s *Server) Handler() pluginregistry.Handler { return handler{s} }

type handler struct{ s *Server }

// Register implements pluginregistry.Handler.
func (h handler) Register(ctx context.Context, p pluginregistry.Plugin) error {
	name := corev1.ResourceName(p.Name)
	if err := check(name, p.Versions...); err != nil {
		return err
	}
	return h.s.follow(ctx, name, p.Endpoint)
}

// Deregister implements pluginregistry.Handler.
func (h handler) Deregister(_ context.Context, p pluginregistry.Plugin) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	of := h.s.watched[corev1.ResourceName(p.Name)]
	if of == nil {
		return
	}
	for _, w := range append(slices.Clone(of.listed), of.next) {
		if w != nil && w.path == p.Endpoint {
			w.stop()
		}
	}
}
