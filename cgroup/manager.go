package cgroup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// Config is the configuration of a Manager. Every field is optional.
type Config struct {
	// Root is the mount point of cgroups: the directory with one hierarchy per
	// controller on v1, the only hierarchy on v2. Default: /sys/fs/cgroup.
	Root string
	// Parent is the cgroup that contains the cgroup kubepods, as a clean absolute path
	// below the hierarchies (the kubelet's --cgroup-root). With the systemd driver all its
	// elements are slices. Default: "/".
	Parent string
	// Driver must be the driver of the runtime. Default: the result of RuntimeDriver,
	// or Cgroupfs without one. With Systemd the cgroups are slices that systemd creates and
	// removes, if it owns those of the machine and they are of v2.
	Driver Driver
	// RuntimeDriver returns the driver of the runtime. If the runtime cannot report it,
	// it returns "" or an error that wraps runtime.ErrUnsupported, and the driver is that
	// of the machine: Systemd where it owns the cgroups and Parent can be a slice, else
	// Cgroupfs. It is called by Ensure, without a lock, until it succeeds, and not at all
	// if Driver is set.
	RuntimeDriver func(ctx context.Context) (string, error)
	// PodPidsLimit limits the processes of each pod. Default: no limit.
	PodPidsLimit int64
	// MemoryQoS protects and throttles the memory of pods, and of their classes: on v2. Its
	// containers are the runtime's. Default: none.
	MemoryQoS podspec.MemoryQoS
	// Allocatable limits all pods together: cpu by weight, memory in bytes, and pid (a
	// number of processes). Default: no limit.
	Allocatable corev1.ResourceList
	// NoCPUQuota leaves the CPU limits of pods unenforced.
	NoCPUQuota bool
	// CPUQuotaPeriod is the period of CPU limits, from 1 ms to 1 s. It must be that of the containers, see
	// cri.Node: on v1 a container with a longer share of a shorter period is not created. Default: 100 ms.
	CPUQuotaPeriod time.Duration
	// HasExclusiveCPUs reports whether a container of the pod has CPUs for itself. Such a pod
	// gets no CPU limit, which would stop that container while its CPUs are idle; the other
	// containers have limits of their own. It must not block. Default: no pod has.
	HasExclusiveCPUs func(pod *corev1.Pod) bool
	// Owner returns the mark of the cgroups that this agent creates. It is stored in an
	// extended attribute, by which a new process recognizes them. Cgroups with another mark
	// or none, for example a kubelet's below the same Parent, are not removed, and their
	// limits are not changed. Owner is called by Ensure, PodUIDs and Remove and must not
	// block. Default: no marks; a process recognizes only the cgroups that it has created.
	Owner    func() string
	NodeName string   // of events
	Recorder Recorder // of whether Allocatable is enforced. Default: events are dropped
	Hooks    Hooks
	Logger   *slog.Logger // Default: discard
}

// Needs returns what the default of Driver depends on.
func (Config) Needs() []runtime.Need {
	driver := runtime.NeedFor[runtime.CgroupDriverReporter]("asking for the cgroup driver")
	driver.Optional = true
	return []runtime.Need{driver}
}

// RuntimeDriverOf returns the function for Config.RuntimeDriver: that of the runtime, or nil
// if it cannot report its driver.
func RuntimeDriverOf(rt any) func(ctx context.Context) (string, error) {
	if r, ok := runtime.Capability[runtime.CgroupDriverReporter](rt); ok {
		return r.CgroupDriver
	}
	return nil
}

const defaultRoot = "/sys/fs/cgroup"

