package volume

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// Count is how many volumes there are of a kind.
type Count struct {
	Desired int // of pods whose volumes are not being unmounted; as far as their kind is known
	Mounted int // mounted by this process for a pod, and not unmounted yet
}

// knownVolumes has the volumes for which Mount was called. The zero value is empty.
type knownVolumes struct {
	mu   sync.Mutex
	pods map[types.UID]*knownPod
}

type knownPod struct {
	unmounting bool
	volumes    map[string]*knownVolume
}

// knownVolume is a volume of a pod.
type knownVolume struct {
	kind        Kind
	block       bool // a device
	byDriver    bool
	requestedAt time.Time
	mounted     bool
}

// request notes that a volume is to be mounted, and returns it.
func (k *knownVolumes) request(uid types.UID, name string, at time.Time) *knownVolume {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.pods[uid]
	if p == nil {
		if k.pods == nil {
			k.pods = make(map[types.UID]*knownPod)
		}
		p = &knownPod{volumes: make(map[string]*knownVolume, 1)}
		k.pods[uid] = p
	}
	p.unmounting = false
	v := p.volumes[name]
	if v == nil {
		v = &knownVolume{requestedAt: at}
		p.volumes[name] = v
	}
	return v
}

// mount notes what has become of that, and returns how the volume was before.
func (k *knownVolumes) mount(v *knownVolume, r *request, block bool, err error) (before knownVolume) {
	k.mu.Lock()
	defer k.mu.Unlock()
	before = *v
	v.kind, v.block, v.byDriver, v.mounted = r.kind, block, r.byDriver, v.mounted || err == nil
	return before
}

// unmount notes that the volumes of a pod are being unmounted.
func (k *knownVolumes) unmount(uid types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if p := k.pods[uid]; p != nil {
		p.unmounting = true
	}
}

// unmounts returns how each volume of a pod that is mounted is unmounted, without those of drivers.
func (k *knownVolumes) unmounts(uid types.UID) (operations []Operation) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if p := k.pods[uid]; p != nil {
		for _, v := range p.volumes {
			switch {
			case !v.mounted || v.byDriver:
			case v.block:
				operations = append(operations, Operation{OperationUnmap, v.kind})
			default:
				operations = append(operations, Operation{OperationUnmount, v.kind})
			}
		}
	}
	return operations
}

// forget drops a pod without volumes.
func (k *knownVolumes) forget(uid types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.pods, uid)
}

// Counts returns how many volumes there are, by kind. It does not block.
func (m *Manager) Counts() map[Kind]Count {
	m.known.mu.Lock()
	defer m.known.mu.Unlock()
	counts := make(map[Kind]Count)
	for _, p := range m.known.pods {
		for _, v := range p.volumes {
			if v.kind == (Kind{}) {
				continue
			}
			n := counts[v.kind]
			if !p.unmounting {
				n.Desired++
			}
			if v.mounted {
				n.Mounted++
			}
			counts[v.kind] = n
		}
	}
	return counts
}

// mountVolume mounts a volume and reports that.
func (m *Manager) mountVolume(ctx context.Context, r *request) (runtime.Volume, error) {
	startTime := time.Now()
	v := m.known.request(r.pod.UID, r.vol.Name, startTime)
	r.kind = kindOf(r.vol)
	mounted, err := m.volume(ctx, r)
	if r.kind == (Kind{}) || err != nil && ctx.Err() != nil {
		return mounted, err
	}
	name, block := OperationMount, isBlock(r.pod, r.vol.Name)
	if block {
		name = OperationMap
	}
	before := m.known.mount(v, r, block, err)
	if err != nil || !before.mounted || contentPlugin(r.vol) != "" {
		m.cfg.Hooks.ended(Operation{name, r.kind}, startTime, err)
	}
	if err == nil && !before.mounted && m.cfg.Hooks.Mounted != nil {
		m.cfg.Hooks.Mounted(r.kind, time.Since(before.requestedAt))
	}
	return mounted, err
}
