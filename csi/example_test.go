package csi_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sublet-dev/agent/csi"
	"github.com/sublet-dev/agent/pluginregistry"
	"github.com/sublet-dev/agent/volume"
)

// An agent gets the three by agent.WithConfig(volume.Config{Claims: files, Drivers: …}) and
// by agent.WithRunner for the manager and the registry.
func Example() {
	root, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(root)
	files := volume.NewFiles(filepath.Join(root, "manifests"))
	manager, err := csi.New(csi.Config{Root: root, NodeName: "edge-1", Drivers: files})
	if err != nil {
		panic(err)
	}
	registry, err := pluginregistry.New(pluginregistry.Config{
		Dir:      filepath.Join(root, "plugins_registry"),
		Handlers: map[string]pluginregistry.Handler{csi.PluginType: manager},
	})
	if err != nil {
		panic(err)
	}
	volumes, err := volume.New(volume.Config{Root: root, Claims: files, Drivers: []volume.Driver{manager}})
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // a daemon runs until it is stopped
	fmt.Println(registry.Run(ctx), manager.Run(ctx), volumes.Unmount(context.Background(), "no-such-pod"))
	// Output: <nil> <nil> <nil>
}
