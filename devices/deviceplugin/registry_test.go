package deviceplugin_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/sublet-dev/agent/devices/deviceplugin"
	"github.com/sublet-dev/agent/pluginregistry"
)

// A plugin can register by a directory of the agent instead of its socket; the two are alike.
func TestHandler(t *testing.T) {
	dir, sockets := t.TempDir(), t.TempDir()
	m := newManager(t)
	registered := make(chan corev1.ResourceName, 10)
	s, err := deviceplugin.New(deviceplugin.Config{Dir: dir, Devices: m, Hooks: deviceplugin.Hooks{
		Registered: func(resource corev1.ResourceName) { registered <- resource; panic("defect of the application") },
	}})
	require.NoError(t, err)
	h := s.Handler()
	at := func(socket string) pluginregistry.Plugin {
		return pluginregistry.Plugin{
			Type: deviceplugin.PluginType, Name: string(gpu), Endpoint: filepath.Join(sockets, socket), Versions: []string{"v1alpha1", api.Version},
		}
	}
	serve := func(dir, socket string, ids ...string) {
		p := &fakePlugin{lists: make(chan []*api.Device, 1)}
		p.serve(t, dir, socket)
		var list []*api.Device
		for _, id := range ids {
			list = append(list, &api.Device{ID: id, Health: api.Healthy})
		}
		p.lists <- list
	}
	serve(sockets, "a", "0")
	require.ErrorContains(t, h.Register(t.Context(), at("a")), "starting or stopping")

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	require.Eventually(t, func() bool {
		_, err := os.Stat(filepath.Join(dir, deviceplugin.SocketName))
		return err == nil && h.Register(t.Context(), at("a")) == nil
	}, soon, time.Millisecond)
	becomes(t, m, 1)
	serve(sockets, "b", "0", "1")
	require.NoError(t, h.Register(t.Context(), at("b")))
	becomes(t, m, 2)
	h.Deregister(t.Context(), at("a"))
	serve(dir, "c", "2", "3", "4")
	require.NoError(t, register(t, dir, request("c")))
	becomes(t, m, 3)
	h.Deregister(t.Context(), at("b"))
	serve(sockets, "d", "5")
	require.NoError(t, h.Register(t.Context(), at("d")))
	becomes(t, m, 1)
	h.Deregister(t.Context(), at("d"))
	becomes(t, m, 3) // of the plugin that was there before
	cancel()
	require.NoError(t, <-done)

	for _, p := range []pluginregistry.Plugin{{Name: "cpu", Versions: at("a").Versions}, {Name: string(gpu), Versions: []string{"v2"}}, {Name: string(gpu)}} {
		assert.Error(t, h.Register(t.Context(), p))
	}
	h.Deregister(t.Context(), pluginregistry.Plugin{Name: "vendor.example/none"})
	require.Len(t, registered, 4, "both ways, and none that was rejected")
	require.Equal(t, gpu, <-registered)
}