// Manager creates and removes the cgroups of pods. Its methods may be called from any
// goroutine, but Ensure and Remove not concurrently for the same pod.
type Manager struct {
	cfg Config

	// tiers serializes writes to the cgroups above pods, so that a weight computed from an
	// older set of pods never overwrites a newer one.
	tiers      sync.Mutex
	lastLimits map[string]limits // guarded by tiers: last written, by cgroup
	recorded   string            // guarded by tiers: the last event

	mu         sync.Mutex                      // guards all below
	tree       tree                            // nil until writable cgroups are found
	units      units                           // nil: systemd does not own the cgroups
	unenforced []string                        // limits that cannot be enforced, with the reason
	pods       map[types.UID]podGroup          // changed only by put
	requested  map[corev1.PodQOSClass]requests // of all pods of a class
	removed    map[types.UID]struct{}          // pods whose cgroups were removed since the last PodUIDs

	names      names
	namesFinal bool // the driver is known
}

// podGroup is the cgroup of one pod.
type podGroup struct {
	qos   corev1.PodQOSClass
	group string
	requests
	limits limits
	done   bool // the limits were written
}

// requests are what pods request.
type requests struct {
	milli  int64 // CPU in millicores
	memory int64 // bytes
}

// New returns a Manager. It reports all errors in cfg at once and does no I/O.
func New(cfg Config) (*Manager, error) {
	if cfg.Root == "" {
		cfg.Root = defaultRoot
	}
	if cfg.Parent == "" {
		cfg.Parent = "/"
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Recorder = safe.Events(cfg.Logger, cfg.Recorder)
	cfg.Hooks = cfg.Hooks.guarded(cfg.Logger)
	var errs []error
	if !filepath.IsAbs(cfg.Root) {
		errs = append(errs, fmt.Errorf("Config.Root: %q must be an absolute path", cfg.Root))
	}
	if cfg.Driver != "" && cfg.Driver != Cgroupfs && cfg.Driver != Systemd {
		errs = append(errs, fmt.Errorf("Config.Driver: %q must be %s or %s", cfg.Driver, Cgroupfs, Systemd))
	}
	if p := cfg.CPUQuotaPeriod; p != 0 && (p < time.Millisecond || p > time.Second) {
		errs = append(errs, fmt.Errorf("Config.CPUQuotaPeriod: must be from 1ms to 1s, not %v", p))
	}
	if cfg.PodPidsLimit < 0 {
		errs = append(errs, fmt.Errorf("Config.PodPidsLimit: must not be negative: %d", cfg.PodPidsLimit))
	}
	if cfg.Driver != "" || cfg.RuntimeDriver == nil {
		cfg.RuntimeDriver = nil
		if cfg.Driver == "" {
			cfg.Driver = Cgroupfs
		}
		errs = append(errs, checkParent(cfg.Driver, cfg.Parent))
	}
	if err := cfg.MemoryQoS.Check(); err != nil {
		errs = append(errs, fmt.Errorf("Config.%w", err))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("cgroup: %w", err)
	}
	return &Manager{
		cfg: cfg, names: names{cfg.Driver, cfg.Parent}, namesFinal: cfg.RuntimeDriver == nil,
		pods: make(map[types.UID]podGroup), lastLimits: make(map[string]limits), requested: make(map[corev1.PodQOSClass]requests),
		removed: make(map[types.UID]struct{}),
	}, nil
}

// Ensure creates the cgroup of a pod, or updates its limits to those of the spec. It
// returns the cgroup in the form of LinuxPodSandboxConfig.cgroup_parent in the CRI: that of
// PodCgroup, with both drivers. Without writable cgroups it returns "" and no error. The error
// wraps ErrNotOwner if the cgroup belongs to another owner. An error with a cgroup says that
// its memory limit stays higher than that of the spec, because more is in use; everything else
// is set, and further calls try again. It blocks for some file operations, and for the call of
// Config.RuntimeDriver.
func (m *Manager) Ensure(ctx context.Context, pod *corev1.Pod) (parent string, err error) {
	return m.ensure(ctx, pod, false)
}

// Raise is Ensure for a pod whose containers are about to be resized: limits that are to be lower
// stay until Ensure is called after that, so that the pod is never bound by less than what its
// containers still have. An error with a cgroup says that Ensure would not lower the memory limit.
func (m *Manager) Raise(ctx context.Context, pod *corev1.Pod) (parent string, err error) {
	return m.ensure(ctx, pod, true)
}

func (m *Manager) ensure(ctx context.Context, pod *corev1.Pod, raise bool) (parent string, err error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if err := m.findDriver(ctx); err != nil {
		return "", err
	}
	qos, names := podspec.QOS(pod), m.named()
	group, err := names.pod(qos, pod.UID)
	if err != nil {
		return "", err
	}
	t := m.opened()
	if t == nil {
		return "", nil
	}
	if taken, err := m.taken(t, group); err != nil || taken {
		return "", fmt.Errorf("set up cgroup %s: %w", group, errors.Join(err, ErrNotOwner))
	}
	asked := podspec.Requests(pod)
	now := podGroup{
		qos: qos, group: group, requests: requests{milliCPU(asked), memoryBytes(asked)},
		limits: m.cfg.podLimits(pod, t.pageSizes()),
	}
	if f := m.cfg.HasExclusiveCPUs; m.cfg.NoCPUQuota || f != nil && f(pod) {
		now.limits.quota = 0
	}
	had := m.put(pod.UID, now)
	if err := m.setTiers(t); err != nil {
		return "", err
	}
	if !had.done || had.group != group || !had.limits.equal(now.limits) || !exists(t, group) {
		set, later, err := m.bound(t, group, now.limits, had.limits, raise)
		if err != nil {
			err = fmt.Errorf("set up cgroup %s: %w", group, err)
		}
		switch {
		case later:
			now.limits = set
			m.put(pod.UID, now)
			return group, err
		case err != nil:
			return "", err
		}
	}
	now.done = true
	m.put(pod.UID, now)
	return group, nil
}

// bound creates the cgroup of a pod or updates its limits. set are those that it has now, of which
// before were set last. later reports that one of l is not set yet: raise leaves all that would be
// lowered for later, and the kernel of v1 rejects some. err also says that memory is in use.
func (m *Manager) bound(t tree, group string, l, before limits, raise bool) (set limits, later bool, err error) {
	had, desired, op := exists(t, group), l.memory, OperationUpdate
	if !had {
		op = OperationCreate
	}
	startTime := time.Now()
	defer func() { m.changed(op, startTime, err) }()
	var inUse error
	switch {
	case had && raise:
		l, later, inUse = raised(t, group, l, before)
	case had:
		if l.memory, inUse = memoryLimit(t, group, desired); inUse != nil {
			l.qos.high = before.qos.high // or all of it would be throttled at once
		}
	}
	set, rejected, err := setPossible(t, group, l)
	if had && (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EBUSY)) {
		rejected, err = err, nil
	}
	switch {
	case err != nil:
		return set, false, err
	case rejected != nil:
		m.cfg.Logger.Debug("cgroup limit deferred", slog.String("cgroup", group), logattr.Err(rejected))
		inUse = errors.Join(inUse, rejectedLimit(t, desired, rejected))
	}
	m.mark(t, group)
	return set, later || rejected != nil || inUse != nil, inUse
}

