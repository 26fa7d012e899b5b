package node

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sublet-dev/agent/cgroup"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// ResourcePIDs is the number of processes in Config.PodsCgroupLimits. It is the
// kubelet's name for it in system-reserved and kube-reserved.
const ResourcePIDs corev1.ResourceName = "pid"

// Config describes the node to pods and to admission. The zero value of a field
// sets no bound and makes no statement.
type Config struct {
	IPs []string // status.hostIPs, primary first. The first of each family counts
	// CurrentIPs returns the IPs at the time, for a node whose addresses change: pods have them from their next sync on. It must not
	// block, and is called from any goroutine. Default: IPs.
	CurrentIPs func() []string
	// Addresses returns what is reported as the addresses of the node, for each report. Default: IPs or, without any, those that the
	// machine has then.
	Addresses func() ([]corev1.NodeAddress, error)
	Labels    map[string]string // matched by node selectors and node affinity
	// Taints of the node, as in the spec of a Node. A pod that does not tolerate one with effect NoExecute is rejected with
	// reason TaintToleration. Static pods tolerate all of them, as with the kubelet.
	Taints []corev1.Taint
	// Capacity is what the machine has. It is reported. Default: as detected below NodeCgroup and CgroupRoot.
	Capacity corev1.ResourceList
	// Allocatable is the sum of requests that pods are admitted for. A pod that does not fit is rejected with OutOfcpu, OutOfmemory
	// and so on. Default: Capacity without what hard eviction thresholds keep available; with a simulated runtime no bound.
	Allocatable corev1.ResourceList
	// MaxPods are the pods that run at once. A node of a cluster needs one: schedulers place no pods on a Node without a number
	// of pods. Default: 0, no bound.
	MaxPods int
	// MaxImages are the images that are reported, largest first (nodeStatusMaxImages of a kubelet); AllImages or NoImages. Default: 50.
	MaxImages int
	// PodsCgroupLimits bounds the cgroup of all pods: cpu (as a weight), memory (bytes) and ResourcePIDs (processes). A kubelet that
	// enforces node allocatable sets capacity minus reservations; that is more than Allocatable, which leaves out the hard eviction
	// thresholds too, so that pods are evicted before the kernel kills a process. Empty but not nil: no limits.
	// Default: cpu and memory of Allocatable.
	PodsCgroupLimits corev1.ResourceList
	// PodPidsLimit bounds the processes of each pod (podPidsLimit of a kubelet). Default: 0, no bound.
	PodPidsLimit int64
	// MemoryQoS protects and throttles the memory of pods and containers, on cgroup v2. Default: none.
	MemoryQoS podspec.MemoryQoS
	// PodLogsDir has the directory of container logs of each pod. Default: <root>/logs.
	PodLogsDir string
	// LogLinksDir has symbolic links to container logs, /var/log/containers of a kubelet, for log shippers. With a CRI runtime the agent
	// makes one for each container that it starts; it removes links to logs that it removes. Default: none.
	LogLinksDir string
	// NodeCgroup is a cgroup, as a clean absolute path below the hierarchies' roots, whose
	// memory and process limits are the node's, and below which all pods are: that of the
	// container or slice in which the agent runs. Default: the machine.
	NodeCgroup string
	CgroupRoot string // cgroup below which pods are created. Default: the root cgroup
	// CgroupDriver must be the runtime's. Default: as the runtime reports it or, for containerd 1.x, as
	// its configuration says; else systemd where it owns the machine's cgroups, and cgroupfs elsewhere.
	CgroupDriver   cgroup.Driver
	DisableCgroups bool // leave cgroups to the runtime
	// AllowedUnsafeSysctls are kernel parameters that pods may set besides the kubelet's safe ones: names, or prefixes that end in *.
	AllowedUnsafeSysctls []string
	// UnsupportedFields returns an error for each field of a pod that this node cannot implement; such a pod is rejected with reason
	// PodFeatureUnsupported. A runtime with more abilities returns fewer. It is called from the sync loop and must be pure and fast.
	// Default: podspec.Unsupported.
	UnsupportedFields func(*corev1.Pod) field.ErrorList

	// ReadyChecks are checks that must pass for the node to be Ready, besides those of the agent.
	ReadyChecks []Check
	// ConditionReporters report conditions of the node besides those of the agent.
	ConditionReporters []Reporter
	Port               int32 // of the agent's HTTPS server, as it is reported. Default: none
	// DeclaredFeatures are features that the program around the agent has, such as server.FeatureWebSockets. They
	// are reported with those of the runtime. Default: none
	DeclaredFeatures []string

	// ResolvConf is the resolver configuration of the node. Default: /etc/resolv.conf. If that names only addresses on loopback, pods
	// get /run/systemd/resolve/resolv.conf of systemd-resolved where it exists.
	ResolvConf    string
	ClusterDNS    []string // name servers of pods with dnsPolicy ClusterFirst
	ClusterDomain string   // domain of the cluster
}

