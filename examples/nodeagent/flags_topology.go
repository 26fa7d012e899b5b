package main

import (
	"flag"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/cpumanager"
	"github.com/sublet-dev/agent/devices/podresources"
	"github.com/sublet-dev/agent/topology"
)

// The policies of the managers, by the kubelet's names.
const (
	cpuNone, cpuStatic       = "none", "static"
	memoryNone, memoryStatic = "None", "Static"
)

// topologyFlags are about which CPUs, memory and devices containers get, with the kubelet's
// names and defaults.
type topologyFlags struct{ cpuPolicy, reservedCPUs, memoryPolicy, topologyPolicy, topologyScope string }

func (f *topologyFlags) define(fs *flag.FlagSet) {
	fs.StringVar(&f.cpuPolicy, "cpu-manager-policy", cpuNone, "none, or static: containers of Guaranteed pods that request whole CPUs have these for themselves")
	fs.StringVar(&f.reservedCPUs, "reserved-cpus", "", "CPUs for the system and containers that share, such as 0-1; they replace the cpu of -kube-reserved and -system-reserved. Default with -cpu-manager-policy static: as many CPUs as these have")
	fs.StringVar(&f.memoryPolicy, "memory-manager-policy", memoryNone, "None, or Static: containers with CPUs for themselves have memory and huge pages of the same NUMA nodes, as far as these suffice")
	fs.StringVar(&f.topologyPolicy, "topology-manager-policy", string(topology.None), "where CPUs, memory and devices of a container come from: none, best-effort, restricted or single-numa-node")
	fs.StringVar(&f.topologyScope, "topology-manager-scope", string(topology.ContainerScope), "what -topology-manager-policy is about: container, or pod for all containers of a pod together")
}

func (f *topologyFlags) check(hasDevices bool, fail func(bad bool, format string, args ...any)) {
	fail(f.cpuPolicy != cpuNone && f.cpuPolicy != cpuStatic, "-cpu-manager-policy %q: must be none or static", f.cpuPolicy)
	fail(f.memoryPolicy != memoryNone && f.memoryPolicy != memoryStatic, "-memory-manager-policy %q: must be None or Static", f.memoryPolicy)
	_, err := topology.ParsePolicy(f.topologyPolicy)
	fail(err != nil, "-topology-manager-policy: %w", err)
	_, err = topology.ParseScope(f.topologyScope)
	fail(err != nil, "-topology-manager-scope: %w", err)
	_, err = topology.ParseSet(f.reservedCPUs)
	fail(err != nil, "-reserved-cpus: %w", err)
	fail(f.memoryPolicy == memoryStatic && f.cpuPolicy != cpuStatic, "-memory-manager-policy Static needs -cpu-manager-policy static")
	fail(f.topologyPolicy != string(topology.None) && f.cpuPolicy != cpuStatic && !hasDevices,
		"-topology-manager-policy %s needs -cpu-manager-policy static or -device-plugin-dir", f.topologyPolicy)
}

// cpus returns what gives containers CPUs for themselves, nil if nothing does.
func (f *flags) cpus(machine topology.Topology, log *slog.Logger) (*cpumanager.Manager, error) {
	if f.topology.cpuPolicy != cpuStatic {
		return nil, nil
	}
	reserved, err := f.config.effective.ReservedCPUs(machine)
	if err != nil {
		return nil, err
	}
	options, err := f.config.effective.CPUManagerOptions()
	if err != nil {
		return nil, err
	}
	cpus, err := cpumanager.New(cpumanager.Config{
		Topology: detectTopology, Reserved: reserved, Options: options,
		MemoryAffinity: f.topology.memoryPolicy == memoryStatic, ReservedMemory: f.config.effective.ReservedMemory(),
		StateFile: filepath.Join(f.rootDir, "cpus.json"), Period: f.config.effective.Kubelet().CPUManagerReconcilePeriod.Duration,
		Hooks: f.metrics.all.CPUManager(), Logger: log,
	})
	if err == nil {
		f.metrics.node.CPUs = cpus.Usage
	}
	return cpus, err
}

func detectTopology() (topology.Topology, error) { return topology.Detect(os.DirFS("/")) }

// resourceOptions returns what gives pods devices, and CPUs for themselves, and what serves which they have.
func (f *flags) resourceOptions(plugins pluginDirs, log *slog.Logger) ([]agent.Option, error) {
	claims, m := func() podresources.Claims { return f.dra.claims(plugins) }, f.metrics.all
	if f.topology.cpuPolicy != cpuStatic && f.devices.pluginDir == "" {
		return f.devices.podResources(nil, nil, claims, m, log), nil
	}
	machine, err := detectTopology()
	if err != nil && (f.topology.cpuPolicy == cpuStatic || f.topology.topologyPolicy != string(topology.None)) {
		return nil, err
	}
	devices, err := f.devices.manager(f.rootDir, machine.Nodes(), m, log)
	if err != nil {
		return nil, err
	}
	cpus, err := f.cpus(machine, log)
	if err != nil {
		return nil, err
	}
	opts := f.devices.podResources(devices, cpus, claims, m, log)
	var providers []topology.Provider
	if devices != nil {
		plugged, err := f.devices.options(f, devices, plugins, log)
		if err != nil {
			return nil, err
		}
		opts, providers = append(opts, plugged...), append(providers, devices)
	}
	if cpus != nil {
		providers = append(providers, cpus)
		opts = append(opts, agent.WithInjector(cpus), agent.WithRunner("cpu manager", func(c *agent.Components) (agent.Runner, error) {
			return cpus.Runner(c.Runtime, c.PodCache.Pods)
		}))
	}
	if machine.Nodes().Len() == 0 {
		return opts, nil // this machine does not tell
	}
	options, err := f.config.effective.TopologyManagerOptions()
	if err != nil {
		return nil, err
	}
	admitter, err := topology.New(topology.Config{
		Policy: topology.Policy(f.topology.topologyPolicy), Scope: topology.Scope(f.topology.topologyScope), Options: options,
		Nodes: machine.Nodes(), Distances: machine.Distances, Providers: providers, Hooks: m.Topology(), Logger: log,
	})
	if err != nil {
		return nil, err
	}
	return append(opts, agent.WithAdmitter(admitter)), nil
}
