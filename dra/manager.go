package dra

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/statefile"
	"github.com/sublet-dev/agent/runtime"
)

// Manager has the claims of pods prepared. Its methods may be called from any goroutine.
type Manager struct {
	cfg Config

	file *statefile.File[savedState]

	notifying sync.Mutex // serialises calls of Config.Node; locked before mu

	mu      sync.Mutex
	drivers map[string][]*driver
	claims  map[types.UID]*claimState

	listeners []func(uid types.UID) // of NotifyHealth
}

// New returns a Manager. It checks cfg and does no I/O.
func New(cfg Config) (*Manager, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	m := &Manager{cfg: cfg, drivers: map[string][]*driver{}, claims: map[types.UID]*claimState{}}
	m.file = m.newFile()
	return m, nil
}

// Inject implements podsync.Injector: it returns the CDI devices of the claims that the
// container uses. All claims of the pod are prepared before its first container is created, in
// which it blocks for as long as the drivers take. For a container that runs it returns what it
// has got.
func (m *Manager) Inject(ctx context.Context, pod *corev1.Pod, container *corev1.Container, running bool) (runtime.Injection, error) {
	claims := podClaims(pod)
	if len(claims) == 0 {
		return runtime.Injection{}, nil
	}
	if err := m.load(); err != nil {
		return runtime.Injection{}, err
	}
	if !running && !m.isPrepared(pod, claims) {
		startTime := time.Now()
		err := m.preparePod(ctx, pod, claims)
		if m.cfg.Hooks.PodPrepared != nil {
			m.cfg.Hooks.PodPrepared(pod.UID, time.Since(startTime), err)
		}
		if err != nil {
			return runtime.Injection{}, err
		}
	}
	var out runtime.Injection
	for _, used := range containerClaims(pod, container) {
		ids, err := m.cdiDevices(pod, used)
		if err != nil {
			return runtime.Injection{}, fmt.Errorf("%s of container %s: %w", describe(used.Name), container.Name, err)
		}
		if out, err = out.Merge(runtime.Injection{CDIDevices: ids}); err != nil {
			return runtime.Injection{}, err
		}
	}
	return out, nil
}

// isPrepared reports whether all claims of a pod are prepared for it.
func (m *Manager) isPrepared(pod *corev1.Pod, claims []corev1.PodResourceClaim) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range claims {
		name, err := claimName(pod, &claims[i])
		if err == nil && name == "" {
			continue
		}
		if c := m.claimOf(pod, name); err != nil || c == nil || !c.isPreparedFor(pod.UID) {
			return false
		}
	}
	return true
}

// cdiDevices returns the CDI devices of a prepared claim, of one request or of all.
func (m *Manager) cdiDevices(pod *corev1.Pod, used corev1.ResourceClaim) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var ids []string
	for _, entry := range podClaims(pod) {
		if entry.Name != used.Name {
			continue
		}
		name, err := claimName(pod, &entry)
		if err != nil || name == "" {
			return nil, err
		}
		claim := m.claimOf(pod, name)
		if claim == nil || !claim.isPrepared() {
			return nil, fmt.Errorf("ResourceClaim %s is not prepared", name)
		}
		for _, driver := range slices.Sorted(maps.Keys(claim.Drivers)) {
			for _, d := range *claim.Drivers[driver] {
				if d.isFor(used.Request) {
					ids = append(ids, d.CDIDevices...)
				}
			}
		}
		return ids, nil
	}
	return nil, errors.New("the pod has no resource claim of this name")
}

// claimOf returns the claim of that name that the pod uses, or nil. m.mu is locked.
func (m *Manager) claimOf(pod *corev1.Pod, name string) *claimState {
	for _, c := range m.claims {
		if c.Namespace == pod.Namespace && c.Name == name && slices.Contains(c.Pods, pod.UID) {
			return c
		}
	}
	return nil
}

// HasUnreleased implements podsync.EarlyReleaser: it reports whether the pod has claims that are not released. The cluster gives a claim
// to others once its pods have ended.
func (m *Manager) HasUnreleased(pod *corev1.Pod) bool {
	if len(podClaims(pod)) == 0 {
		return false
	}
	if m.load() != nil {
		return true // as long as it is not known, as Release fails, too
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.claims {
		if slices.Contains(c.Pods, pod.UID) {
			return true
		}
	}
	return false
}

// PodUIDs implements podsync.StoredReleaser: it returns the pods that have claims.
func (m *Manager) PodUIDs() ([]types.UID, error) {
	if err := m.load(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	uids := map[types.UID]bool{}
	for _, c := range m.claims {
		for _, uid := range c.Pods {
			uids[uid] = true
		}
	}
	return slices.Sorted(maps.Keys(uids)), nil
}

// Release implements podsync.Releaser: claims that no other pod uses are released by their
// drivers. It blocks for as long as they take, within the CallTimeout for each, or until ctx is
// done. What is not released then is still stored, and is released by the next call. That a release
// cannot be stored is no error: the pod may be what fills the disk, and has to end. The next change
// stores it, or the next process has the claims released once more.
func (m *Manager) Release(ctx context.Context, uid types.UID) error {
	if err := m.load(); err != nil {
		return err
	}
	m.mu.Lock()
	var used []*claimState
	for _, c := range m.claims {
		if slices.Contains(c.Pods, uid) {
			used = append(used, c)
		}
	}
	m.mu.Unlock()
	startTime := time.Now()
	slices.SortFunc(used, func(a, b *claimState) int { return strings.Compare(string(a.UID), string(b.UID)) })
	var errs []error
	for _, c := range used {
		if err := m.releaseClaim(ctx, c, uid); err != nil {
			errs = append(errs, fmt.Errorf("release ResourceClaim %s/%s: %w", c.Namespace, c.Name, err))
		}
	}
	if err := m.save(); err != nil {
		m.cfg.Logger.Warn("release of resource claims not stored", logattr.PodUID(uid), logattr.Err(err))
	}
	err := errors.Join(errs...)
	if len(used) > 0 && m.cfg.Hooks.PodReleased != nil {
		m.cfg.Hooks.PodReleased(uid, time.Since(startTime), err)
	}
	return err
}

func (m *Manager) releaseClaim(ctx context.Context, c *claimState, uid types.UID) error {
	if err := ctx.Err(); err != nil {
		return err // claims stay as they are
	}
	bounded, cancel := context.WithTimeout(ctx, m.cfg.CallTimeout)
	defer cancel()
	select {
	case c.inUse <- struct{}{}:
		defer func() { <-c.inUse }()
	case <-bounded.Done():
		return fmt.Errorf("another pod waits for its drivers: %w", bounded.Err())
	}
	m.mu.Lock()
	last := len(c.Pods) == 1 && c.Pods[0] == uid
	var drivers []string
	if last {
		drivers = slices.Sorted(maps.Keys(c.Drivers))
		for _, driver := range drivers {
			c.Drivers[driver] = nil // to be prepared again if another pod comes, whatever becomes of the calls
		}
		m.file.Changed()
	}
	m.mu.Unlock()
	if last {
		_ = m.save() // Release logs an error
	}
	for _, driver := range drivers {
		if err := m.unprepare(ctx, driver, c); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c.Pods = slices.DeleteFunc(c.Pods, func(p types.UID) bool { return p == uid })
	if len(c.Pods) == 0 {
		delete(m.claims, c.UID)
	}
	m.file.Changed()
	return nil
}
