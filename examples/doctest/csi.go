package doctest

import (
	"path/filepath"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/csi"
	"github.com/sublet-dev/agent/pluginregistry"
	"github.com/sublet-dev/agent/volume"
)

// csiOptions are the options of an agent that mounts volumes of CSI drivers.
func csiOptions(root, node string) (opts []agent.Option, err error) {
	files := volume.NewFiles("/etc/edge/manifests")
	drivers, err := csi.New(csi.Config{Root: root, NodeName: node, Drivers: files})
	if err != nil {
		return nil, err
	}
	registry, err := pluginregistry.New(pluginregistry.Config{
		Dir: filepath.Join(root, "plugins_registry"), Handlers: map[string]pluginregistry.Handler{csi.PluginType: drivers},
	})
	if err != nil {
		return nil, err
	}
	opts = append(opts, agent.WithConfig(volume.Config{Claims: files, Drivers: []volume.Driver{drivers}}),
		agent.WithRunner("csi", func(*agent.Components) (agent.Runner, error) { return drivers, nil }),
		agent.WithRunner("plugins", func(*agent.Components) (agent.Runner, error) { return registry, nil }))
	return opts, nil
}
