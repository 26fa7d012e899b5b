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

// Pod is a pod that is measured, and where its things are. Any of the places
// may be empty: what is there is not known then.
type Pod struct {
	Pod     *corev1.Pod
	Cgroup  string            // below the root of each hierarchy, with a leading slash
	LogDir  string            // holds one directory per container
	Volumes map[string]Volume // the local ones, by their name in the spec
	// Files are files and directories that the node keeps for the pod and that its
	// containers can write to: the hosts file, those of the termination messages.
	Files []string
	// TrackDiskUsage counts the files continuously, as local storage limits require.
	// Those of other pods are counted on request.
	TrackDiskUsage bool
}

// Volume is a local volume.
type Volume struct {
	Path     string
	InMemory bool
}

// Containers tells what only the runtime knows: how much each container uses,
// above all its writable layer. Ended containers may be among them.
type Containers interface {
	ContainerStats(ctx context.Context) ([]runtime.ContainerUsage, error)
}

// Config is the configuration of a Provider. Every field is optional; what needs a
// missing field is not measured.
type Config struct {
	Proc    fs.FS // default: /proc
	Cgroups fs.FS // default: /sys/fs/cgroup
	// NodeCgroup is a group that bounds the node's memory and processes in the
	// place of the machine. Default: the machine.
	NodeCgroup string
	// PodsCgroup returns the cgroup of all pods, or "" while it is unknown. Default: none.
	PodsCgroup func() string

	// Pods returns the pods to measure, and TrackedPods those of them whose files are
	// counted continuously. Neither may block. See Locator. Default of TrackedPods: those
	// of Pods that have TrackDiskUsage.
	Pods, TrackedPods func() []Pod
	ContainerStats    Containers

	// NodeFS is a directory on the file system of the pods' directories.
	NodeFS string
	// ImageFS reports the file systems of images and writable layers. The answer is used
	// for ten minutes, and on while there is no newer one. Default: both are on the node's.
	ImageFS ImageFSReporter
	// Statfs reads a file system. Default: Statfs.
	Statfs func(path string) (runtime.FSUsage, error)

	// DiskUsagePeriod is how often Run counts a watched pod's files. Default: 1 min.
	DiskUsagePeriod time.Duration
	Logger          *slog.Logger // default: nothing is logged
}

// Provider measures. Its methods may be called from any goroutine.
type Provider struct {
	cfg    Config
	proc   *reader
	groups func() *groups

	counting chan struct{} // has one token, which the goroutine that counts files owns
	countCh  chan struct{} // one slot: Run has more to count

	mu        sync.Mutex                  // guards all below
	disks     map[types.UID]podDisk       // counted to the end
	partial   map[types.UID]podDisk       // what counts that are under way came to
	counts    map[types.UID]*podCount     // those counts; owned by the holder of the token of counting
	rates     map[string]runtime.CPUUsage // by group: the sample that rates are taken from
	imageDirs imageDirs
	asked     time.Time // last RefreshDiskUsage
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
	return &Provider{
		cfg: cfg, proc: newReader(cfg.Proc), counting: make(chan struct{}, 1), countCh: make(chan struct{}, 1),
		groups: sync.OnceValue(func() *groups { return openGroups(cfg.Cgroups) }),
		disks:  make(map[types.UID]podDisk), partial: make(map[types.UID]podDisk), counts: make(map[types.UID]*podCount), rates: make(map[string]runtime.CPUUsage),
	}, nil
}

// Usage measures the node and its pods. It does not count files but returns the last
// results of [Provider.RefreshDiskUsage] and [Provider.Run] or, if these are older than
// since or a running count has found more, the result of that count so far. What cannot
// be measured is left out; an error means that nothing could be measured.
func (p *Provider) Usage(ctx context.Context, since time.Time) (runtime.NodeUsage, error) {
	var u runtime.NodeUsage
	pods := p.cfg.Pods()
	containers, err := p.containers(ctx)
	errs := append(p.node(ctx, &u), err) // after what may take long
	u.Pods = make([]runtime.PodUsage, 0, len(pods))
	for i := range pods {
		u.Pods = append(u.Pods, p.pod(&u, &pods[i], containers[pods[i].Pod.UID], since))
	}
	p.forget(pods)
	return u, p.sum(&u, errs)
}

// NodeUsage measures the node without its pods. It takes some microseconds and calls the
// runtime at most every ten minutes, so it can be called often.
func (p *Provider) NodeUsage(ctx context.Context) (runtime.NodeUsage, error) {
	var u runtime.NodeUsage
	errs := p.node(ctx, &u)
	return u, p.sum(&u, errs)
}

// sum makes what went wrong an error if nothing at all could be measured.
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

// node fills the figures of the node itself.
func (p *Provider) node(ctx context.Context, u *runtime.NodeUsage) []error {
	now, g := time.Now(), p.groups()
	var errs []error
	note := func(err error) { errs = append(errs, err) }
	var err error
	if p.cfg.NodeCgroup == "" {
		u.Memory, err = machineMemory(p.proc, now)
		note(err)
		u.Pids, err = machinePids(p.proc, now)
		note(err)
	} else {
		u.Memory, err = g.boundOf(p.cfg.NodeCgroup, now)
		note(err)
		u.Pids, err = g.boundPidsOf(p.cfg.NodeCgroup, now)
		note(err)
		if u.Pids.Max == 0 {
			u.Pids, err = machinePids(p.proc, now)
			note(err)
		}
	}
	if all := p.allPods(); all != "" {
		u.PodsMemory, err = g.boundOf(all, now)
		note(err)
	}
	u.CPU, err = g.cpuOf(p.cfg.NodeCgroup, now)
	note(err)
	u.CPU = p.rate(p.cfg.NodeCgroup, u.CPU)
	p.pressures(u, now)
	note(p.fileSystems(ctx, u))
	return errs
}

