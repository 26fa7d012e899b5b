package main

import (
	"flag"
	"log/slog"
	"path/filepath"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/cpumanager"
	"github.com/sublet-dev/agent/devices"
	"github.com/sublet-dev/agent/devices/deviceplugin"
	"github.com/sublet-dev/agent/devices/podresources"
	"github.com/sublet-dev/agent/prom"
	"github.com/sublet-dev/agent/topology"
)

// deviceFlags are about device plugins. A kubelet has fixed paths for both.
type deviceFlags struct {
	pluginDir, resourcesSocket string

	allocator *devices.Manager // nil without plugins, and until it is made
}

func (f *deviceFlags) define(fs *flag.FlagSet) {
	fs.StringVar(&f.pluginDir, "device-plugin-dir", "", "directory in which device plugins register, usually /var/lib/kubelet/device-plugins; without it there are none")
	fs.StringVar(&f.resourcesSocket, "pod-resources-socket", "", "socket of the pod resources API, usually /var/lib/kubelet/pod-resources/kubelet.sock; without it the API is not served")
}

func (f *deviceFlags) check(fail func(bad bool, format string, args ...any)) {
	for name, path := range map[string]string{"device-plugin-dir": f.pluginDir, "pod-resources-socket": f.resourcesSocket} {
		fail(path != "" && !filepath.IsAbs(path), "-%s %q: must be an absolute path", name, path)
	}
}

// manager returns what allocates devices, nil without plugins.
func (f *deviceFlags) manager(rootDir string, nodes topology.Set, metrics *prom.Metrics, log *slog.Logger) (m *devices.Manager, err error) {
	if f.pluginDir == "" {
		return nil, nil
	}
	f.allocator, err = devices.New(devices.Config{StateFile: filepath.Join(rootDir, "devices.json"), NUMANodes: nodes, Hooks: metrics.Devices(), Logger: log})
	return f.allocator, err
}

// isNew reports whether no agent has allocated devices of this machine before.
func (f *deviceFlags) isNew() bool { return f.allocator != nil && f.allocator.IsNew() }

// options returns what gives pods the devices of plugins.
func (f *deviceFlags) options(all *flags, m *devices.Manager, plugins pluginDirs, log *slog.Logger) ([]agent.Option, error) {
	server, err := deviceplugin.New(deviceplugin.Config{
		Dir: f.pluginDir, Devices: m, Hooks: deviceplugin.Hooks{Registered: all.metrics.all.DevicePluginRegistered}, Logger: log,
	})
	if err != nil {
		return nil, err
	}
	plugins.add(all.registryDir(), deviceplugin.PluginType, server.Handler())
	return []agent.Option{
		agent.WithInjector(m),
		agent.WithRunner("device plugins", func(*agent.Components) (agent.Runner, error) { return server, nil }),
	}, nil
}

// podResources returns what serves the pod resources API, also on a node without devices, as a
// kubelet does. m and cpus are nil without device plugins, and without CPUs for containers.
// claims, which is called when the agent is made, returns what has the devices of
// ResourceClaims, nil without.
func (f *deviceFlags) podResources(m *devices.Manager, cpus *cpumanager.Manager, claims func() podresources.Claims, metrics *prom.Metrics, log *slog.Logger) []agent.Option {
	if f.resourcesSocket == "" {
		return nil
	}
	return []agent.Option{agent.WithRunner("pod resources", func(c *agent.Components) (agent.Runner, error) {
		cfg := podresources.Config{
			Path: f.resourcesSocket, Pods: c.StatusManager.Pods, Claims: claims(), Hooks: podresources.Hooks{Requested: metrics.PodResourcesRequested}, Logger: log,
		}
		if m != nil {
			cfg.Devices = m
		}
		if cpus != nil {
			cfg.CPUs, cfg.Memory, cfg.HugePages = cpus, cpus, cpus
		}
		return podresources.New(cfg)
	})}
}
