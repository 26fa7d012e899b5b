package devices

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/internal/statefile"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/topology"
)

// Device is one device of a resource.
type Device struct {
	ID      string // unique within the resource
	Healthy bool   // an unhealthy device is not allocated
	// NUMANodes are the nodes that the device is near to. Empty: all alike.
	NUMANodes []int64
}

// Plugin provides the devices of one resource. Its methods may block for long; each call
// delays only the pod that it is for. A panic fails that call.
type Plugin interface {
	// Allocate returns what a container needs to use the devices. It is called once per
	// container and resource, before the container is created.
	Allocate(ctx context.Context, ids []string) (runtime.Injection, error)
}

// PreStarter is implemented by plugins that prepare devices before each start of a
// container. While such a plugin is gone, containers with its devices do not start.
type PreStarter interface {
	PreStart(ctx context.Context, ids []string) error
}

// Chooser is implemented by plugins that know which devices go well together.
type Chooser interface {
	// Choose returns n of the available devices, those to include among them. The result
	// is a wish: devices that are not available are ignored, and missing ones are added.
	Choose(ctx context.Context, available, include []string, n int) ([]string, error)
}

// Request describes a request for devices that a plugin has answered.
type Request struct {
	Pod       *corev1.Pod // must not be changed
	Container string
	Resource  corev1.ResourceName
	IDs       []string // of the devices that were asked for
	Duration  time.Duration
	Err       error // nil: allocated
}

// Hooks observe a Manager. They are called without locks held and must not block. A panic
// in one is logged.
type Hooks struct {
	// Allocated is called after a plugin has answered a request for devices.
	Allocated func(Request)
	// StateLost is called if the file with the allocations could not be read. The
	// damaged file was renamed.
	StateLost func(err error)
}

// guarded returns hooks that recover panics.
func (h Hooks) guarded(log *slog.Logger) Hooks {
	return Hooks{
		Allocated: safe.Hook1(log, "Allocated", h.Allocated),
		StateLost: safe.Hook1(log, "StateLost", h.StateLost),
	}
}

// Config describes a Manager.
type Config struct {
	// StateFile is the absolute path of the file with the allocations. Required. Its
	// directory must exist when the Manager is used.
	StateFile string
	// PluginGracePeriod is how long the devices of a plugin that is gone still count as
	// capacity, though they are not healthy: a plugin that is being upgraded comes back
	// within it. Default: 5 minutes, as in the kubelet.
	PluginGracePeriod time.Duration
	// AllocateTimeout bounds each call of Plugin.Allocate and Chooser.Choose. Default: 1 minute.
	AllocateTimeout time.Duration
	// PreStartTimeout bounds each call of PreStarter.PreStart. Default: 30 seconds, as
	// the device plugin API says.
	PreStartTimeout time.Duration
	// NUMANodes are those of the machine, for Hints. Default: there are no hints.
	NUMANodes topology.Set
	Hooks     Hooks
	Logger    *slog.Logger // default: discard
}

// Errors that Inject wraps.
var (
	// ErrNoPlugin means that no plugin provides the resource at the moment.
	ErrNoPlugin = errors.New("no device plugin provides the resource")
	// ErrNotEnough means that too few healthy devices are free.
	ErrNotEnough = errors.New("too few healthy devices are free")
	// ErrStateLost means that running pods have devices, but not which ones.
	ErrStateLost = errors.New("it is not known which devices running pods have")
)

// Manager allocates devices. Its methods may be called from any goroutine.
type Manager struct {
	cfg Config

	file *statefile.File[savedState]

	mu        sync.Mutex
	lostAt    time.Time // set if the state file was damaged
	adoptedAt time.Time // set after that: when all pods that run count as adopted
	isNew     bool      // there was no state file
	resources map[corev1.ResourceName]*resourceState
	pods      map[types.UID]podState
	listeners []func(uid types.UID)
}

// resourceState is what is known of a resource.
type resourceState struct {
	plugin          Plugin // nil: gone
	canSkipPreStart bool   // the plugin is no PreStarter, or was none; false while none has been seen
	disconnectedAt  time.Time
	devices         map[string]Device
	unknown         map[types.UID]string // running pods whose devices are not known, and their names
	stored          bool                 // in the state file, or to be saved
}

// hasMissing reports whether the plugin does not list one of the devices any more. While
// there is no plugin, none is missing.
func (r *resourceState) hasMissing(ids []string) bool {
	return r != nil && r.plugin != nil && slices.ContainsFunc(ids, func(id string) bool { return r.devices[id].ID == "" })
}

// hasUnhealthy reports whether one of the devices is missing or unhealthy. While there is
// no plugin, none is.
func (r *resourceState) hasUnhealthy(ids []string) bool {
	return r != nil && r.plugin != nil && slices.ContainsFunc(ids, func(id string) bool { return !r.devices[id].Healthy })
}

// podState has the allocations of a pod by container and resource.
type podState map[string]map[corev1.ResourceName]allocation

// allocation is what one container has of one resource.
type allocation struct {
	IDs []string `json:"ids"`
	// Injection is nil while the plugin has not answered yet. It is empty, and IDs too, for a
	// container that was created when no plugin had ever provided the resource.
	Injection *runtime.Injection `json:"injection,omitempty"`
	// NUMANodes are those to which devices were near when they were allocated, by id: for reports while the plugin is away.
	NUMANodes map[string][]int64 `json:"numaNodes,omitempty"`
	// near are the NUMA nodes from which Reserve has set devices aside.
	near topology.Set
}

// isNone reports whether the container was created without devices.
func (a allocation) isNone() bool { return a.Injection != nil && len(a.IDs) == 0 }