func (p *Provider) allPods() string {
	if p.cfg.PodsCgroup == nil {
		return ""
	}
	return p.cfg.PodsCgroup()
}

// pressures reads the bound group's pressure where it has its own. A kernel
// without pressure stall information is no fault.
func (p *Provider) pressures(u *runtime.NodeUsage, now time.Time) {
	g := p.groups()
	for name, into := range map[string]*runtime.PSIStats{
		"memory": &u.MemoryPressure, "io": &u.IOPressure, "cpu": &u.CPUPressure,
	} {
		if p.cfg.NodeCgroup != "" && g.v2 {
			if own, err := g.pressure(join(p.cfg.NodeCgroup, name+".pressure"), now); err == nil {
				*into = own
				continue
			}
		}
		if all, err := p.proc.pressure(join("pressure", name), now); err == nil {
			*into = all
		}
	}
}

// runtimeWait is the timeout of runtime calls, so that a runtime that hangs does not
// prevent measurements of the node.
const runtimeWait = 5 * time.Second

// containers asks the runtime, and sorts what it says by pod.
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
		// The runtime's times are by the wall clock. How old a figure is must not
		// depend on what becomes of that.
		for _, at := range []*time.Time{&c.CPU.At, &c.Memory.At, &c.Rootfs.At, &c.Logs.At} {
			*at = monotonic.Past(*at, now)
		}
		out[c.PodUID] = append(out[c.PodUID], c)
	}
	return out, nil
}

// pod puts together what is known of one pod.
func (p *Provider) pod(node *runtime.NodeUsage, pod *Pod, containers []runtime.ContainerUsage, since time.Time) runtime.PodUsage {
	u := runtime.PodUsage{UID: pod.Pod.UID, Namespace: pod.Pod.Namespace, Name: pod.Pod.Name}
	if pod.Cgroup != "" {
		g, now := p.groups(), time.Now()
		// A group that is not there leaves its figures out.
		if m, err := g.memoryOf(pod.Cgroup, now); err == nil {
			u.Memory = m
		}
		if c, err := g.cpuOf(pod.Cgroup, now); err == nil {
			u.CPU = p.rate(pod.Cgroup, c)
		}
		if n, err := g.pidsOf(pod.Cgroup, now); err == nil {
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
		u.Containers = append(u.Containers, c)
	}
	for _, name := range slices.Sorted(maps.Keys(disk.logs)) {
		if logs := disk.logs[name]; !logged[name] {
			u.Containers = append(u.Containers, runtime.ContainerUsage{PodUID: pod.Pod.UID, Name: name, Logs: logs})
		}
	}
	return u
}

// podPressures reads how long the pod's own tasks wait, if its cgroup reports it. Pods are
// not read while no task on the node waits.
func (p *Provider) podPressures(node *runtime.NodeUsage, u *runtime.PodUsage, group string, now time.Time) {
	g := p.groups()
	if !g.v2 {
		return
	}
	for name, of := range map[string]struct {
		node runtime.PSIStats
		into *runtime.PSIStats
	}{"memory": {node.MemoryPressure, &u.MemoryPressure}, "io": {node.IOPressure, &u.IOPressure}} {
		if of.node.Some.Avg10 == 0 {
			continue
		}
		if own, err := g.pressure(join(group, name+".pressure"), now); err == nil {
			*of.into = own
		}
	}
}

// rate adds how much processor time was used a second since the sample before.
func (p *Provider) rate(group string, now runtime.CPUUsage) runtime.CPUUsage {
	if now.At.IsZero() {
		return now
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	before, ok := p.rates[group]
	took := now.At.Sub(before.At)
	switch {
	case !ok || now.UsageCoreNanoSeconds < before.UsageCoreNanoSeconds:
		p.rates[group] = now
	case took < minRate:
		now.UsageNanoCores, now.HasRate = before.UsageNanoCores, before.HasRate
	default:
		now.UsageNanoCores, now.HasRate = uint64(float64(now.UsageCoreNanoSeconds-before.UsageCoreNanoSeconds)/took.Seconds()), true
		p.rates[group] = now
	}
	return now
}

// minRate is the least time that a rate is taken over.
const minRate = time.Second

// forget drops what is kept of pods that are gone.
func (p *Provider) forget(pods []Pod) {
	keep := make(map[types.UID]bool, len(pods))
	groups := map[string]bool{p.cfg.NodeCgroup: true}
	for i := range pods {
		keep[pods[i].Pod.UID], groups[pods[i].Cgroup] = true, true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for uid := range p.disks {
		if !keep[uid] {
			delete(p.disks, uid)
		}
	}
	for uid := range p.partial { // their counts go with the next round
		if !keep[uid] {
			delete(p.partial, uid)
		}
	}
	for group := range p.rates {
		if !groups[group] {
			delete(p.rates, group)
		}
	}
	p.groups().kept.sweep()
}
