package stats

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/monotonic"
	"github.com/sublet-dev/agent/runtime"
)

// Pod is a pod to measure, with its cgroup and directories. Only Pod is required: what
// belongs to an empty field is not measured.
type Pod struct {
	Pod     *corev1.Pod
	Cgroup  string            // path below the root of each hierarchy, with a leading slash
	LogDir  string            // directory with one log directory per container
	Volumes map[string]Volume // local volumes, by their names in the spec
	// Files are the other files and directories that the containers of the pod can write
	// to: the hosts file and the termination messages.
	Files []string
	// TrackDiskUsage has the files counted continuously, as limits on local storage
	// require. Those of other pods are counted on request. Config.TrackedPods replaces it.
	TrackDiskUsage bool
}

// Volume is a volume on the disk or in the memory of the node.
type Volume struct {
	Path string
	// Uncounted volumes do not count as ephemeral storage: an emptyDir in memory, a Secret,
	// downwardAPI or projected volume. They may have a file system of their own.
	Uncounted bool
}

// Containers returns the usage of each container as measured by the runtime, above all of
// its writable layer. It is called with a timeout of 5s. Exited containers may be
// included. A runtime.ContainerStatsReporter is one.
type Containers interface {
	ContainerStats(ctx context.Context) ([]runtime.ContainerUsage, error)
}

// Config is the configuration of a Provider. Every field is optional. Values that need a
// missing field are not measured.
type Config struct {
	Proc    fs.FS // Default: /proc
	Cgroups fs.FS // Default: /sys/fs/cgroup
	// NodeCgroup is the cgroup whose limits on memory and processes are those of the node,
	// for example of an agent in a container. For memory, a lower limit of a cgroup above it
	// counts. Without a limit the machine is measured. Default: the machine.
	NodeCgroup string
	// PodsCgroup returns the cgroup of all pods, or "" while it is unknown. It must not
	// block. Default: the usage of all pods together is not measured.
	PodsCgroup func() string

	// Pods returns the pods to measure. It must not block. See [Locator.All]. Default: none.
	Pods func() []Pod
	// TrackedPods returns those of Pods whose files are counted continuously. It must not
	// block. See [Locator.Tracked]. Default: those of Pods that have TrackDiskUsage.
	TrackedPods func() []Pod
	// ContainerStats measures containers. Default: usage of single containers, and of
	// writable layers, is not measured.
	ContainerStats Containers

	// DriverVolumes has the usage of volumes that drivers mount. Default: it is not reported.
	DriverVolumes DriverVolumes

	// NodeFS is a directory on the file system of pod directories, volumes and logs.
	// Default: it is not measured.
	NodeFS string
	// ImageFS reports the file systems of images and writable layers. Its result is used
	// for ten minutes, and longer while it fails. Default: both are on that of NodeFS.
	ImageFS ImageFSReporter
	// Statfs measures the file system that contains path. Default: [Statfs].
	Statfs func(path string) (runtime.FSUsage, error)

	// DiskUsagePeriod is the time between two counts of the files of a tracked pod.
	// Default: 1m.
	DiskUsagePeriod time.Duration
	Logger          *slog.Logger // Default: discard
}

// Provider measures a node and its pods. Its methods may be called from any goroutine.
type Provider struct {
	cfg          Config
	proc         *reader
	procUncached *reader // of the files of processes
	groups       func() *groups
	agentCgroup  func() string // see findAgentCgroup
	created      time.Time

	counting chan struct{} // the one slot is taken by the goroutine that counts files
	countCh  chan struct{} // one slot: wakes up Run, which has more pods to count

	mu        sync.Mutex                  // guards all below
	disks     map[types.UID]podDisk       // results of complete counts
	partial   map[types.UID]podDisk       // results so far of the suspended counts
	counts    map[types.UID]*podCount     // the suspended counts; used only with the slot of counting
	rates     map[string]runtime.CPUUsage // by cgroup or container ID: the sample from which the next rate is computed
	imageDirs imageDirs
	imageUse  imageUse
	asked     time.Time // time of the last RefreshDiskUsage

	networkPIDs map[string]string // by cgroup of a pod: a process in its network namespace
}