// setTiers updates the cgroups above pods: that of all pods has the limits of
// Config.Allocatable, that of burstable pods the weight of their requests, and that of
// best-effort pods the minimum weight. What is reserved of memory for pods must be reserved
// for the cgroups above them too. A limit on memory that is in use is tried again in further calls.
func (m *Manager) setTiers(t tree) error {
	m.tiers.Lock()
	defer m.tiers.Unlock()
	for _, q := range tiers() {
		l := limits{shares: minShares}
		switch q {
		case corev1.PodQOSBurstable:
			burstable := m.requestsOf(q)
			l.shares = sharesOf(burstable.milli)
			l.qos.minimum, l.qos.low = m.cfg.MemoryQoS.Reserved(q, burstable.memory)
		case corev1.PodQOSBestEffort:
		default:
			l = nodeLimits(m.cfg.Allocatable)
			l.qos = m.allReserved()
		}
		group := m.named().tier(q)
		had, ok := m.lastLimits[group]
		ok = ok && exists(t, group)
		if ok && had.equal(l) || !m.mayLimit(t, group) {
			continue
		}
		had.shares = l.shares // changes with every pod
		if ok && had.equal(l) {
			if err := t.weigh(group, l); err != nil {
				return fmt.Errorf("set the weight of cgroup %s: %w", group, err)
			}
		} else {
			set, inUse, err := setTier(t, group, l)
			m.recordAllocatable(q, errors.Join(err, inUse))
			if err != nil {
				return fmt.Errorf("set up cgroup %s: %w", group, err)
			}
			m.mark(t, group)
			l = set
		}
		m.lastLimits[group] = l
	}
	return nil
}

