package cpumanager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/notify"
	"github.com/sublet-dev/agent/internal/statefile"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/topology"
)

// Errors of Inject and Reserve.
var (
	// ErrNotEnough means that too few CPUs are free.
	ErrNotEnough = errors.New("too few exclusive CPUs are free")
	// ErrNotRestored means that it is not known which CPUs are in use.
	ErrNotRestored = errors.New("it is not known yet which CPUs running containers have")
)

// Manager assigns CPUs. Its methods may be called from any goroutine.
type Manager struct {
	cfg      Config
	reserved map[int]amounts // Config.ReservedMemory

	changed  chan struct{} // one slot: Run is to compare again
	restored chan struct{} // closed when it is known which CPUs are in use
	file     *statefile.File[savedState]

	mu       sync.Mutex
	topology topology.Topology
	pods     map[types.UID]podState
}

// podState has the assignments of a pod by container.
type podState map[string]assignment

// assignment is what one container has.
type assignment struct {
	CPUs topology.Set `json:"cpus"`
	// MemoryNodes are the NUMA nodes of its memory and huge pages, of which it requests so much.
	// Empty: all of them.
	MemoryNodes topology.Set `json:"memoryNodes,omitzero"`
	Memory      int64        `json:"memory,omitempty"`
	HugePages   amounts      `json:"hugePages,omitempty"`
	lifetime                 // of the container that has the memory
	// reserved means that no container was created with it yet. previous is what the
	// container has meanwhile, if it is being resized.
	reserved bool
	previous *assignment
	unmet    int // CPUs that it could not be resized to, which was logged
}

// effective returns what the container has: nothing of what is only reserved.
func (a assignment) effective() assignment {
	switch {
	case !a.reserved:
		return a
	case a.previous != nil:
		return *a.previous
	}
	return assignment{}
}

// all returns the CPUs that the container has, and those that it is to get.
func (a assignment) all() topology.Set {
	if a.previous == nil {
		return a.CPUs
	}
	return a.CPUs.Union(a.previous.CPUs)
}

// isFor reports whether the assignment is one of n CPUs that are there, with NUMA nodes that are there.
// m.mu is locked.
func (m *Manager) isFor(a assignment, n int) bool {
	return a.CPUs.Len() == n && a.CPUs.IsSubset(m.topology.Online()) && a.MemoryNodes.IsSubset(m.nodesWithMemory())
}

// New returns a Manager. It checks cfg, and reads the topology of the node: it is an error if
// a reserved CPU does not exist, or reserved memory of a NUMA node. If all CPUs are reserved, no container gets CPUs for itself.
func New(cfg Config) (*Manager, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	cfg.Hooks = cfg.Hooks.guarded(cfg.Logger)
	t, err := cfg.Topology()
	if err != nil {
		return nil, fmt.Errorf("cpumanager: %w", err)
	}
	online := t.Online()
	if missing := cfg.Reserved.Minus(online); missing.Len() > 0 {
		return nil, fmt.Errorf("cpumanager: Config.Reserved: CPUs %s are not online; there are %s", missing, online)
	}
	reserved, err := reservedMemory(cfg.ReservedMemory, t)
	if err != nil {
		return nil, err
	}
	m := &Manager{
		cfg: cfg, reserved: reserved, topology: t, pods: map[types.UID]podState{},
		changed: make(chan struct{}, 1), restored: make(chan struct{}),
	}
	m.file = m.newFile()
	return m, nil
}