// New returns a Provider. It reports all errors in cfg at once and does no I/O.
func New(cfg Config) (*Provider, error) {
	var errs []error
	if group := cfg.NodeCgroup; group != "" && (group[0] != '/' || path.Clean(group) != group) {
		errs = append(errs, fmt.Errorf("Config.NodeCgroup: %q must be a clean absolute path", group))
	}
	if cfg.DiskUsagePeriod < 0 {
		errs = append(errs, fmt.Errorf("Config.DiskUsagePeriod: must not be negative: %v", cfg.DiskUsagePeriod))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("stats: %w", err)
	}
	if cfg.Proc == nil {
		cfg.Proc = os.DirFS("/proc")
	}
	if cfg.Cgroups == nil {
		cfg.Cgroups = os.DirFS("/sys/fs/cgroup")
	}
	if cfg.Pods == nil {
		cfg.Pods = func() []Pod { return nil }
	}
	if cfg.Statfs == nil {
		cfg.Statfs = Statfs
	}
	if cfg.DiskUsagePeriod == 0 {
		cfg.DiskUsagePeriod = time.Minute
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	p := &Provider{
		cfg: cfg, proc: newReader(cfg.Proc), procUncached: newUncachedReader(cfg.Proc), created: time.Now(),
		counting: make(chan struct{}, 1), countCh: make(chan struct{}, 1),
		groups: sync.OnceValue(func() *groups { return openGroups(cfg.Cgroups) }),
		disks:  make(map[types.UID]podDisk), partial: make(map[types.UID]podDisk), counts: make(map[types.UID]*podCount),
		rates: make(map[string]runtime.CPUUsage), networkPIDs: make(map[string]string),
	}
	p.agentCgroup = sync.OnceValue(p.findAgentCgroup)
	return p, nil
}

// Usage measures the node and its pods. It blocks for a runtime call of at most 5s. It
// does not count files but returns the last results of [Provider.RefreshDiskUsage] and
// [Provider.Run] or, if these are older than since or the count under way has found more,
// the result of that count so far. Values that cannot be measured have a zero time. An
// error means that neither memory, processes nor the file system of the node could be
// measured. The caller owns the result.
func (p *Provider) Usage(ctx context.Context, since time.Time) (runtime.NodeUsage, error) {
	u, _, err := p.usage(ctx, p.cfg.Pods(), since)
	return u, err
}

// usage is Usage of these pods that returns the error of the runtime, too.
func (p *Provider) usage(ctx context.Context, pods []Pod, since time.Time) (u runtime.NodeUsage, runtimeErr, err error) {
	containers, runtimeErr := p.containers(ctx)
	errs := append(p.node(ctx, &u), runtimeErr) // the node last, because the runtime may take long
	u.Pods = make([]runtime.PodUsage, 0, len(pods))
	for i := range pods {
		u.Pods = append(u.Pods, p.pod(&u, &pods[i], containers[pods[i].Pod.UID], since))
	}
	p.forget(pods, containers, runtimeErr)
	return u, runtimeErr, p.sum(&u, errs)
}

// NodeUsage measures the node without its pods. It takes some microseconds, and calls the
// runtime at most every ten minutes, so it can be called often. Errors are as for
// [Provider.Usage].
func (p *Provider) NodeUsage(ctx context.Context) (runtime.NodeUsage, error) {
	var u runtime.NodeUsage
	errs := p.node(ctx, &u)
	return u, p.sum(&u, errs)
}

// sum returns an error if nothing could be measured, and logs the errors otherwise.
func (p *Provider) sum(u *runtime.NodeUsage, errs []error) error {
	err := errors.Join(errs...)
	if u.Memory.At.IsZero() && u.NodeFS.At.IsZero() && u.Pids.At.IsZero() {
		return fmt.Errorf("measure node: %w", err)
	}
	if err != nil {
		p.cfg.Logger.Debug("node stats incomplete", logattr.Err(err))
	}
	return nil
}

// node measures the node itself.
func (p *Provider) node(ctx context.Context, u *runtime.NodeUsage) []error {
	now, g := time.Now(), p.groups()
	errs := p.nodeCPUAndMemory(u, now)
	note := func(err error) { errs = append(errs, err) }
	var err error
	if p.cfg.NodeCgroup != "" {
		u.Pids, err = g.boundPidsOf(p.cfg.NodeCgroup, now)
		note(err)
	}
	if u.Pids.Max == 0 {
		u.Pids, err = machinePids(p.proc, now)
		note(err)
	}
	note(p.fileSystems(ctx, u))
	return errs
}

// nodeCPUAndMemory measures the CPU time, the memory and the pressure of the node.
func (p *Provider) nodeCPUAndMemory(u *runtime.NodeUsage, now time.Time) []error {
	g := p.groups()
	var memoryErr, podsErr, cpuErr error
	u.Memory, memoryErr = p.nodeMemory(g, now)
	if all := p.allPods(); all != "" {
		u.PodsMemory, podsErr = g.boundOf(all, now)
	}
	u.CPU, cpuErr = g.cpuOf(p.cfg.NodeCgroup, now)
	u.CPU = p.rate(p.cfg.NodeCgroup, u.CPU)
	p.pressures(u, now)
	return []error{memoryErr, podsErr, cpuErr}
}

// allPods returns the cgroup of all pods, or "" if it is unknown.
func (p *Provider) allPods() string {
	if p.cfg.PodsCgroup == nil {
		return ""
	}
	return p.cfg.PodsCgroup()
}

// runtimeWait is the timeout of runtime calls, so that a runtime that hangs does not
// prevent measurements of the node.
const runtimeWait = 5 * time.Second

// containers returns the container usage that the runtime reports, by pod.
func (p *Provider) containers(ctx context.Context) (map[types.UID][]runtime.ContainerUsage, error) {
	if p.cfg.ContainerStats == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, runtimeWait)
	defer cancel()
	list, err := p.cfg.ContainerStats.ContainerStats(ctx)
	if err != nil {
		return nil, fmt.Errorf("container stats: %w", err)
	}
	now := time.Now()
	out := make(map[types.UID][]runtime.ContainerUsage)
	for _, c := range list {
		// The runtime reports wall clock times. The age of a value must not depend on later
		// changes of the wall clock.
		for _, at := range []*time.Time{&c.CPU.At, &c.Memory.At, &c.Rootfs.At, &c.Logs.At} {
			*at = monotonic.Past(*at, now)
		}
		out[c.PodUID] = append(out[c.PodUID], c)
	}
	for _, ofPod := range out {
		oneOfEachName(ofPod)
	}
	return out, nil
}

