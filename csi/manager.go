package csi

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/bootid"
	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/mounts"
	"github.com/sublet-dev/agent/internal/selinux"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/volume"
)

// Manager mounts the volumes of CSI drivers. Its methods may be called from any goroutine.
type Manager struct {
	cfg     Config
	paths   paths
	boot    string
	changed chan struct{} // one slot: drivers have come or gone

	mountsBelow func(dir string) ([]mounts.Point, error) // mounts.Below, except in tests
	updateWait  time.Duration                            // updateWait, except in tests
	shareDir    func(path string) error                  // selinux.ShareDir, except in tests

	notifying sync.Mutex // serialises calls of Config.Node; locked before mu

	loadMu sync.Mutex // held while records are read
	loaded bool

	mu      sync.Mutex // guards the fields below; never held during I/O
	clients map[string]*client
	volumes map[volumeID]*volumeState
	damaged map[damagedID]bool // volumes that pods may have
	unread  map[types.UID]bool // pods that may have any volume: their directories could not be read
}

var _ volume.Driver = (*Manager)(nil)

// volumeState is a volume on the node.
type volumeState struct {
	id    volumeID
	lock  chan struct{} // holds a value during an operation on the volume; one for all that share what is staged
	users map[types.UID]*user

	// Only the holder of lock uses these.
	staging    staging
	expanded   int64 // size that the driver was last given
	inUseSize  int64 // size to which the driver has not expanded it because it was in use
	failedSize int64 // size to which the driver could not expand it, with an error that ends that

	refs     int  // guarded by Manager.mu: operations that hold or wait for lock
	recorded bool // guarded by Manager.mu: its record is on disk, as it may be staged
	// attachable is whether what may be staged must not be detached. Guarded by Manager.mu.
	attachable bool
}

// staging is what this process knows of whether a volume is staged.
type staging int

const (
	uncertain       staging = iota // it may be, or be so in part: by a previous process, or after a call that failed
	stagedUnmounted                // its driver has staged it, and mounted nothing
	stagedMounted                  // its driver has staged it, and mounted it
)

// user is a pod that has a volume, or may have it: its record is on disk.
type user struct {
	entry     record
	published bool // in this boot
	unasked   bool // no driver was asked to publish it, nor by an earlier process

	stopUpdate context.CancelFunc // ends the last update; nil before the first one
	// The fields below are unknown until this process has mounted the volume.
	pod    *corev1.Pod
	volume string // name in the pod
	stats  Stats
}

// New returns a Manager. It checks cfg and does no I/O besides reading the id of the boot.
func New(cfg Config) (*Manager, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	return &Manager{
		cfg: cfg, paths: paths{cfg.Root}, boot: bootid.Read(), changed: make(chan struct{}, 1), mountsBelow: mounts.Below, updateWait: updateWait,
		shareDir: selinux.ShareDir,
		clients:  map[string]*client{}, volumes: map[volumeID]*volumeState{}, damaged: map[damagedID]bool{}, unread: map[types.UID]bool{},
	}, nil
}

// Sources implements volume.Driver.
func (m *Manager) Sources() []string { return []string{"csi"} }

