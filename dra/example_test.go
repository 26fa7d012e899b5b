package dra_test

import (
	"fmt"

	"github.com/sublet-dev/agent/dra"
	"github.com/sublet-dev/agent/pluginregistry"
	"github.com/sublet-dev/agent/volume"
)

// The claims of a node without an API server are in its manifests, and its drivers register
// in a directory. The agent gets the Manager by agent.WithInjector, and the Registry by
// agent.WithRunner.
func Example() {
	m, err := dra.New(dra.Config{Claims: volume.NewFiles("/etc/manifests"), StateFile: "/var/lib/sublet/claims.json"})
	if err != nil {
		panic(err)
	}
	_, err = pluginregistry.New(pluginregistry.Config{
		Dir: "/var/lib/kubelet/plugins_registry", Handlers: map[string]pluginregistry.Handler{"DRAPlugin": m},
	})
	fmt.Println(err)
	// Output: <nil>
}
