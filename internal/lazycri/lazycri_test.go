package lazycri_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/internal/lazycri"
	"github.com/sublet-dev/agent/internal/needtest"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
)

func noOwner() string { return "" }

// The owner is asked for when the client connects, when the owner is known.
func TestConnect_TakesTheConfigurationThen(t *testing.T) {
	owner := ""
	rt := lazycri.New(lazycri.Choice{Simulated: true}, cri.Config{HookTimeout: -1}, func() string { return owner })
	owner = "not valid/"
	disconnect, err := rt.Connect()
	require.Error(t, err)
	require.NoError(t, disconnect())
}

// Capabilities can be looked up before the client connects, because options are checked
// against them when nothing may be touched yet.
func TestRuntime_HasItsCapabilitiesBeforeConnect(t *testing.T) {
	rt := lazycri.New(lazycri.Choice{Endpoint: "unix:///nowhere"}, cri.Config{}, func() string { panic("not yet") })
	_, ok := runtime.Capability[runtime.ContainerRemover](rt)
	assert.True(t, ok)
	_, ok = runtime.Capability[runtime.OwnerSetter](rt)
	assert.True(t, ok)
}

// Connect does not wait for the runtime: it may start after the agent.
func TestConnect_DoesNotWaitForTheRuntime(t *testing.T) {
	rt := lazycri.New(lazycri.Choice{Endpoint: "unix:///nowhere/runtime.sock", Image: "unix:///nowhere/images.sock"}, cri.Config{}, noOwner)
	disconnect, err := rt.Connect()
	require.NoError(t, err)
	require.NotNil(t, rt.Client)
	require.NoError(t, disconnect())

	for _, endpoints := range [][2]string{{"tcp://example.com:1", ""}, {"unix:///nowhere", "ftp://x"}} {
		disconnect, err = lazycri.New(lazycri.Choice{Endpoint: endpoints[0], Image: endpoints[1]}, cri.Config{}, noOwner).Connect()
		require.Error(t, err)
		assert.Nil(t, disconnect)
	}
}

func ExampleNew() {
	rt := lazycri.New(lazycri.Choice{Simulated: true}, cri.Config{}, noOwner)
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

func TestChoice(t *testing.T) {
	for name, tc := range map[string]struct {
		choice    lazycri.Choice
		ambiguous bool
	}{
		"none":                   {lazycri.Choice{}, false},
		"given":                  {lazycri.Choice{Given: 1}, false},
		"endpoint":               {lazycri.Choice{Endpoint: "unix:///x"}, false},
		"simulated":              {lazycri.Choice{Simulated: true}, false},
		"given and endpoint":     {lazycri.Choice{Given: 1, Endpoint: "unix:///x"}, true},
		"given and simulated":    {lazycri.Choice{Given: 1, Simulated: true}, true},
		"endpoint and simulated": {lazycri.Choice{Endpoint: "unix:///x", Simulated: true}, true},
	} {
		assert.Equal(t, tc.ambiguous, tc.choice.IsAmbiguous(), name)
		assert.NoError(t, tc.choice.Check(), name)
	}
	require.Error(t, lazycri.Choice{Endpoint: "ftp://x"}.Check())
	require.Error(t, lazycri.Choice{Endpoint: "unix:///x", Image: "ftp://x"}.Check())
}

func TestAdoption(t *testing.T) {
	require.NoError(t, lazycri.Adoption{Sources: []string{"file"}}.Check())
	require.EqualError(t, lazycri.Adoption{Sources: []string{"file", ""}}.Check(), `adoption: sources ["file" ""] must be named`)
	assert.Equal(t, []string{"sharing the runtime with others (runtime.OwnerSetter)"}, needtest.Names(lazycri.Adoption{}.Needs()))
}
