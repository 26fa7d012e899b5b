package lazycri_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/internal/lazycri"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
)

// The configuration is asked for when the client connects, when the owner is known.
func TestConnect_TakesTheConfigurationThen(t *testing.T) {
	owner := ""
	rt := lazycri.NewSimulated(slog.New(slog.DiscardHandler), func() cri.Config { return cri.Config{Owner: owner, HookTimeout: -1} })
	owner = "not valid/"
	disconnect, err := rt.Connect()
	require.Error(t, err)
	require.NoError(t, disconnect())
}

// Capabilities can be looked up before the client connects, because options are checked
// against them when nothing may be touched yet.
func TestRuntime_HasItsCapabilitiesBeforeConnect(t *testing.T) {
	rt := lazycri.New("unix:///nowhere", "", func() cri.Config { panic("not yet") })
	_, ok := runtime.Capability[runtime.ContainerRemover](rt)
	assert.True(t, ok)
	_, ok = runtime.Capability[runtime.OwnerSetter](rt)
	assert.True(t, ok)
}

// Connect does not wait for the runtime: it may start after the agent.
func TestConnect_DoesNotWaitForTheRuntime(t *testing.T) {
	rt := lazycri.New("unix:///nowhere/runtime.sock", "unix:///nowhere/images.sock", func() cri.Config { return cri.Config{} })
	disconnect, err := rt.Connect()
	require.NoError(t, err)
	require.NotNil(t, rt.Client)
	require.NoError(t, disconnect())

	for _, endpoints := range [][2]string{{"tcp://example.com:1", ""}, {"unix:///nowhere", "ftp://x"}} {
		disconnect, err = lazycri.New(endpoints[0], endpoints[1], func() cri.Config { return cri.Config{} }).Connect()
		require.Error(t, err)
		assert.Nil(t, disconnect)
	}
}

func ExampleNewSimulated() {
	rt := lazycri.NewSimulated(slog.New(slog.DiscardHandler), func() cri.Config { return cri.Config{} })
	disconnect, err := rt.Connect()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = disconnect() }()
	pods, err := rt.Pods(context.Background())
	fmt.Println(len(pods), err)
	// Output: 0 <nil>
}
