package dra

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/podspec"
)

// preparePod prepares the claims of a pod that are not prepared. None is before all of them can be: no driver has to release
// devices of a pod that cannot run.
func (m *Manager) preparePod(ctx context.Context, pod *corev1.Pod, claims []corev1.PodResourceClaim) error {
	var found []foundClaim
	for i := range claims {
		f, err := m.findClaim(ctx, pod, &claims[i])
		if err != nil {
			return fmt.Errorf("%s: %w", describe(claims[i].Name), err)
		}
		if f != nil {
			found = append(found, *f)
		}
	}
	for _, f := range found {
		if err := m.preparePodClaim(ctx, pod, f); err != nil {
			return fmt.Errorf("%s: ResourceClaim %s: %w", describe(f.entry), f.name, err)
		}
	}
	return nil
}

// foundClaim is a claim that is to be prepared for a pod.
type foundClaim struct {
	entry, name string
	known       *claimState               // what the pod uses already by this name; nil: nothing
	claim       *resourcev1.ResourceClaim // nil: known suffices
}

// findClaim finds one claim of a pod and checks that the pod can use it. It returns nil if there is nothing to be prepared.
func (m *Manager) findClaim(ctx context.Context, pod *corev1.Pod, entry *corev1.PodResourceClaim) (*foundClaim, error) {
	name, err := claimName(pod, entry)
	if err != nil || name == "" {
		return nil, err
	}
	f := foundClaim{entry: entry.Name, name: name}
	m.mu.Lock()
	f.known = m.claimOf(pod, name)
	prepared := f.known != nil && f.known.isPreparedFor(pod.UID)
	m.mu.Unlock()
	if prepared {
		return nil, nil
	}
	bounded, cancel := context.WithTimeout(ctx, m.cfg.CallTimeout)
	defer cancel()
	err = safe.Call(m.cfg.Logger, "find ResourceClaim "+name, func() (err error) {
		f.claim, err = m.cfg.Claims.ResourceClaim(bounded, pod.Namespace, name)
		return err
	})
	switch {
	case err == nil:
		err = m.check(pod, entry, f.claim)
	case f.known != nil && !errors.Is(err, podspec.ErrObjectNotFound):
		f.claim, err = nil, nil // what is stored of it suffices, without the API server
	}
	if err != nil {
		return nil, fmt.Errorf("ResourceClaim %s: %w", name, err)
	}
	return &f, nil
}

// check returns an error if a pod cannot use a claim now.
func (m *Manager) check(pod *corev1.Pod, entry *corev1.PodResourceClaim, claim *resourcev1.ResourceClaim) error {
	if err := m.cfg.isFor(claim, pod, entry); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	_, _, err := m.usable(pod, claim)
	return err
}

// preparePodClaim prepares one claim of a pod.
func (m *Manager) preparePodClaim(ctx context.Context, pod *corev1.Pod, f foundClaim) (err error) {
	state, isNew := f.known, false
	if f.claim != nil {
		if state != nil && state.UID != f.claim.UID { // it was replaced before the pod got its devices, and only one of its name counts
			if err := m.releaseClaim(ctx, state, pod.UID); err != nil {
				return fmt.Errorf("release the one that it has replaced: %w", err)
			}
		}
		if state, isNew, err = m.use(pod, f.claim); err != nil {
			return err
		}
	}
	if err := m.prepareClaim(ctx, pod, state, isNew); err != nil {
		return fmt.Errorf("prepare: %w", err)
	}
	return nil
}

// prepareClaim has all drivers of a claim prepare it. That the pod uses it is stored before, so
// that the claim is released also if the agent is killed meanwhile. isNew says that it was recorded for this call.
func (m *Manager) prepareClaim(ctx context.Context, pod *corev1.Pod, state *claimState, isNew bool) error {
	select { // pods that share a claim wait for each other
	case state.inUse <- struct{}{}:
		defer func() { <-state.inUse }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := m.save(); err != nil {
		if isNew {
			m.takeBack(state, pod.UID)
		}
		return err
	}
	m.mu.Lock()
	before, missing := maps.Clone(state.Drivers), state.unpreparedFor(pod.UID)
	m.mu.Unlock()
	for _, driver := range missing {
		devices, err := m.prepare(ctx, driver, state)
		if err != nil {
			return err
		}
		m.mu.Lock()
		state.Drivers[driver] = &devices
		m.file.Changed()
		m.mu.Unlock()
	}
	if err := m.save(); err != nil {
		m.mu.Lock() // to be prepared again: what cannot be stored must not prevent others from being stored
		defer m.mu.Unlock()
		for _, driver := range missing {
			state.Drivers[driver] = before[driver]
		}
		return err
	}
	if len(missing) > 0 {
		m.mu.Lock()
		if len(missing) == len(state.Drivers) {
			state.restoredPods = nil
		}
		m.mu.Unlock()
		m.cfg.Logger.Info("resource claim prepared", logattr.Pod(pod), logattr.PodUID(pod.UID), slog.String("claim", state.Namespace+"/"+state.Name))
	}
	return nil
}

// use records that a pod uses a claim.
func (m *Manager) use(pod *corev1.Pod, claim *resourcev1.ResourceClaim) (state *claimState, isNew bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if state, isNew, err = m.usable(pod, claim); err != nil || !isNew {
		return state, false, err
	}
	m.claims[claim.UID] = state
	state.Pods = append(state.Pods, pod.UID)
	m.file.Changed()
	return state, true, nil
}

// usable returns what is to be recorded of a claim, and whether the pod is no user of it yet. A claim that was allocated other devices
// waits until its former ones are released. Without a driver that is to prepare it nothing is recorded: the pod would wait for its
// release, by a driver that may never come. m.mu is locked.
func (m *Manager) usable(pod *corev1.Pod, claim *resourcev1.ResourceClaim) (state *claimState, isNew bool, err error) {
	allocation := allocationOf(claim)
	state = m.claims[claim.UID]
	if state != nil && state.Allocation != "" && state.Allocation != allocation {
		return nil, false, errors.New("it was allocated other devices, and those it had before are not released yet")
	}
	if state == nil {
		state = &claimState{
			Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, Drivers: map[string]*[]device{}, Allocation: allocation,
			inUse: make(chan struct{}, 1),
		}
		for _, r := range claim.Status.Allocation.Devices.Results {
			state.Drivers[r.Driver] = nil
		}
	}
	for _, driver := range state.unpreparedFor(pod.UID) {
		if len(m.drivers[driver]) == 0 {
			return nil, false, noDriver(driver)
		}
	}
	return state, !slices.Contains(state.Pods, pod.UID), nil
}

// takeBack undoes what use has recorded and could not be stored: the next call for the pod must not take the claim for one
// that is prepared and stored for it. The caller has the right to have it prepared.
func (m *Manager) takeBack(state *claimState, uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(state.Pods) > 1 {
		state.Pods = slices.DeleteFunc(state.Pods, func(p types.UID) bool { return p == uid })
	} else { // what pods that have left it to this one had prepared is released with it
		for driver := range state.Drivers {
			state.Drivers[driver] = nil
		}
	}
	m.file.Changed()
}

// allocationOf identifies the devices that a claim was allocated.
func allocationOf(claim *resourcev1.ResourceClaim) string {
	var devices strings.Builder
	for _, r := range claim.Status.Allocation.Devices.Results {
		fmt.Fprintf(&devices, "%q %q %q %q\n", r.Request, r.Driver, r.Pool, r.Device)
	}
	hash := sha256.Sum256([]byte(devices.String()))
	return hex.EncodeToString(hash[:8])
}