// Inject implements podsync.Injector. A container that gets exclusive CPUs waits until it is
// known which are in use.
func (m *Manager) Inject(ctx context.Context, pod *corev1.Pod, container *corev1.Container, running bool) (runtime.Injection, error) {
	if err := m.load(); err != nil {
		return runtime.Injection{}, err
	}
	var err error
	if n := ExclusiveCPUs(pod, container); running {
		err = m.resize(pod, container, n)
	} else if n > 0 {
		err = m.assign(ctx, pod, container, n)
	}
	if err != nil {
		return runtime.Injection{}, fmt.Errorf("CPUs of container %s: %w", container.Name, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return runtime.Injection{Cpuset: m.cpuset(pod.UID, container.Name)}, nil
}

// assign gives a container n CPUs of its own, and stores that.
func (m *Manager) assign(ctx context.Context, pod *corev1.Pod, container *corev1.Container, n int) error {
	if err := m.waitRestored(ctx); err != nil {
		return err
	}
	m.readHugePages(pod, container)
	m.mu.Lock()
	_, isReserved := m.pods[pod.UID][container.Name]
	err := m.reserve(pod, container, n, m.topology.Nodes())
	m.mu.Unlock()
	if !isReserved {
		m.requested(pod, container, n, err)
	}
	if err != nil {
		return err
	}
	return m.confirm(pod, container.Name)
}

// resize gives a running container what was reserved for it, or reserves it again if that was
// lost, and frees those of its CPUs that are more than n, which no admitter decides about. One
// that runs on the shared CPUs stays there, and one that cannot get n keeps what it has.
func (m *Manager) resize(pod *corev1.Pod, container *corev1.Container, n int) error {
	var err error
	known := false // err, from the call before
	m.mu.Lock()
	switch a, _ := m.current(pod, container, n); {
	case a.CPUs.Len() == 0:
	case a.CPUs.Len() == n:
		a.unmet = 0
		if !m.confines(a, container) {
			m.pinMemory(pod, container, &a)
			m.file.Changed()
		}
		m.pods[pod.UID][container.Name] = a
	case n > 0:
		if err = m.reserve(pod, container, n, m.topology.Nodes()); err != nil {
			known, a.unmet = a.unmet == n, n
			m.pods[pod.UID][container.Name] = a
		}
	default:
		delete(m.pods[pod.UID], container.Name)
		m.file.Changed()
		m.cfg.Logger.Info("exclusive cpus released", logattr.Pod(pod), logattr.PodUID(pod.UID), slog.String("containerName", container.Name), slog.String("cpus", a.CPUs.String()))
	}
	m.mu.Unlock()
	if err == nil {
		return m.confirm(pod, container.Name)
	}
	if !known {
		m.cfg.Logger.Warn("exclusive cpus not resized", logattr.Pod(pod), logattr.PodUID(pod.UID), slog.String("containerName", container.Name), logattr.Err(err))
	}
	// An error would hide what else it runs with from the comparison with what it would get now.
	return nil
}

// confirm stores an assignment that was only reserved.
func (m *Manager) confirm(pod *corev1.Pod, container string) error {
	m.mu.Lock()
	a, ok := m.pods[pod.UID][container]
	isNew := false
	if ok && a.reserved {
		isNew = !a.CPUs.Equal(a.effective().CPUs) // otherwise only its memory is resized
		a.reserved, a.previous = false, nil
		m.pods[pod.UID][container] = a
		m.file.Changed()
	}
	unsaved := m.file.Unsaved()
	m.mu.Unlock()
	if unsaved {
		notify.Send(m.changed)
		if err := m.save(); err != nil {
			return err
		}
	}
	if !isNew {
		return nil
	}
	m.cfg.Logger.Info("exclusive cpus assigned", logattr.Pod(pod), logattr.PodUID(pod.UID), slog.String("containerName", container), slog.String("cpus", a.CPUs.String()))
	if m.cfg.Hooks.Assigned != nil {
		m.cfg.Hooks.Assigned(pod.UID, container, a.CPUs)
	}
	return nil
}

func (m *Manager) waitRestored(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.RestoreTimeout)
	defer cancel()
	select {
	case <-m.restored:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: is the runtime ready?", ErrNotRestored)
	}
}

func (m *Manager) isRestored() bool {
	select {
	case <-m.restored:
		return true
	default:
		return false
	}
}

// exclusive returns the CPUs that any container has for itself. m.mu is locked.
func (m *Manager) exclusive() topology.Set {
	var ids []int // a union for each container would be slow, and this is asked for each that shares
	for _, p := range m.pods {
		for _, a := range p {
			ids = append(ids, a.all().IDs()...)
		}
	}
	return topology.NewSet(ids...)
}

// free returns the CPUs that can become exclusive. m.mu is locked.
func (m *Manager) free() topology.Set {
	return m.topology.Online().Minus(m.cfg.Reserved).Minus(m.exclusive())
}

// shared returns the CPUs of the containers without their own. It is not empty. m.mu is
// locked.
func (m *Manager) shared() topology.Set {
	online := m.topology.Online()
	left := online.Minus(m.exclusive())
	if cpus := left.Minus(m.cfg.Reserved); cpus.Len() > 0 && m.cfg.Options.StrictCPUReservation {
		return cpus
	}
	if left.Len() > 0 {
		return left
	}
	if cpus := online.Intersect(m.cfg.Reserved); cpus.Len() > 0 {
		return cpus // they became reserved while a container had them
	}
	return online
}

// cpuset returns where a container may run. m.mu is locked.
func (m *Manager) cpuset(uid types.UID, container string) runtime.Cpuset {
	a := m.pods[uid][container].effective()
	cpus := a.CPUs.Intersect(m.topology.Online())
	if cpus.Len() == 0 {
		return runtime.Cpuset{CPUs: m.shared().String()}
	}
	return runtime.Cpuset{CPUs: cpus.String(), MemoryNodes: a.MemoryNodes.Intersect(m.nodesWithMemory()).String()}
}

// Release implements podsync.Releaser: it frees the CPUs of a pod whose containers have all
// ended. That this cannot be stored is no error: the pod may be what fills the disk, and has to end.
// The next change stores it, or the next process finds the pod in PodUIDs.
func (m *Manager) Release(_ context.Context, uid types.UID) error {
	if err := m.load(); err != nil {
		return err
	}
	m.mu.Lock()
	if _, ok := m.pods[uid]; ok {
		delete(m.pods, uid)
		m.file.Changed()
	}
	unsaved := m.file.Unsaved()
	m.mu.Unlock()
	if !unsaved {
		return nil
	}
	notify.Send(m.changed)
	if err := m.save(); err != nil {
		m.cfg.Logger.Warn("release of exclusive cpus not stored", logattr.PodUID(uid), logattr.Err(err))
	}
	return nil
}

// HasExclusiveCPUs implements podsync.CPUAssigner.
func (m *Manager) HasExclusiveCPUs(pod *corev1.Pod, container *corev1.Container) bool {
	if ExclusiveCPUs(pod, container) == 0 || m.load() != nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pods[pod.UID][container.Name].effective().CPUs.Intersect(m.topology.Online()).Len() > 0
}

// PodHasExclusiveCPUs implements podsync.CPUAssigner.
func (m *Manager) PodHasExclusiveCPUs(pod *corev1.Pod) bool {
	for c := range podspec.Containers(pod) {
		if ExclusiveCPUs(pod, c) > 0 {
			return true
		}
	}
	return false
}
