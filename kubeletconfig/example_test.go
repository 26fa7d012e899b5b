package kubeletconfig_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/kubeletconfig"
	"github.com/sublet-dev/agent/node"
)

// The configuration of a kubelet becomes that of an agent.
func Example() {
	cfg, err := kubeletconfig.Load(filepath.Join("testdata", "cloud.json"), "")
	if err != nil {
		log.Fatal(err)
	}
	if err := cfg.Set("max-pods", "250"); err != nil { // as a flag, over the file
		log.Fatal(err)
	}
	s, err := cfg.Settings(node.DetectCapacity(os.DirFS("/")))
	if err != nil {
		log.Print(err) // the machine may be smaller than what is reserved of it
		return
	}
	_, err = agent.New(agent.WithRuntimeEndpoint(cfg.Kubelet().ContainerRuntimeEndpoint), agent.WithRootDir("/var/lib/sublet"),
		agent.WithNode(s.Node), agent.WithConfig(s.PodWorkers), agent.WithConfig(s.PodSync), agent.WithConfig(s.CRI),
		agent.WithConfig(s.Eviction), agent.WithConfig(s.ImageGC), agent.WithConfig(s.LogRotation))
	fmt.Println(s.Node.MaxPods, len(s.Eviction.Thresholds), err)
}

func ExampleConfig_Validate() {
	cfg := kubeletconfig.Default()
	for flag, value := range map[string]string{"max-pods": "0", "read-only-port": "10255"} {
		if err := cfg.Set(flag, value); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(cfg.Validate())
	// Output:
	// maxPods: 0 must be from 1 to 2147483647
	// readOnlyPort: "10255" is not supported: what other machines can reach is served to authenticated clients alone; remove it
}
