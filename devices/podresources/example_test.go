package podresources_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/devices"
	"github.com/sublet-dev/agent/devices/podresources"
)

// The Pods of an agent and its devices are all that the Server needs.
func Example() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	m, err := devices.New(devices.Config{StateFile: filepath.Join(dir, "devices.json")})
	if err != nil {
		panic(err)
	}
	s, err := podresources.New(podresources.Config{
		Path:    filepath.Join(dir, "kubelet.sock"),
		Pods:    func() []*corev1.Pod { return nil }, // Agent.Pods
		Devices: m,
	})
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // a daemon runs until it is stopped
	fmt.Println(s.Run(ctx))
	// Output: <nil>
}
