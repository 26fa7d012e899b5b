package main

import (
	"flag"
	"log/slog"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/server"
)

const (
	defaultMaxPods    = 110
	defaultCPUQuota   = 100 * time.Millisecond
	unlimitedPodsPIDs = -1
)

// nodeFlags are about the node's resources, with the kubelet's names and defaults.
type nodeFlags struct {
	kubeReserved, systemReserved list
	maxPods, podsPerCore         int
	podMaxPids                   int64
	seccompDefault               bool
	cpuQuota                     bool
	cpuQuotaPeriod               time.Duration
}

func (f *nodeFlags) define(fs *flag.FlagSet) {
	fs.Var(&f.kubeReserved, "kube-reserved", "resources kept for this agent and the runtime: cpu=100m,memory=256Mi,ephemeral-storage=1Gi,pid=1000")
	fs.Var(&f.systemReserved, "system-reserved", "resources kept for other processes of the system, as -kube-reserved")
	fs.IntVar(&f.maxPods, "max-pods", defaultMaxPods, "pods that run on this node at once")
	fs.IntVar(&f.podsPerCore, "pods-per-core", 0, "pods that run on this node at once, per CPU, up to -max-pods; 0: no such bound")
	fs.Int64Var(&f.podMaxPids, "pod-max-pids", unlimitedPodsPIDs, "processes of each pod; 0 or negative: no bound")
	fs.BoolVar(&f.seccompDefault, "seccomp-default", false, "use the runtime's seccomp profile for containers that set none")
	fs.BoolVar(&f.cpuQuota, "cpu-cfs-quota", true, "enforce CPU limits of containers")
	fs.DurationVar(&f.cpuQuotaPeriod, "cpu-cfs-quota-period", defaultCPUQuota, "period of CPU limits, 1ms to 1s")
}

func (f *nodeFlags) check(fail func(bad bool, format string, args ...any)) {
	fail(f.maxPods < 1, "-max-pods %d: must be at least 1", f.maxPods)
	fail(f.podsPerCore < 0, "-pods-per-core %d: must not be negative", f.podsPerCore)
	fail(f.cpuQuotaPeriod < time.Millisecond || f.cpuQuotaPeriod > time.Second, "-cpu-cfs-quota-period %v: must be from 1ms to 1s", f.cpuQuotaPeriod)
}

// nodeResources are logged at the start.
type nodeResources node.Resources

// capacity detects what the node has.
func (f *flags) capacity() (corev1.ResourceList, error) {
	capacity := node.DetectCapacity(os.DirFS("/"), f.cgroupRoot)
	disk, err := node.DiskCapacity(f.rootDir)
	if err != nil {
		return nil, err
	}
	if disk.Sign() > 0 { // file systems without a size report 0
		capacity[corev1.ResourceEphemeralStorage] = disk
	}
	return capacity, nil
}

// describe adds to the configuration of a node what flags alone have.
func (f *flags) describe(n node.Config, log *slog.Logger) (node.Config, error) {
	n.Labels, n.Port, n.LogLinksDir = f.labels(), serverPort(f.serverAddr()), f.logLinksDir
	if f.kube.kubeconfig != "" {
		if n.Port != 0 && *f.config.effective.Kubelet().EnableDebuggingHandlers && f.config.effective.WebSockets() {
			n.DeclaredFeatures = append(n.DeclaredFeatures, server.FeatureWebSockets)
		}
		if _, err := f.addresses.Detect(); err != nil { // the network may come later
			log.Warn("node address not found", slog.Any("err", err))
		}
		n.CurrentIPs, n.Addresses = f.addresses.IPs, f.addresses.Detect
		return n, nil
	}
	if n.IPs = f.nodeIPs(); len(n.IPs) > 0 {
		return n, nil
	}
	ip, err := machineIP()
	n.IPs = []string{ip}
	return n, err
}

// LogValue implements slog.LogValuer.
func (r nodeResources) LogValue() slog.Value {
	attrs := make([]slog.Attr, 0, len(r.Capacity))
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, node.ResourcePIDs} {
		q, ok := r.Allocatable[name]
		if name == node.ResourcePIDs {
			q, ok = r.PodsCgroupLimits[name]
		}
		if ok {
			capacity := r.Capacity[name]
			attrs = append(attrs, slog.String(string(name), q.String()+" of "+capacity.String()))
		}
	}
	return slog.GroupValue(attrs...)
}
