package devices

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/topology"
)

// Inject returns what the container needs to use the devices that it requests. It
// allocates them, if the container has none yet, and stores the allocation before it
// returns. It blocks for as long as the plugins take; calls for the same pod must not be
// concurrent. Of a resource that no plugin has ever provided the container gets nothing, also
// if a plugin comes while it runs; only when it is created again it gets devices.
//
// A container that does not run gets other devices if it requests another number, if its plugin
// does not list all of its own any more, or if one of them is unhealthy and enough others are free.
//
// running says that the container runs already. No devices are allocated for it: if the
// allocation is not known because the state was lost, the error wraps ErrStateLost, and
// nothing of the resource is allocated until the pod has ended. Nothing at all is allocated in
// the minute after the first request that could have been met, with the same error: pods that run
// have been adopted by then.
func (m *Manager) Inject(ctx context.Context, pod *corev1.Pod, container *corev1.Container, running bool) (runtime.Injection, error) {
	if err := m.load(); err != nil {
		return runtime.Injection{}, err
	}
	var total runtime.Injection
	for _, name := range slices.Sorted(maps.Keys(container.Resources.Limits)) {
		q := container.Resources.Limits[name]
		if podspec.IsFromClaim(pod, container.Name, name) {
			continue
		}
		n, ok := m.requested(name, q.Value(), running)
		var err error
		switch {
		case ok:
			var injection runtime.Injection
			if injection, err = m.inject(ctx, pod, container.Name, name, n, running); err == nil {
				total, err = total.Merge(injection)
			}
		case n > 0 && !running:
			err = m.recordNone(pod.UID, container.Name, name)
		}
		if err != nil {
			return runtime.Injection{}, fmt.Errorf("devices of container %s: %s: %w", container.Name, name, err)
		}
	}
	return total, nil
}

