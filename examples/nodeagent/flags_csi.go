package main

import (
	"flag"
	"log/slog"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/csi"
	"github.com/sublet-dev/agent/kube"
	"github.com/sublet-dev/agent/volume"
)

// csiFlags are about CSI drivers. A kubelet has no flag for them: they are always there.
type csiFlags struct{ enabled bool }

func (f *csiFlags) define(fs *flag.FlagSet) {
	fs.BoolVar(&f.enabled, "csi", false, "mount volumes of CSI drivers, NFS and local volumes; without -kubeconfig PersistentVolumes, PersistentVolumeClaims and CSIDrivers are read from -manifests")
}

func (f *csiFlags) check(all *flags, fail func(bad bool, format string, args ...any)) {
	fail(f.enabled && all.manifests == "" && all.kube.kubeconfig == "", "-csi needs -manifests, where PersistentVolumes are, or -kubeconfig")
}

// lateRecorder is that of the agent, which is built after the volumes.
type lateRecorder struct{ agent.Recorder }

// Record implements csi.Recorder.
func (r *lateRecorder) Record(e *corev1.Event) {
	if r.Recorder != nil {
		r.Recorder.Record(e)
	}
}

// options returns what mounts volumes of CSI drivers, and the volumes that are in use. storage
// is what the cluster knows; nil without one.
func (f *csiFlags) options(all *flags, storage *kube.Storage, topology *func() map[string]string, plugins pluginDirs, log *slog.Logger) ([]agent.Option, *csi.Manager, error) {
	if !f.enabled {
		return nil, nil, nil
	}
	files, recorder := volume.NewFiles(all.manifests), &lateRecorder{}
	cfg := csi.Config{Root: all.rootDir, NodeName: all.nodeName, Drivers: files, Recorder: recorder, Logger: log}
	counts := all.metrics.all
	cfg.Hooks = csi.Hooks{RPCEnded: counts.CSICallEnded, OperationEnded: counts.StorageOperationEnded}
	claims := volume.Claims(files)
	if storage != nil {
		claims, cfg.Drivers, cfg.Attachments, cfg.Node = storage, storage, storage, storage
	}
	m, err := csi.New(cfg)
	if err != nil {
		return nil, nil, err
	}
	if topology != nil {
		*topology = m.Topology
	}
	plugins.add(all.registryDir(), csi.PluginType, m)
	nfs, err := volume.NewNFS(volume.NFSConfig{Root: all.rootDir, Hooks: counts.Volumes(), Logger: log})
	if err != nil {
		return nil, nil, err
	}
	runner := func(r agent.Runner) agent.Constructor[agent.Runner] {
		return func(c *agent.Components) (agent.Runner, error) {
			recorder.Recorder = c.Recorder
			return r, nil
		}
	}
	opts := []agent.Option{
		agent.WithConfig(volume.Config{Claims: claims, Drivers: []volume.Driver{m, nfs}}),
		agent.WithRunner("csi volumes", runner(m)),
	}
	if storage != nil {
		opts = append(opts, agent.WithRunner("kube storage", runner(storage)))
	}
	return opts, m, nil
}
