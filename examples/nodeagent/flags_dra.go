package main

import (
	"flag"
	"log/slog"
	"path/filepath"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/devices/podresources"
	"github.com/sublet-dev/agent/dra"
	"github.com/sublet-dev/agent/volume"
)

// draPluginType is the type of plugins that are DRA drivers.
const draPluginType = "DRAPlugin"

// draFlags are about drivers of ResourceClaims.
type draFlags struct{ pluginDir string }

func (f *draFlags) define(fs *flag.FlagSet) {
	fs.StringVar(&f.pluginDir, "dra-plugin-dir", "", "directory in which DRA drivers register; without it pods cannot use ResourceClaims. Without -kubeconfig these are read from -manifests, with their allocation")
}

func (f *draFlags) check(all *flags, fail func(bad bool, format string, args ...any)) {
	fail(f.pluginDir != "" && !filepath.IsAbs(f.pluginDir), "-dra-plugin-dir %q: must be an absolute path", f.pluginDir)
	fail(f.pluginDir != "" && all.manifests == "" && all.kube.kubeconfig == "", "-dra-plugin-dir needs -manifests, where ResourceClaims are, or -kubeconfig")
}

// options returns what gives pods the devices of ResourceClaims. c is nil without a cluster.
func (f *draFlags) options(all *flags, c *cluster, plugins pluginDirs, log *slog.Logger) ([]agent.Option, error) {
	if f.pluginDir == "" {
		return nil, nil
	}
	counts := all.metrics.all
	cfg := dra.Config{
		Claims: volume.NewFiles(all.manifests), StateFile: filepath.Join(all.rootDir, "resourceclaims.json"), Logger: log,
		Hooks: dra.Hooks{RPCEnded: counts.DRACallEnded, PodPrepared: counts.ClaimsPrepared, PodReleased: counts.ClaimsReleased},
	}
	var opts []agent.Option
	if c != nil {
		published := c.kube.ResourceSlices()
		cfg.Claims, cfg.RequireReservation, cfg.Node = c.kube, true, published
		opts = append(opts, agent.WithRunner("resource slices", func(*agent.Components) (agent.Runner, error) { return published, nil }))
	}
	m, err := dra.New(cfg)
	if err != nil {
		return nil, err
	}
	all.metrics.node.ClaimsInUse = m.ClaimsInUse
	plugins.add(f.pluginDir, draPluginType, m)
	return append(opts, agent.WithInjector(m)), nil
}

// claims returns the manager that options has made, nil if there is none.
func (f *draFlags) claims(plugins pluginDirs) podresources.Claims {
	claims, _ := plugins[filepath.Clean(f.pluginDir)][draPluginType].(podresources.Claims)
	return claims
}