// requested returns how many devices of a resource are requested, 0 if it is no extended one,
// and whether a plugin has provided it.
func (m *Manager) requested(name corev1.ResourceName, n int64, running bool) (int, bool) {
	if n <= 0 || !IsExtendedResource(name) {
		return 0, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	_, known := m.resources[name]
	if !known && !m.lostAt.IsZero() && (running || time.Since(m.lostAt) < m.cfg.PluginGracePeriod) {
		// Which resources there are was lost with the state. Plugins come back.
		known = true
		if running {
			m.resources[name] = &resourceState{}
		}
	}
	return int(min(n, maxDevices+1)), known
}

// inject returns the injection for one resource of a container.
func (m *Manager) inject(ctx context.Context, pod *corev1.Pod, container string, name corev1.ResourceName, n int, running bool) (runtime.Injection, error) {
	m.mu.Lock()
	r, a := m.resources[name], m.pods[pod.UID][container][name]
	if a.isNone() && !running {
		a = allocation{} // it is created again, with devices
	}
	suffices := a.Injection != nil && len(a.IDs) == n // the spec of the pod may have changed since
	if a.Injection != nil && running || suffices && !r.hasUnhealthy(a.IDs) {
		m.mu.Unlock()
		return *a.Injection, nil
	}
	if running {
		m.unknown(pod, name)
		m.mu.Unlock()
		return runtime.Injection{}, ErrStateLost
	}
	hasMissing := r.hasMissing(a.IDs)
	m.mu.Unlock()
	ids, plugin, err := m.choose(ctx, pod, container, name, n)
	if err != nil {
		if suffices && !hasMissing {
			return *a.Injection, nil // there are no better ones, and they may recover
		}
		return runtime.Injection{}, err
	}
	if a.Injection != nil {
		m.cfg.Logger.Info("devices released", logattr.Pod(pod), logattr.PodUID(pod.UID), slog.String("containerName", container), resourceAttr(name), slog.Any("devices", a.IDs))
	}
	return m.allocate(ctx, pod, container, name, ids, plugin)
}

// unknown records that a running pod has devices that are not known. m.mu is locked.
func (m *Manager) unknown(pod *corev1.Pod, name corev1.ResourceName) {
	r := m.resources[name]
	if r.unknown == nil {
		r.unknown = map[types.UID]string{}
	}
	if _, ok := r.unknown[pod.UID]; !ok {
		r.unknown[pod.UID] = pod.Namespace + "/" + pod.Name
		m.cfg.Logger.Warn("devices of a running pod are not known; none are allocated until it has ended", logattr.Pod(pod), logattr.PodUID(pod.UID), resourceAttr(name))
	}
}

// choose reserves n devices for a container and returns their ids, sorted.
func (m *Manager) choose(ctx context.Context, pod *corev1.Pod, container string, name corev1.ResourceName, n int) ([]string, Plugin, error) {
	m.mu.Lock()
	c, err := m.candidates(pod, container, name, n)
	if err == nil {
		err = m.checkAdopted()
	}
	m.mu.Unlock()
	if err != nil {
		return nil, nil, err
	}
	include := c.first[:min(n, len(c.first))]
	wish := include
	if chooser, ok := c.plugin.(Chooser); ok && len(c.reusable)+len(c.free) > n {
		ctx, cancel := context.WithTimeout(ctx, m.cfg.AllocateTimeout)
		defer cancel()
		var chosen []string
		err := safe.Call(m.cfg.Logger, "choose devices of "+string(name), func() (err error) {
			chosen, err = chooser.Choose(ctx, slices.Concat(c.reusable, c.free), include, n)
			return err
		})
		if err != nil {
			// The devices are all alike to those who cannot ask.
			m.cfg.Logger.Warn("device plugin expressed no preference", logattr.Pod(pod), resourceAttr(name), logattr.Err(err))
			chosen = nil
		}
		wish = slices.Concat(wish, chosen)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	// Choose may have taken long, and others have been served meanwhile.
	if c, err = m.candidates(pod, container, name, n); err != nil {
		return nil, nil, err
	}
	ids := pick(wish, slices.Concat(c.reusable, c.free), n)
	if len(ids) < n {
		return nil, nil, fmt.Errorf("%w: %d requested, %d found", ErrNotEnough, n, len(ids))
	}
	m.record(pod.UID, container, name, allocation{IDs: ids, near: c.near})
	return ids, c.plugin, nil
}

// pick returns n of the available ids, those of wish first, sorted.
func pick(wish, available []string, n int) []string {
	out := make([]string, 0, n)
	for _, id := range slices.Concat(wish, available) {
		if len(out) < n && slices.Contains(available, id) && !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// candidates are the devices that a container can get.
type candidates struct {
	plugin   Plugin
	reusable []string     // of init containers of the pod, which run before
	free     []string     // not allocated or its own, without those of reusable; sorted
	first    []string     // of both, those that it gets in any case, as far as it needs them
	near     topology.Set // the NUMA nodes that they were chosen by, if any
}

// candidates returns what a container can get. It is an error if that is too little.
// m.mu is locked.
func (m *Manager) candidates(pod *corev1.Pod, container string, name corev1.ResourceName, n int) (candidates, error) {
	r := m.resources[name]
	if r == nil || r.plugin == nil {
		return candidates{}, fmt.Errorf("%w: is the device plugin running?", ErrNoPlugin)
	}
	if len(r.unknown) > 0 {
		names := slices.Sorted(maps.Values(r.unknown))
		return candidates{}, fmt.Errorf("%w: delete or restart the pods that have some: %s", ErrStateLost, strings.Join(names, ", "))
	}
	c := candidates{plugin: r.plugin, reusable: m.reusable(pod, container, name)}
	c.reusable = slices.DeleteFunc(c.reusable, func(id string) bool { return !r.devices[id].Healthy })
	own := m.pods[pod.UID][container][name] // set aside for this container, or to be replaced
	c.free = slices.DeleteFunc(m.freeBeside(name, own.IDs), func(id string) bool { return slices.Contains(c.reusable, id) })
	c.first = c.reusable
	if have := len(c.reusable) + len(c.free); have < n {
		return candidates{}, fmt.Errorf("%w: %d requested, %d free of %d", ErrNotEnough, n, have, len(r.devices))
	}
	return c.prefer(r, own.near, n), nil
}

// freeBeside returns the healthy devices of a resource that no pod has, and the healthy ones of own. m.mu is locked.
func (m *Manager) freeBeside(name corev1.ResourceName, own []string) (free []string) {
	used := m.used(name)
	for _, id := range own {
		delete(used, id)
	}
	all := m.resources[name].devices
	for _, id := range slices.Sorted(maps.Keys(all)) {
		if all[id].Healthy && !used[id] {
			free = append(free, id)
		}
	}
	return free
}

// used returns the ids of a resource that a pod has. m.mu is locked.
func (m *Manager) used(name corev1.ResourceName) map[string]bool {
	used := map[string]bool{}
	for _, p := range m.pods {
		for _, byResource := range p {
			for _, id := range byResource[name].IDs {
				used[id] = true
			}
		}
	}
	return used
}

// reusable returns the devices of init containers that end before the container starts,
// and that no other container has taken over, except after it. Sidecars keep theirs. m.mu is locked.
func (m *Manager) reusable(pod *corev1.Pod, container string, name corev1.ResourceName) []string {
	var ended []string
	kept := map[string]bool{}
	isInit := map[string]bool{}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.Name == container {
			break
		}
		isInit[c.Name] = !podspec.IsSidecar(c)
	}
	state := m.pods[pod.UID]
	for _, owner := range slices.Sorted(maps.Keys(state)) {
		for _, id := range state[owner][name].IDs {
			switch {
			case owner == container:
			case isInit[owner]:
				ended = append(ended, id)
			default:
				kept[id] = true
			}
		}
	}
	slices.Sort(ended)
	own := state[container][name].IDs
	return slices.DeleteFunc(slices.Compact(ended), func(id string) bool { return kept[id] && !slices.Contains(own, id) })
}

// allocate asks the plugin for the injection and stores the allocation. The devices are
// free again if it fails.
func (m *Manager) allocate(ctx context.Context, pod *corev1.Pod, container string, name corev1.ResourceName, ids []string, plugin Plugin) (runtime.Injection, error) {
	start := time.Now()
	bounded, cancel := context.WithTimeout(ctx, m.cfg.AllocateTimeout)
	var injection runtime.Injection
	err := safe.Call(m.cfg.Logger, "allocate devices of "+string(name), func() (err error) {
		injection, err = plugin.Allocate(bounded, ids)
		return err
	})
	cancel()
	if err == nil {
		m.mu.Lock()
		m.record(pod.UID, container, name, allocation{IDs: ids, Injection: &injection, NUMANodes: m.resources[name].placesOf(ids), near: m.pods[pod.UID][container][name].near})
		m.mu.Unlock()
		err = m.save()
	}
	if err != nil {
		m.mu.Lock()
		m.cancel(pod.UID, container, name)
		m.mu.Unlock()
	}
	if m.cfg.Hooks.Allocated != nil {
		m.cfg.Hooks.Allocated(Request{pod, container, name, slices.Clone(ids), time.Since(start), err})
	}
	if err != nil {
		return runtime.Injection{}, fmt.Errorf("allocate %s: %w", strings.Join(ids, ", "), err)
	}
	m.cfg.Logger.Info("devices allocated", logattr.Pod(pod), logattr.PodUID(pod.UID), slog.String("containerName", container), resourceAttr(name), slog.Any("devices", ids))
	return injection, nil
}

// record stores an allocation. m.mu is locked.
func (m *Manager) record(uid types.UID, container string, name corev1.ResourceName, a allocation) {
	if m.pods[uid] == nil {
		m.pods[uid] = podState{}
	}
	if m.pods[uid][container] == nil {
		m.pods[uid][container] = map[corev1.ResourceName]allocation{}
	}
	if a.Injection != nil || m.pods[uid][container][name].Injection != nil {
		m.file.Changed()
	}
	m.pods[uid][container][name] = a
}

// recordNone stores that a container is created without devices of a resource, as no plugin
// has provided it: what it has is known when one does.
func (m *Manager) recordNone(uid types.UID, container string, name corev1.ResourceName) error {
	m.mu.Lock()
	if m.pods[uid][container][name].Injection == nil {
		m.record(uid, container, name, allocation{Injection: &runtime.Injection{}})
	}
	m.mu.Unlock()
	return m.save()
}

// cancel undoes an allocation that failed. What was set aside before stays so. m.mu is locked.
func (m *Manager) cancel(uid types.UID, container string, name corev1.ResourceName) {
	if a := m.pods[uid][container][name]; a.near.Len() > 0 {
		m.record(uid, container, name, allocation{IDs: a.IDs, near: a.near})
		return
	}
	m.forget(uid, container, name)
}

// forget removes an allocation. m.mu is locked.
func (m *Manager) forget(uid types.UID, container string, name corev1.ResourceName) {
	delete(m.pods[uid][container], name)
	if len(m.pods[uid][container]) == 0 {
		delete(m.pods[uid], container)
	}
	if len(m.pods[uid]) == 0 {
		delete(m.pods, uid)
	}
}

// PreStart prepares the devices of a container for a start of it. It blocks for as long as
// the plugins take. The error wraps ErrNoPlugin if a plugin is gone that prepares devices,
// or that has not been seen since the agent started.
func (m *Manager) PreStart(ctx context.Context, pod *corev1.Pod, container string) error {
	type call struct {
		name    corev1.ResourceName
		ids     []string
		starter PreStarter // nil: gone
	}
	m.mu.Lock()
	var calls []call
	for name, a := range m.pods[pod.UID][container] {
		if r := m.resources[name]; r != nil && !r.canSkipPreStart && !a.isNone() {
			starter, _ := r.plugin.(PreStarter)
			calls = append(calls, call{name, slices.Clone(a.IDs), starter})
		}
	}
	m.mu.Unlock()
	slices.SortFunc(calls, func(a, b call) int { return strings.Compare(string(a.name), string(b.name)) })
	for _, c := range calls {
		if c.starter == nil {
			return fmt.Errorf("devices of container %s: %s: %w: is the device plugin running?", container, c.name, ErrNoPlugin)
		}
		bounded, cancel := context.WithTimeout(ctx, m.cfg.PreStartTimeout)
		err := safe.Call(m.cfg.Logger, "prepare devices of "+string(c.name), func() error { return c.starter.PreStart(bounded, c.ids) })
		cancel()
		if err != nil {
			return fmt.Errorf("devices of container %s: %s: prepare %s: %w", container, c.name, strings.Join(c.ids, ", "), err)
		}
	}
	return nil
}

// Release frees the devices of a pod whose containers have all ended. That this cannot be stored is
// no error: the pod may be what fills the disk, and has to end. The next change stores it, or the
// next process, which still counts the devices as allocated, finds the pod in PodUIDs.
func (m *Manager) Release(_ context.Context, uid types.UID) error {
	if err := m.load(); err != nil {
		return err
	}
	m.mu.Lock()
	if _, ok := m.pods[uid]; ok {
		delete(m.pods, uid)
		m.file.Changed()
	}
	for _, r := range m.resources {
		delete(r.unknown, uid)
	}
	m.mu.Unlock()
	if err := m.save(); err != nil {
		m.cfg.Logger.Warn("release of devices not stored", logattr.PodUID(uid), logattr.Err(err))
	}
	return nil
}

// PodUIDs implements podsync.StoredReleaser: it returns the pods that have devices or were created without.
func (m *Manager) PodUIDs() ([]types.UID, error) {
	if err := m.load(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.pods)), nil
}

func resourceAttr(name corev1.ResourceName) slog.Attr { return slog.String("resource", string(name)) }
