package kubeletconfig

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/kubelet/config/v1beta1"

	"github.com/sublet-dev/agent/cgroup"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/logrotate"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/nodeshutdown"
	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/topology"
)

// Settings are the Configs of components that a configuration stands for. The caller may change
// them before they become options of an agent; each is complete but for what the program knows
// alone, such as the addresses and labels of the node.
//
// What is not of a component is in Config.Kubelet: the sources of pods (staticPodPath,
// staticPodURL), the sockets of the runtime, the server and the node of a cluster.
type Settings struct {
	Node        node.Config
	Resources   node.Resources // of the node, as Node has them
	PodWorkers  podworkers.Config
	PodSync     podsync.Config
	CRI         cri.Config
	Eviction    eviction.Config
	ImageGC     imagegc.Config
	LogRotation logrotate.Config
	Shutdown    []nodeshutdown.Group // empty: pods are not terminated when the machine shuts down
}

const (
	noSwap, limitedSwap = "NoSwap", "LimitedSwap"

	// fasterRestart and fasterRestartMax are the kubelet's with the gate
	// ReduceDefaultCrashLoopBackOffDecay (KEP-4603).
	fasterRestart, fasterRestartMax = time.Second, time.Minute
)

// Settings turns a valid configuration into Configs of components. capacity is what the machine
// has, as node.DetectCapacity and node.DiskCapacity find it.
func (c *Config) Settings(capacity corev1.ResourceList) (Settings, error) {
	if err := c.Validate(); err != nil {
		return Settings{}, err
	}
	k := c.Kubelet()
	thresholds, err := c.thresholds()
	if err != nil {
		return Settings{}, err
	}
	resources, err := c.resources(capacity, thresholds)
	if err != nil {
		return Settings{}, err
	}
	size, err := resource.ParseQuantity(k.ContainerLogMaxSize)
	if err != nil {
		return Settings{}, err
	}
	return Settings{
		Node: c.node(k, resources), Resources: resources,
		PodWorkers: podworkers.Config{ResyncPeriod: k.SyncFrequency.Duration},
		PodSync:    podsync.Config{BackOff: c.backOff(k)},
		CRI:        c.cri(k),
		Eviction: eviction.Config{
			Thresholds: thresholds, PressureTransitionPeriod: k.EvictionPressureTransitionPeriod.Duration,
			MaxPodGracePeriod: time.Duration(k.EvictionMaxPodGracePeriod) * time.Second,
		},
		ImageGC: imagegc.Config{Policy: imagegc.Policy{
			HighThresholdPercent: int(*k.ImageGCHighThresholdPercent), LowThresholdPercent: orOff(int(*k.ImageGCLowThresholdPercent), 1),
			MinAge: orOff(k.ImageMinimumGCAge.Duration, -1), MaxAge: k.ImageMaximumGCAge.Duration,
		}},
		Shutdown: shutdownGroups(k),
		LogRotation: logrotate.Config{
			MaxSize: size.Value(), MaxFiles: int(*k.ContainerLogMaxFiles), MaxWorkers: int(*k.ContainerLogMaxWorkers), MonitorInterval: k.ContainerLogMonitorInterval.Duration,
		},
	}, nil
}

// orOff returns what stands for the kubelet's 0 where that is the default here.
func orOff[T int | float64 | time.Duration](v, off T) T { return cmp.Or(v, off) }

func (c *Config) node(k *v1beta1.KubeletConfiguration, r node.Resources) node.Config {
	n := node.Config{
		MemoryQoS: memoryQoS(k),
		Capacity:  r.Capacity, Allocatable: r.Allocatable, MaxPods: podLimit(int(k.MaxPods), int(k.PodsPerCore), r.Capacity), PodPidsLimit: max(*k.PodPidsLimit, 0),
		PodLogsDir: k.PodLogsDir, CgroupRoot: k.CgroupRoot, CgroupDriver: cgroup.Driver(k.CgroupDriver), DisableCgroups: !*k.CgroupsPerQOS,
		MaxImages:            imageLimit(int(*k.NodeStatusMaxImages)),
		AllowedUnsafeSysctls: k.AllowedUnsafeSysctls, ResolvConf: *k.ResolverConfig, ClusterDNS: k.ClusterDNS, ClusterDomain: k.ClusterDomain,
	}
	n.PodsCgroupLimits = unenforcedLimits(r.Capacity, n.DisableCgroups)
	if slices.Contains(k.EnforceNodeAllocatable, enforcePods) {
		n.PodsCgroupLimits = r.PodsCgroupLimits
	}
	return n
}

// unenforcedLimits are those of all pods together without enforceNodeAllocatable: what the machine has, so that they
// have the weight of all its CPUs. Without a weight they would have together that of one service of the system.
func unenforcedLimits(capacity corev1.ResourceList, disabled bool) corev1.ResourceList {
	limits := corev1.ResourceList{}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if q, ok := capacity[name]; ok && !disabled {
			limits[name] = q
		}
	}
	return limits
}

// imageLimit is the number of images that are reported, of which 0 is the default here.
func imageLimit(n int) int {
	switch n {
	case 0:
		return node.NoImages
	case -1:
		return node.AllImages
	}
	return n
}

