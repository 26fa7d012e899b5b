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

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// Config is the configuration of a Manager. Every field is optional.
type Config struct {
	// Root is the mount point of cgroups: the directory with one hierarchy per
	// controller on v1, the only hierarchy on v2. Default: /sys/fs/cgroup.
	Root string
	// Parent is the cgroup that contains all cgroups of pods, as a path relative to the
	// hierarchies. Default: "/". With the systemd driver it consists of slices.
	Parent string
	// Driver must be the driver of the runtime. Default: the result of RuntimeDriver,
	// or Cgroupfs without one.
	Driver Driver
	// RuntimeDriver returns the driver of the runtime. If the runtime cannot report it,
	// it returns "" or an error that wraps runtime.ErrUnsupported. It is called without a lock for the first pods until it succeeds, and
	// not at all if Driver is set.
	RuntimeDriver func(ctx context.Context) (string, error)
	// PodPidsLimit limits the processes of each pod. Default: no limit.
	PodPidsLimit int64
	// Allocatable limits all pods together: cpu by weight, memory in bytes, pid in
	// processes. Default: no limit.
	Allocatable corev1.ResourceList
	// Owner returns a mark for the groups that are made, by which a new process of
	// the same agent knows them. Groups that bear another mark or none, another
	// agent's or a kubelet's below the same parent, are left alone: those of pods,
	// and those of all pods and of QoS classes, which keep their limits and weights.
	// It is called from Ensure, Known and Remove, and must not block.
	// Default: no mark, each process knows only its own.
	Owner  func() string
	Logger *slog.Logger // default: nothing is logged
}

// Manager makes and removes the groups of pods. All its methods may be called
// from any goroutine.
type Manager struct {
	cfg Config

	// tiers orders the writes to groups that pods share, so that the weight of
	// an older set of pods never overwrites a newer one's.
	tiers      sync.Mutex
	lastLimits map[string]limits // guarded by tiers: what each of them was last given

	mu   sync.Mutex             // guards all below
	tree tree                   // nil until it was looked for, or while there is none
	why  []string               // what cannot be enforced
	pods map[types.UID]podGroup // changed by put alone
	// burst is what all burstable pods request, in thousandths of a CPU.
	burst int64

	names names
	asked bool // names are final
}

// podGroup is what was set up for one pod.
type podGroup struct {
	qos    corev1.PodQOSClass
	group  string
	milli  int64 // cpu request
	limits limits
	done   bool // it was written
}

// tree writes the cgroups of one cgroup version.
type tree interface {
	// set makes the group with its limits, or changes them.
	set(group string, l limits) error
	// dirs returns the directories of the group in all hierarchies that it can be in,
	// at least one.
	dirs(group string) []string
	// pageSizes returns the huge page sizes that can be limited.
	pageSizes() []string
}

// New returns a Manager. It reports all errors in cfg at once and does no I/O.
func New(cfg Config) (*Manager, error) {
	if cfg.Root == "" {
		cfg.Root = "/sys/fs/cgroup"
	}
	if cfg.Parent == "" {
		cfg.Parent = "/"
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	var errs []error
	if !filepath.IsAbs(cfg.Root) {
		errs = append(errs, fmt.Errorf("Config.Root: %q must be an absolute path", cfg.Root))
	}
	if cfg.Driver != "" && cfg.Driver != Cgroupfs && cfg.Driver != Systemd {
		errs = append(errs, fmt.Errorf("Config.Driver: %q must be %s or %s", cfg.Driver, Cgroupfs, Systemd))
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
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("cgroup: %w", err)
	}
	return &Manager{
		cfg: cfg, names: names{cfg.Driver, cfg.Parent}, asked: cfg.RuntimeDriver == nil,
		pods: make(map[types.UID]podGroup), lastLimits: make(map[string]limits),
	}, nil
}

// Unenforced says in words what cannot be enforced on this node, and why. It is
// empty when everything can.
func (m *Manager) Unenforced() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.find()
	return slices.Clone(m.why)
}

// find looks for the node's cgroups, again as long as there are none. m.mu is
// held.
func (m *Manager) find() {
	if m.tree != nil {
		return
	}
	m.why = nil
	t, missing, err := open(m.cfg.Root, m.cfg.Parent)
	if err != nil {
		m.why = []string{fmt.Sprintf("no limits and no QoS weights for pods: %v", err)}
		return
	}
	m.tree, m.why = t, missing
	if m.names.driver == Systemd {
		m.why = append(m.why, "slices are made without systemd, which may reset their limits when it reloads")
	}
}

// opened returns the node's cgroups, or nil while there are none to write.
func (m *Manager) opened() tree {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.find()
	return m.tree
}

// open finds out which version is mounted at root and whether groups can be
// made there. missing are controllers that are not to be had.
func open(root, parent string) (t tree, missing []string, err error) {
	if _, err := os.Stat(root); err != nil {
		return nil, nil, fmt.Errorf("no cgroups: %w", err)
	}
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
		return openV2(root, parent)
	}
	return openV1(root, parent)
}