// Check returns all contradictions between the fields, joined. Taints are checked by
// package admission, cgroup names by package cgroup.
func (c Config) Check() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf("node: "+format, args...)) }
	for _, dir := range []string{c.PodLogsDir, c.LogLinksDir, c.NodeCgroup, c.CgroupRoot} {
		if dir != "" && !filepath.IsAbs(dir) {
			fail("%q is not an absolute path", dir)
		}
	}
	if c.LogLinksDir != "" && filepath.Clean(c.LogLinksDir) == filepath.Clean(c.PodLogsDir) {
		fail("LogLinksDir must not be PodLogsDir")
	}
	for _, ip := range c.IPs {
		if net.ParseIP(ip) == nil {
			fail("IPs: invalid IP address %q", ip)
		}
	}
	if c.MaxImages < NoImages {
		fail("MaxImages %d is negative, and neither AllImages nor NoImages", c.MaxImages)
	}
	if c.MaxPods < 0 {
		fail("MaxPods %d is negative", c.MaxPods)
	}
	if c.PodPidsLimit < 0 {
		fail("PodPidsLimit %d is negative; 0 sets no bound", c.PodPidsLimit)
	}
	if err := c.MemoryQoS.Check(); err != nil {
		fail("%w", err)
	}
	if c.DisableCgroups && (c.PodPidsLimit > 0 || len(c.PodsCgroupLimits) > 0) {
		fail("PodPidsLimit and PodsCgroupLimits need cgroups; remove DisableCgroups")
	}
	for _, name := range slices.Sorted(maps.Keys(c.PodsCgroupLimits)) {
		limit, allocatable := c.PodsCgroupLimits[name], c.Allocatable[name]
		switch {
		case name != corev1.ResourceCPU && name != corev1.ResourceMemory && name != ResourcePIDs:
			fail("PodsCgroupLimits has no limit for %s; cpu, memory and pid are supported", name)
		case limit.Sign() <= 0:
			fail("PodsCgroupLimits[%s] must be positive, got %s", name, limit.String())
		case limit.Cmp(allocatable) < 0:
			fail("PodsCgroupLimits[%s] of %s is less than Allocatable of %s", name, limit.String(), allocatable.String())
		}
	}
	if all := c.PodsCgroupLimits[ResourcePIDs]; all.Sign() > 0 && c.PodPidsLimit > all.Value() {
		fail("PodPidsLimit %d is more than PodsCgroupLimits[pid] of %s", c.PodPidsLimit, all.String())
	}
	return errors.Join(errs...)
}

// Needs returns what the removal of links to logs depends on.
func (c Config) Needs() []runtime.Need {
	if c.LogLinksDir == "" {
		return nil
	}
	return []runtime.Need{runtime.NeedFor[runtime.ContainerRemover]("removal of links to logs")}
}

// EffectivePodsCgroupLimits returns PodsCgroupLimits with their defaults.
func (c Config) EffectivePodsCgroupLimits() corev1.ResourceList {
	limits := corev1.ResourceList{}
	if c.PodsCgroupLimits != nil && len(c.PodsCgroupLimits) == 0 {
		return limits
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if q, ok := c.Allocatable[name]; ok {
			limits[name] = q
		}
	}
	maps.Copy(limits, c.PodsCgroupLimits)
	return limits
}

// StatusConfig returns the part of the configuration of a Status that the node itself
// determines: resources, addresses and, from the file system of the machine, node info.
func (c Config) StatusConfig(nodeName string, machine fs.FS) StatusConfig {
	addresses := c.Addresses
	if addresses == nil {
		addresses = func() ([]corev1.NodeAddress, error) { return Addresses(AddressConfig{NodeName: nodeName, IPs: c.IPs}) }
	}
	return StatusConfig{
		Resources: Resources{Capacity: c.Capacity, Allocatable: c.Allocatable}, MaxPods: c.MaxPods, Info: DetectInfo(machine), Port: c.Port,
		Addresses: addresses, MaxImages: c.MaxImages,
	}
}

// HostIPs returns the IPs of the node at the time, primary first; none while they are not known. Of each family it
// is one, as an API server takes no status of a pod with more.
func (c Config) HostIPs() []string {
	ips := c.IPs
	if c.CurrentIPs != nil {
		ips = c.CurrentIPs()
	}
	return runtime.PodIPs(ips, ips)
}

// HostIP returns the primary IP of the node at the time, or "" while it is not known.
func (c Config) HostIP() string {
	ips := c.HostIPs()
	if len(ips) == 0 {
		return ""
	}
	return ips[0]
}