// podLimit is the number of pods that a node runs at once.
func podLimit(maxPods, perCore int, capacity corev1.ResourceList) int {
	if perCore == 0 {
		return maxPods
	}
	return min(maxPods, perCore*int(capacity.Cpu().Value()))
}

func (c *Config) backOff(k *v1beta1.KubeletConfiguration) runtime.BackOff {
	b := runtime.ExponentialBackOff{Max: k.CrashLoopBackOff.MaxContainerRestartPeriod.Duration}
	if k.FeatureGates[gateFasterRestart] {
		b.Base = fasterRestart
		if !c.Given("crashLoopBackOff.maxContainerRestartPeriod") {
			b.Max = fasterRestartMax
		}
	}
	return b
}

func (c *Config) cri(k *v1beta1.KubeletConfiguration) cri.Config {
	swap := map[string]cri.Swap{"": cri.NoSwap, noSwap: cri.NoSwap, limitedSwap: cri.LimitedSwap}
	access := cri.ImageAccess{Policy: cri.ImageVerification(k.ImagePullCredentialsVerificationPolicy), Allowlist: k.PreloadedImagesVerificationAllowlist}
	if on, given := k.FeatureGates[gateVerifyPulled]; given && !on {
		access = cri.ImageAccess{Policy: cri.NeverVerify}
	}
	return cri.Config{
		Timeout: k.RuntimeRequestTimeout.Duration, ImageAccess: access,
		Pulls: cri.PullLimits{MaxParallel: parallelPulls(k), QPS: orOff(float64(*k.RegistryPullQPS), -1), Burst: max(int(k.RegistryBurst), 1)},
		Node: cri.Node{
			SeccompDefault: *k.SeccompDefault, NoCPUQuota: !*k.CPUCFSQuota, CPUQuotaPeriod: k.CPUCFSQuotaPeriod.Duration, Swap: swap[k.MemorySwap.SwapBehavior],
			SingleProcessOOMKill: k.SingleProcessOOMKill != nil && *k.SingleProcessOOMKill,
		},
	}
}

// parallelPulls returns the limit of parallel pulls; 0: the default of the client.
func parallelPulls(k *v1beta1.KubeletConfiguration) int {
	switch serial := k.SerializeImagePulls; {
	case k.MaxParallelImagePulls != nil:
		return int(*k.MaxParallelImagePulls)
	case serial == nil:
		return 0
	case *serial:
		return 1
	default:
		return math.MaxInt32
	}
}

// thresholds returns those of eviction.
func (c *Config) thresholds() ([]eviction.Threshold, error) {
	k := &c.kubelet
	hard := maps.Clone(k.EvictionHard)
	if *k.MergeDefaultEvictionSettings {
		for _, entry := range list(eviction.DefaultHardThresholds) {
			signal, value, _ := strings.Cut(entry, "<")
			if _, given := hard[signal]; !given {
				hard[signal] = value
			}
		}
	}
	thresholds, err := eviction.ParseThresholds(joinThresholds(hard), joinThresholds(k.EvictionSoft), join(k.EvictionSoftGracePeriod, "="), join(k.EvictionMinimumReclaim, "="))
	if err != nil {
		return nil, fmt.Errorf("thresholds of eviction: %w", err)
	}
	return thresholds, nil
}

// joinThresholds joins with the operator of each signal.
func joinThresholds(m map[string]string) string {
	return joinWith(m, func(signal string) string { return eviction.Signal(signal).Operator() })
}

func join[T any](m map[string]T, sep string) string {
	return joinWith(m, func(string) string { return sep })
}

func joinWith[T any](m map[string]T, sep func(name string) string) string {
	entries := make([]string, 0, len(m))
	for _, name := range slices.Sorted(maps.Keys(m)) {
		entries = append(entries, name+sep(name)+fmt.Sprint(m[name]))
	}
	return strings.Join(entries, ",")
}

// resources subtracts what is reserved from capacity.
func (c *Config) resources(capacity corev1.ResourceList, thresholds []eviction.Threshold) (node.Resources, error) {
	kube, err := reservation("kubeReserved", c.kubelet.KubeReserved)
	if err != nil {
		return node.Resources{}, err
	}
	system, err := reservation("systemReserved", c.kubelet.SystemReserved)
	if err != nil {
		return node.Resources{}, err
	}
	if cpus, err := topology.ParseSet(c.kubelet.ReservedSystemCPUs); err == nil && cpus.Len() > 0 { // they take the place of both
		delete(system, corev1.ResourceCPU)
		kube = maps.Clone(kube)
		if kube == nil {
			kube = corev1.ResourceList{}
		}
		kube[corev1.ResourceCPU] = *resource.NewQuantity(int64(cpus.Len()), resource.DecimalSI)
	}
	reserved := node.Reservations{Kube: kube, System: system, Eviction: eviction.Reservation(capacity, thresholds)}
	r, err := node.Available(capacity, reserved)
	if err != nil {
		return node.Resources{}, fmt.Errorf("resources of this node: %w", err)
	}
	return r, c.reserveMemory(r, reserved)
}

func reservation(field string, list map[string]string) (corev1.ResourceList, error) {
	r, err := node.ParseReservation(join(list, "="))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	return r, nil
}
