package credentialprovider_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtime/cri/credentialprovider"
)

// An agent gets the logins by agent.WithConfig(cri.Config{Credentials: ...}).
func ExampleDockerConfig() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "config.json")
	if err := os.WriteFile(path, []byte(`{"auths": {"registry.example": {"username": "edge", "password": "…"}}}`), 0o600); err != nil {
		panic(err)
	}
	cfg := cri.Config{Credentials: credentialprovider.DockerConfig(path)}
	logins, err := cfg.Credentials.Credentials(context.Background(), "registry.example/app:1")
	fmt.Println(logins["registry.example"].Username, err)
	// Output: edge <nil>
}
