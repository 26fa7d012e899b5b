package main

import (
	"cmp"
	"flag"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/pluginregistry"
)

// pluginFlags are about the registration of plugins. A kubelet has no flag for it.
type pluginFlags struct{ registryDir string }

func (f *pluginFlags) define(fs *flag.FlagSet) {
	fs.StringVar(&f.registryDir, "plugin-registry-dir", "", "directory in which CSI drivers and device plugins register; it may be that of -dra-plugin-dir. Default: plugins_registry below -root-dir, as with a kubelet; needs -csi or -device-plugin-dir")
}

func (f *pluginFlags) check(all *flags, fail func(bad bool, format string, args ...any)) {
	fail(f.registryDir != "" && !filepath.IsAbs(f.registryDir), "-plugin-registry-dir %q: must be an absolute path", f.registryDir)
	fail(f.registryDir != "" && !all.csi.enabled && all.devices.pluginDir == "", "-plugin-registry-dir needs -csi or -device-plugin-dir")
}

// registryDir is the directory in which CSI drivers and device plugins register.
func (f *flags) registryDir() string {
	return cmp.Or(f.plugins.registryDir, filepath.Join(f.rootDir, "plugins_registry"))
}

// pluginDirs are the directories in which drivers register, with who gets them by type. CSI
// and DRA drivers, and device plugins, may share one, as with a kubelet: each directory has one watcher, which
// would reject drivers that are for another.
type pluginDirs map[string]map[string]pluginregistry.Handler

func (d pluginDirs) add(dir, pluginType string, h pluginregistry.Handler) {
	dir = filepath.Clean(dir)
	if d[dir] == nil {
		d[dir] = map[string]pluginregistry.Handler{}
	}
	d[dir][pluginType] = h
}

// options returns what watches the directories.
func (d pluginDirs) options(log *slog.Logger) ([]agent.Option, error) {
	var opts []agent.Option
	for _, dir := range slices.Sorted(maps.Keys(d)) {
		registry, err := pluginregistry.New(pluginregistry.Config{Dir: dir, Handlers: d[dir], Logger: log})
		if err != nil {
			return nil, err
		}
		opts = append(opts, agent.WithRunner("plugins in "+dir, func(*agent.Components) (agent.Runner, error) { return registry, nil }))
	}
	return opts, nil
}