// New returns a Manager. It checks cfg and does no I/O.
func New(cfg Config) (*Manager, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	cfg.Hooks = cfg.Hooks.guarded(cfg.Logger)
	m := &Manager{cfg: cfg, resources: map[corev1.ResourceName]*resourceState{}, pods: map[types.UID]podState{}}
	m.file = m.newFile()
	return m, nil
}

// Update sets the devices of a resource and the plugin that provides them. The devices
// replace those of an earlier call; ids of running containers stay allocated also if they
// are no longer among them. A plugin that is replaced is not called any more.
//
// The resource is stored, so that pods wait for the plugin after a restart. If that fails, it
// is logged, and tried again with the next change. An error is one of the arguments.
func (m *Manager) Update(resource corev1.ResourceName, plugin Plugin, list []Device) error {
	if plugin == nil {
		return errors.New("devices: Update: plugin required")
	}
	if !IsExtendedResource(resource) {
		return fmt.Errorf("devices: Update: %q must be the name of an extended resource: a domain, which is not kubernetes.io, a slash, and a name", resource)
	}
	if len(list) > maxDevices {
		return fmt.Errorf("devices: Update: %s: %d devices, at most %d", resource, len(list), maxDevices)
	}
	byID := make(map[string]Device, len(list))
	for _, d := range list {
		if d.ID == "" {
			return fmt.Errorf("devices: Update: %s: a device has no id", resource)
		}
		if _, ok := byID[d.ID]; ok {
			return fmt.Errorf("devices: Update: %s: two devices have the id %q", resource, d.ID)
		}
		d.NUMANodes = slices.Clone(d.NUMANodes)
		byID[d.ID] = d
	}
	err := m.load()
	loaded := err == nil
	_, isPreStarter := plugin.(PreStarter)
	m.change(resource, func(r *resourceState) {
		r.plugin, r.canSkipPreStart, r.disconnectedAt, r.devices = plugin, !isPreStarter, time.Time{}, byID
		if loaded && !r.stored {
			r.stored = true
			m.file.Changed()
		}
	})
	if loaded { // what was not read is not overwritten
		err = m.save()
	}
	if err != nil {
		m.cfg.Logger.Warn("resource not stored", resourceAttr(resource), logattr.Err(err))
	}
	return nil
}

// Disconnect marks the devices of a resource as unhealthy because their plugin is gone.
// It does nothing if another plugin provides the resource by now.
func (m *Manager) Disconnect(resource corev1.ResourceName, plugin Plugin) {
	m.change(resource, func(r *resourceState) {
		if r.plugin != plugin {
			return
		}
		r.plugin, r.disconnectedAt = nil, time.Now()
		for id, d := range r.devices {
			d.Healthy = false
			r.devices[id] = d
		}
	})
}

// health returns the health of a device for the status of a pod. It is unknown while the plugin is
// gone. One that its plugin does not list any more is unhealthy.
func (r *resourceState) health(id string) corev1.ResourceHealthStatus {
	switch {
	case r == nil || r.plugin == nil:
		return corev1.ResourceHealthStatusUnknown
	case r.devices[id].Healthy:
		return corev1.ResourceHealthStatusHealthy
	}
	return corev1.ResourceHealthStatusUnhealthy
}

// change applies f to a resource and reports the pods whose devices changed their health.
func (m *Manager) change(resource corev1.ResourceName, f func(*resourceState)) {
	m.mu.Lock()
	r := m.resources[resource]
	if r == nil {
		r = &resourceState{}
		m.resources[resource] = r
	}
	before := *r
	before.devices = maps.Clone(r.devices)
	f(r)
	var affected []types.UID
	for uid, pod := range m.pods {
		if pod.anyID(resource, func(id string) bool { return before.health(id) != r.health(id) }) {
			affected = append(affected, uid)
		}
	}
	listeners := slices.Clone(m.listeners)
	m.mu.Unlock()
	slices.Sort(affected)
	for _, uid := range affected {
		for _, f := range listeners {
			safe.Do(m.cfg.Logger, "notify of the health of devices", func() { f(uid) })
		}
	}
}

// NotifyHealth implements podsync.ResourceProvider.
func (m *Manager) NotifyHealth(f func(uid types.UID)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listeners = append(m.listeners, f)
}

// anyID reports whether a device of a resource that the pod has meets the condition.
func (p podState) anyID(resource corev1.ResourceName, condition func(id string) bool) bool {
	for _, byResource := range p {
		if slices.ContainsFunc(byResource[resource].IDs, condition) {
			return true
		}
	}
	return false
}

// Capacity returns the number of devices of each resource, unhealthy ones included. It is
// 0 when the plugin has been gone for the grace period.
func (m *Manager) Capacity() corev1.ResourceList {
	return m.count(true, func(Device) bool { return true })
}

// Allocatable returns the number of healthy devices of each resource, allocated or not.
// Resources whose plugin has been gone for the grace period are left out.
func (m *Manager) Allocatable() corev1.ResourceList {
	return m.count(false, func(d Device) bool { return d.Healthy })
}

func (m *Manager) count(all bool, counts func(Device) bool) corev1.ResourceList {
	m.mu.Lock()
	defer m.mu.Unlock()
	total := corev1.ResourceList{}
	for name, r := range m.resources {
		if r.plugin == nil && time.Since(r.disconnectedAt) > m.cfg.PluginGracePeriod {
			if all {
				total[name] = quantity(0)
			}
			continue
		}
		n := int64(0)
		for _, d := range r.devices {
			if counts(d) {
				n++
			}
		}
		total[name] = quantity(n)
	}
	return total
}
