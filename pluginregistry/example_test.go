package pluginregistry_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sublet-dev/agent/pluginregistry"
)

// drivers is a handler.
type drivers struct{}

func (drivers) Register(_ context.Context, p pluginregistry.Plugin) error {
	fmt.Println("registered", p.Name, "at", p.Endpoint)
	return nil
}

func (drivers) Deregister(_ context.Context, p pluginregistry.Plugin) { fmt.Println("gone:", p.Name) }

func Example() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	r, err := pluginregistry.New(pluginregistry.Config{
		Dir:      filepath.Join(dir, "plugins_registry"),
		Handlers: map[string]pluginregistry.Handler{"CSIPlugin": drivers{}},
	})
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // a daemon runs until it is stopped
	fmt.Println(r.Run(ctx))
	// Output: <nil>
}
