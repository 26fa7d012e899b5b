package deviceplugin_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sublet-dev/agent/devices"
	"github.com/sublet-dev/agent/devices/deviceplugin"
)

// The registration socket is there while Run runs.
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
	s, err := deviceplugin.New(deviceplugin.Config{Dir: filepath.Join(dir, "device-plugins"), Devices: m})
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // a daemon runs until it is stopped
	fmt.Println(s.Run(ctx))
	// Output: <nil>
}