// Ensure makes the pod's group, or brings it to what the pod's spec asks for,
// and returns it in the form that a runtime takes as cgroup parent. Where there
// are no cgroups that can be written it returns "" and no error.
func (m *Manager) Ensure(ctx context.Context, pod *corev1.Pod) (parent string, err error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if err := m.ask(ctx); err != nil {
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
	now := podGroup{
		qos: qos, group: group, milli: milliCPU(podspec.Requests(pod)),
		limits: podLimits(pod, m.cfg.PodPidsLimit, t.pageSizes()),
	}
	had := m.put(pod.UID, now)
	if err := m.setTiers(t); err != nil {
		return "", err
	}
	if !had.done || had.group != group || !had.limits.equal(now.limits) || !exists(t, group) {
		later, err := m.bound(t, group, now.limits)
		if err != nil {
			return "", fmt.Errorf("set up cgroup %s: %w", group, err)
		}
		if later {
			return names.forRuntime(group), nil
		}
	}
	now.done = true
	m.put(pod.UID, now)
	return names.forRuntime(group), nil
}

// bound creates the cgroup of a pod or updates its limits. later reports that the kernel
// rejected them for now: on v1 a cgroup cannot have a lower CPU quota than its children,
// so a pod's quota is lowered after those of its containers.
func (m *Manager) bound(t tree, group string, l limits) (later bool, err error) {
	had := exists(t, group)
	err = t.set(group, l)
	if had && (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EBUSY)) {
		m.cfg.Logger.Debug("cgroup limit decrease deferred", slog.String("cgroup", group), logattr.Err(err))
		return true, nil
	}
	if err == nil {
		m.mark(t, group)
	}
	return false, err
}

// ask gets the driver of the runtime, once.
func (m *Manager) ask(ctx context.Context) error {
	m.mu.Lock()
	asked := m.asked
	m.mu.Unlock()
	if asked {
		return nil
	}
	reported, err := m.cfg.RuntimeDriver(ctx)
	driver := Driver(reported)
	switch {
	case err != nil && !errors.Is(err, runtime.ErrUnsupported):
		return fmt.Errorf("get cgroup driver of the runtime: %w", err)
	case err != nil || reported == "":
		driver = Cgroupfs
	case driver != Cgroupfs && driver != Systemd:
		return fmt.Errorf("the runtime's cgroup driver %q is neither %s nor %s", reported, Cgroupfs, Systemd)
	}
	if err := checkParent(driver, m.cfg.Parent); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.asked {
		m.names, m.asked = names{driver, m.cfg.Parent}, true
	}
	return nil
}

// named returns how groups are named, as far as is known.
func (m *Manager) named() names {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.names
}

// setTiers brings the groups above pods to what they are due: a burstable one
// weighs what its pods request, best effort weighs least.
func (m *Manager) setTiers(t tree) error {
	m.tiers.Lock()
	defer m.tiers.Unlock()
	for _, q := range tiers() {
		l := limits{shares: minShares}
		switch q {
		case corev1.PodQOSBurstable:
			l.shares = sharesOf(m.burstable())
		case corev1.PodQOSBestEffort:
		default:
			l = nodeLimits(m.cfg.Allocatable)
		}
		group := m.named().tier(q)
		if had, ok := m.lastLimits[group]; ok && had.equal(l) && exists(t, group) {
			continue
		}
		if !m.mayLimit(t, group) {
			continue
		}
		if err := t.set(group, l); err != nil {
			return fmt.Errorf("set up cgroup %s: %w", group, err)
		}
		m.mark(t, group)
		m.lastLimits[group] = l
	}
	return nil
}

// burstable returns the cpu that all burstable pods request.
func (m *Manager) burstable() (milli int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.burst
}

// put keeps what a pod's group is; the zero podGroup forgets it. It returns what
// was kept before.
func (m *Manager) put(uid types.UID, now podGroup) (had podGroup) {
	m.mu.Lock()
	defer m.mu.Unlock()
	had = m.pods[uid]
	if had.qos == corev1.PodQOSBurstable {
		m.burst -= had.milli
	}
	if now.qos == corev1.PodQOSBurstable {
		m.burst += now.milli
	}
	m.pods[uid] = now
	if now.group == "" {
		delete(m.pods, uid)
	}
	return had
}

// exists reports whether the group is there.
func exists(t tree, group string) bool {
	return isDir(t.dirs(group)[0])
}

// PodUIDs returns the pods whose groups this process made, and those that bear
// its Owner's mark, as far as they are there.
func (m *Manager) PodUIDs() ([]types.UID, error) {
	t := m.opened()
	if t == nil {
		return nil, nil
	}
	var errs []error
	names := m.named()
	found := make(map[types.UID]struct{})
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

// PodCgroup returns the pod's group as a path below the root of each hierarchy, as
// readers of its figures want it. It is "" for a UID that cannot name one.
func (m *Manager) PodCgroup(pod *corev1.Pod) string {
	group, err := m.named().pod(podspec.QOS(pod), pod.UID)
	if err != nil {
		return ""
	}
	return group
}

// PodsCgroup returns the group of all pods, as Group does.
func (m *Manager) PodsCgroup() string { return m.named().tier(corev1.PodQOSGuaranteed) }