// pod combines the usage of one pod from its cgroup, its containers and its files.
func (p *Provider) pod(node *runtime.NodeUsage, pod *Pod, containers []runtime.ContainerUsage, since time.Time) runtime.PodUsage {
	now := time.Now()
	u := p.podCPUAndMemory(pod, now)
	if pod.Cgroup != "" {
		if n, err := p.groups().pidsOf(pod.Cgroup, now); err == nil {
			u.Pids = n
		}
		p.podPressures(node, &u, pod.Cgroup, now)
	}
	p.mu.Lock()
	disk := p.diskOf(pod.Pod.UID, since)
	p.mu.Unlock()
	u.Volumes, u.Files = disk.volumes, disk.files
	logged := make(map[string]bool, len(containers))
	for _, c := range containers {
		if !c.Running {
			switch {
			case c.Rootfs.At.IsZero():
			case u.ExitedContainers.At.IsZero():
				u.ExitedContainers = c.Rootfs
			default:
				u.ExitedContainers = u.ExitedContainers.Add(c.Rootfs)
			}
			continue
		}
		if logs, ok := disk.logs[c.Name]; ok && c.Logs.At.IsZero() {
			c.Logs = logs
		}
		logged[c.Name] = true
		u.Containers = append(u.Containers, p.container(pod.Pod, c))
	}
	for _, name := range slices.Sorted(maps.Keys(disk.logs)) {
		if logs := disk.logs[name]; !logged[name] {
			u.Containers = append(u.Containers, runtime.ContainerUsage{PodUID: pod.Pod.UID, Name: name, Logs: logs})
		}
	}
	return u
}