// load reads the records of previous processes, once. Without them a volume that a pod has
// could be unstaged.
func (m *Manager) load() error {
	m.loadMu.Lock()
	defer m.loadMu.Unlock()
	if m.loaded {
		return nil
	}
	published, unread, err := m.paths.published()
	if err != nil {
		return fmt.Errorf("csi: read the volumes of pods: %w", err)
	}
	staged, unrecorded, err := m.paths.staged()
	if err != nil { // a damaged one is left to an administrator
		m.cfg.Logger.Error("reading staged volumes failed", logattr.Err(err))
	}
	for _, dir := range unrecorded { // nothing is staged yet by this process
		m.removeUnrecorded(dir)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range staged {
		s := m.state(f.id)
		s.recorded, s.attachable = true, f.entry.Attachable != ""
	}
	for _, f := range published {
		m.addFound(f)
	}
	for uid, err := range unread { // it waits, and no other pod does
		m.cfg.Logger.Error("volumes of a pod are unknown", logattr.PodUID(uid), logattr.Err(err))
		m.unread[uid] = true
	}
	m.loaded = true
	return nil
}

// addFound adds what is on disk for a volume of a pod. m.mu must be held.
func (m *Manager) addFound(f found) {
	if f.err != nil {
		m.cfg.Logger.Error("record of a volume is unusable", logattr.PodUID(f.uid), logattr.Err(f.err))
		m.damaged[damagedID{f.uid, f.id.name, f.id.block}] = true
		return
	}
	s := m.state(f.id)
	s.expanded = max(s.expanded, f.entry.size())
	s.attachable = s.attachable || f.entry.Attachable != ""
	s.users[f.uid] = &user{entry: f.entry, published: f.entry.Boot != "" && f.entry.Boot == m.boot}
}

// loadPod is load, and reads the volumes of a pod if that was not possible before.
func (m *Manager) loadPod(uid types.UID) error {
	if err := m.load(); err != nil {
		return err
	}
	m.loadMu.Lock()
	defer m.loadMu.Unlock()
	m.mu.Lock()
	unread := m.unread[uid]
	m.mu.Unlock()
	if !unread {
		return nil
	}
	list, err := m.paths.publishedFor(uid)
	if err != nil {
		return fmt.Errorf("csi: read the volumes of pod %s: %w", uid, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range list {
		m.addFound(f)
	}
	delete(m.unread, uid)
	return nil
}

// loadUnread is loadPod for all pods that need it.
func (m *Manager) loadUnread() {
	m.mu.Lock()
	uids := slices.Collect(maps.Keys(m.unread))
	m.mu.Unlock()
	for _, uid := range uids {
		if err := m.loadPod(uid); err != nil {
			m.cfg.Logger.Error("volumes of a pod are unknown", logattr.PodUID(uid), logattr.Err(err))
		}
	}
}

// state returns the state of a volume. m.mu must be held.
func (m *Manager) state(id volumeID) *volumeState {
	s := m.volumes[id]
	if s == nil {
		s = &volumeState{id: id, lock: m.lockOf(&id), users: map[types.UID]*user{}}
		m.volumes[id] = s
	}
	return s
}

// sharing iterates over the volumes that are staged where the given one is, which is one of them if it is known. m.mu must be held.
func (m *Manager) sharing(id *volumeID) iter.Seq[*volumeState] {
	return func(yield func(*volumeState) bool) {
		for other, s := range m.volumes {
			if other.sharesStaging(id) && !yield(s) {
				return
			}
		}
	}
}

// lockOf returns the lock of a volume that is not known yet. m.mu must be held.
func (m *Manager) lockOf(id *volumeID) chan struct{} {
	for s := range m.sharing(id) {
		return s.lock
	}
	return make(chan struct{}, 1)
}

// acquire waits until no other operation on the volume is under way, for as long as a call
// may take. release must be called.
func (m *Manager) acquire(ctx context.Context, id volumeID) (s *volumeState, release func(), err error) {
	m.mu.Lock()
	s = m.state(id)
	s.refs++
	m.mu.Unlock()
	drop := func() { m.drop(s) }
	timer := time.NewTimer(m.cfg.CallTimeout)
	defer timer.Stop()
	select {
	case s.lock <- struct{}{}:
		return s, func() { <-s.lock; drop() }, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-timer.C:
		err = fmt.Errorf("CSI driver %s: another operation on volume %s takes longer than %s", id.driver, id.name, m.cfg.CallTimeout)
	}
	drop()
	return nil, nil, err
}

// tryAcquire is acquire for a volume that a pod has, without waiting: s is nil while another operation is under way.
func (m *Manager) tryAcquire(id *volumeID, uid types.UID) (s *volumeState, release func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s = m.volumes[*id]
	if s == nil || s.users[uid] == nil {
		return nil, nil
	}
	select {
	case s.lock <- struct{}{}:
		s.refs++
		return s, func() { <-s.lock; m.drop(s) }
	default:
		return nil, nil
	}
}

// drop ends an operation on a volume.
func (m *Manager) drop(s *volumeState) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.refs--; s.refs == 0 && len(s.users) == 0 && !s.recorded {
		delete(m.volumes, s.id)
	}
}

// warnSlow records an event if an operation for a pod takes long. The operation is over
// when stop is called.
func (m *Manager) warnSlow(pod *corev1.Pod, volumeName, driver, method string) (stop func() bool) {
	startTime := time.Now()
	return time.AfterFunc(m.cfg.SlowCallAge, func() {
		m.record(pod, corev1.EventTypeWarning, "VolumeDriverSlow",
			fmt.Sprintf("volume %q waits for CSI driver %s, which has not answered %s for %s", volumeName, driver, method, time.Since(startTime).Round(time.Second)))
	}).Stop
}

func (m *Manager) record(pod *corev1.Pod, eventType, reason, message string) {
	if pod == nil || m.cfg.Recorder == nil {
		return
	}
	m.cfg.Recorder.Record(podspec.NewEvent(pod, eventType, reason, message, time.Now()))
}

// VolumesInUse returns the volumes that pods have and an attacher must not detach: a part
// of the status of the node. It returns nil while it does not know those of a previous process.
func (m *Manager) VolumesInUse() []corev1.UniqueVolumeName {
	if err := m.load(); err != nil {
		m.cfg.Logger.Error("volumes in use are unknown", logattr.Err(err))
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.unread) > 0 {
		return nil
	}
	return m.inUse()
}

// KnownVolumesInUse returns those that VolumesInUse would, as far as they are known: while the directory
// of a pod cannot be read, there may be more.
func (m *Manager) KnownVolumesInUse() []corev1.UniqueVolumeName {
	if err := m.load(); err != nil {
		return nil // VolumesInUse logs it
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.inUse()
}

// Run unstages volumes that no pod has any more, and asks drivers for the health of volumes,
// until ctx is done. It returns nil then. On a node with SELinux it labels the directory in which drivers have their sockets for
// all containers.
func (m *Manager) Run(ctx context.Context) error {
	if err := m.shareDrivers(); err != nil {
		m.cfg.Logger.Warn("plugin directory not labelled for containers", slog.String("path", m.paths.plugins()), logattr.Err(err))
	}
	ticker := time.NewTicker(m.cfg.HealthPeriod)
	defer ticker.Stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer m.closeAll()
	inFlight := make(map[volumeID]chan struct{}) // only of this goroutine
	for {
		if err := m.load(); err != nil {
			m.cfg.Logger.Error("reconstruction of volumes failed", logattr.Err(err))
		} else {
			m.loadUnread()
			m.maintain(ctx, &wg, inFlight)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-m.changed:
		case <-ticker.C:
		}
	}
}

// shareDrivers makes the directory in which drivers have their sockets, for containers that SELinux confines.
func (m *Manager) shareDrivers() error {
	if err := os.MkdirAll(m.paths.plugins(), 0o750); err != nil {
		return err
	}
	return m.shareDir(m.paths.plugins())
}

// maintain looks after each volume in a goroutine of its own, as drivers may hang.
func (m *Manager) maintain(ctx context.Context, wg *sync.WaitGroup, inFlight map[volumeID]chan struct{}) {
	m.mu.Lock()
	ids := make([]volumeID, 0, len(m.volumes))
	for id := range m.volumes {
		ids = append(ids, id)
	}
	m.mu.Unlock()
	for id, done := range inFlight {
		select {
		case <-done:
			delete(inFlight, id)
		default:
		}
	}
	for _, id := range ids {
		if inFlight[id] != nil {
			continue
		}
		done := make(chan struct{})
		inFlight[id] = done
		wg.Go(func() {
			defer close(done)
			if err := errors.Join(m.unstageOrphan(ctx, id), m.measure(ctx, id)); err != nil && ctx.Err() == nil {
				m.cfg.Logger.Warn("volume maintenance failed", slog.String("volume", id.name), slog.String("driver", id.driver), logattr.Err(err))
			}
		})
	}
}

// closeAll closes the connections at the end of the process.
func (m *Manager) closeAll() {
	m.mu.Lock()
	clients := m.clients
	m.clients = map[string]*client{}
	m.mu.Unlock()
	for _, c := range clients {
		for ; c != nil; c = c.previous {
			m.close(c)
		}
	}
}