// allReserved returns what is reserved for all pods together: memory that is reclaimed last
// is a part of what is never reclaimed of them, as in the kubelet.
func (m *Manager) allReserved() memoryQoS {
	guaranteed, _ := m.cfg.MemoryQoS.Reserved(corev1.PodQOSGuaranteed, m.requestsOf(corev1.PodQOSGuaranteed).memory)
	_, burstable := m.cfg.MemoryQoS.Reserved(corev1.PodQOSBurstable, m.requestsOf(corev1.PodQOSBurstable).memory)
	return memoryQoS{minimum: guaranteed + burstable, low: burstable}
}

// requestsOf returns the sum of the requests of all pods of a class.
func (m *Manager) requestsOf(q corev1.PodQOSClass) requests {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.requested[q]
}

// put stores the cgroup of a pod; the zero podGroup removes it. It returns the previous
// one.
func (m *Manager) put(uid types.UID, now podGroup) (had podGroup) {
	m.mu.Lock()
	defer m.mu.Unlock()
	had = m.pods[uid]
	before := m.requested[had.qos]
	m.requested[had.qos] = requests{before.milli - had.milli, before.memory - had.memory}
	before = m.requested[now.qos]
	m.requested[now.qos] = requests{before.milli + now.milli, before.memory + now.memory}
	m.pods[uid] = now
	delete(m.removed, uid)
	if now.group == "" {
		delete(m.pods, uid)
		if len(m.removed) >= maxRemoved {
			clear(m.removed) // a program may never call PodUIDs
		}
		m.removed[uid] = struct{}{}
	}
	return had
}

// PodUIDs returns the pods whose cgroups exist and were created by this process or have
// the mark of Config.Owner, sorted. It reads the cgroup file system. Unreadable
// directories are errors, with which the others are returned nevertheless.
func (m *Manager) PodUIDs() ([]types.UID, error) {
	t := m.opened()
	if t == nil {
		return nil, nil
	}
	var errs []error
	names := m.named()
	found := make(map[types.UID]struct{})
	m.forgetRemoved() // one that is found may have been made since
	for _, q := range tiers() {
		for _, dir := range t.dirs(names.tier(q)) {
			entries, err := os.ReadDir(dir)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				errs = append(errs, err)
			}
			for _, e := range entries {
				uid, ok := names.uid(q, e.Name())
				if ok && e.IsDir() && (m.made(uid) || m.marked(filepath.Join(dir, e.Name()))) {
					found[uid] = struct{}{}
				}
			}
		}
	}
	out := make([]types.UID, 0, len(found))
	for uid := range found {
		out = append(out, uid)
	}
	slices.Sort(out)
	return out, errors.Join(errs...)
}

// PodCgroup returns the cgroup of a pod as a path below the root of each hierarchy, with a
// leading slash, whether or not it exists. It is "" for a UID that cannot be part of a
// path. It does no I/O.
func (m *Manager) PodCgroup(pod *corev1.Pod) string {
	group, err := m.named().pod(podspec.QOS(pod), pod.UID)
	if err != nil {
		return ""
	}
	return group
}

// PodsCgroup returns the cgroup of all pods, in the form of PodCgroup.
func (m *Manager) PodsCgroup() string { return m.named().tier(corev1.PodQOSGuaranteed) }