// podCPUAndMemory returns the CPU time and the memory of the cgroup of a pod. The values of a
// missing cgroup stay unknown.
func (p *Provider) podCPUAndMemory(pod *Pod, now time.Time) runtime.PodUsage {
	u := runtime.PodUsage{UID: pod.Pod.UID, Namespace: pod.Pod.Namespace, Name: pod.Pod.Name}
	if pod.Cgroup == "" {
		return u
	}
	g := p.groups()
	if m, err := g.memoryOf(pod.Cgroup, now); err == nil {
		u.Memory = m
	}
	if c, err := g.cpuOf(pod.Cgroup, now); err == nil {
		u.CPU = p.rate(pod.Cgroup, c)
	}
	return u
}

// rate adds the CPU time used per second since the previous sample of the cgroup or container. A sample of a measurement that began
// earlier and took longer may come later: it gets the last known rate. One that is much older is of a clock that was set back: it is
// the first one.
func (p *Provider) rate(group string, now runtime.CPUUsage) runtime.CPUUsage {
	if now.At.IsZero() {
		return now
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	before, ok := p.rates[group]
	took := now.At.Sub(before.At)
	switch {
	case !ok || took < -maxOverlap || took > 0 && now.UsageCoreNanoSeconds < before.UsageCoreNanoSeconds:
		p.rates[group] = now
	case took < minRate:
		now.UsageNanoCores, now.HasRate = before.UsageNanoCores, before.HasRate
	default:
		now.UsageNanoCores, now.HasRate = uint64(float64(now.UsageCoreNanoSeconds-before.UsageCoreNanoSeconds)/took.Seconds()), true
		p.rates[group] = now
	}
	return now
}

const (
	minRate    = time.Second // minimum time between two samples from which a rate is computed
	maxOverlap = time.Minute // by how much a sample may be older than the one before
)

// forget drops the state of all other pods and containers than these. After an error of the runtime it is not known which
// containers there are.
func (p *Provider) forget(pods []Pod, containers map[types.UID][]runtime.ContainerUsage, runtimeErr error) {
	keep := make(map[types.UID]bool, len(pods))
	groups := map[string]bool{p.cfg.NodeCgroup: true, p.agentCgroup(): true, p.allPods(): true}
	for i := range pods {
		uid := pods[i].Pod.UID
		keep[uid], groups[pods[i].Cgroup] = true, true
		for j := range containers[uid] {
			if c := &containers[uid][j]; needsRate(c) {
				groups[c.ID] = true
			}
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for uid := range p.disks {
		if !keep[uid] {
			delete(p.disks, uid)
		}
	}
	for uid := range p.partial { // dropCounts ends their counts in the next round
		if !keep[uid] {
			delete(p.partial, uid)
		}
	}
	if runtimeErr == nil {
		maps.DeleteFunc(p.rates, func(group string, _ runtime.CPUUsage) bool { return !groups[group] })
	}
	maps.DeleteFunc(p.networkPIDs, func(group, _ string) bool { return !groups[group] })
	p.groups().kept.sweep()
}
