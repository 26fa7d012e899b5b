package syncloop

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

// HousekeeperWorkers are the lives of pods, as podworkers keeps them. None of the methods
// blocks.
type HousekeeperWorkers interface {
	Update(u podworkers.Update)
	State(uid types.UID) (podworkers.State, bool)
	ForgetFinished(uid types.UID, wanted bool) (again bool)
	SyncKnownPods(wanted map[types.UID]struct{}, full bool) (again []types.UID)
}

// Sources know what is wanted. None of the methods blocks.
type Sources interface {
	// HasSynced reports whether all that the source wants is known; that of all sources
	// for one that is not there.
	HasSynced(source string) bool
	// MayBeDesired reports whether a pod found running that names the source, and is not
	// among Pods, may yet turn out to be wanted.
	MayBeDesired(source, namespace, name string) bool
	// Pods are the pods that are wanted, also those that the loop has not heard of
	// yet.
	Pods() []*corev1.Pod
}

// PodStore is a place where something is kept for pods by their UID: folders, volumes,
// cgroups, statuses, probes.
type PodStore struct {
	Name    string
	PodUIDs func() ([]types.UID, error) // those of which something is there
	// Remove should end soon after its context. One that takes long holds up its own
	// pod alone. It is called from many goroutines, but once at a time for a pod.
	Remove func(ctx context.Context, uid types.UID) error
}

// HousekeeperConfig describes a Housekeeper.
type HousekeeperConfig struct {
	Workers    HousekeeperWorkers // required
	PodManager *PodManager        // what the loop has taken in; required

	Sources Sources // required
	// RuntimePods is what was last seen in the runtime, from memory. Required.
	RuntimePods func() []runtime.Pod
	// Uninspected are pods that are in the runtime and of which Runtime does not tell
	// yet: nothing that is kept for them goes. Default: there are none.
	Uninspected func() []types.UID

	Stores        []PodStore    // default: none
	RemoveTimeout time.Duration // of each removal from a store; default 2 min

	Logger *slog.Logger // default: discard
	Hooks  HousekeeperHooks
}

// HousekeeperHooks are called as things are found that nobody wants. Any may be nil.
type HousekeeperHooks struct {
	OrphanFound  func(pod runtime.Pod)
	StoreCleaned func(store string, uid types.UID, err error)
}

func (c *HousekeeperConfig) fill() error {
	var errs []error
	require := func(ok bool, what string) {
		if !ok {
			errs = append(errs, errors.New("syncloop: "+what))
		}
	}
	require(c.Workers != nil, "nil Lives")
	require(c.PodManager != nil, "nil Pods")
	require(c.Sources != nil, "nil Sources")
	require(c.RuntimePods != nil, "nil Runtime")
	require(c.RemoveTimeout >= 0, "negative RemoveTimeout")
	for _, s := range c.Stores {
		require(s.Name != "" && s.PodUIDs != nil && s.Remove != nil, "store "+s.Name+" is not complete")
	}
	if c.Uninspected == nil {
		c.Uninspected = func() []types.UID { return nil }
	}
	orDefault(&c.RemoveTimeout, defaultRemoveTimeout)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Hooks = safe.Hooks(c.Logger, c.Hooks)
	return errors.Join(errs...)
}

// Housekeeper is a Keeper: it ends runtime pods that no source knows, forgets
// finished workers and removes what is left in stores. A cleanup that takes long goes
// on beside the calls of its methods, of which the next take it in; see Wait.
type Housekeeper struct {
	cfg        HousekeeperConfig
	lastErrors map[faultKey]string // what went wrong last: each is logged once
	cleanups   map[types.UID]*cleanup
	wg         sync.WaitGroup // of cleanups
}

// faultKey is what something went wrong with: reading a store where uid is empty,
// cleaning up after a pod as a whole where store is.
type faultKey struct {
	store string
	uid   types.UID
}

// NewHousekeeper returns a Housekeeper.
func NewHousekeeper(cfg HousekeeperConfig) (*Housekeeper, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	return &Housekeeper{cfg: cfg, lastErrors: map[faultKey]string{}, cleanups: map[types.UID]*cleanup{}}, nil
}

// CleanupPods looks once for what nobody wants, and returns the pods that came back
// while they ended, or while what was left of them was removed. Nothing is settled
// as long as not all is known that is wanted, nor while there was something to do:
// the next look tells what came of it. Calls must not overlap with each other nor
// with Tidy.
func (h *Housekeeper) CleanupPods(ctx context.Context) (again []types.UID, settled bool) {
	again = h.takeCleanedUp()
	s := h.takeSnapshot()
	h.forgetFaults(s)
	again = append(again, h.cfg.Workers.SyncKnownPods(s.desired, s.allSynced)...)
	c := s.plan()
	again = append(again, h.execute(ctx, c)...)
	return again, s.allSynced && len(s.mayBeDesired)+len(c.orphans)+len(c.orphanedResources)+len(h.lastErrors)+len(h.cleanups) == 0
}

// takeSnapshot gathers what there is to know. The order matters, since pods come and go
// meanwhile. What is wanted is read last: whatever is seen in a store or in the
// runtime was wanted before, and then is still wanted now, or has a life, which
// only this type forgets. Whether all is known is asked before what it is. What is
// wanted is read first as well, to save asking about each of those pods: one that
// is not wanted any more a moment later is left to the next time.
func (h *Housekeeper) takeSnapshot() *snapshot {
	s := &snapshot{known: map[types.UID]struct{}{}, mayBeDesired: map[types.UID]struct{}{}, desired: h.cfg.PodManager.AddDesiredUIDs(nil)}
	for i, store := range h.cfg.Stores {
		var uids []types.UID
		err := safe.Call(h.cfg.Logger, "list pods of "+store.Name, func() (err error) { uids, err = store.PodUIDs(); return err })
		h.logFailure(store.Name, "", err)
		s.stores = append(s.stores, storeUIDs{i, uids, err})
		h.known(s, uids...)
	}
	s.uninspected = h.cfg.Uninspected() // before Runtime: one that is seen meanwhile is in either
	s.runtime = h.cfg.RuntimePods()
	for i := range s.runtime {
		p := &s.runtime[i]
		if h.known(s, p.UID); !s.isDesiredOrKnown(p.UID) && h.cfg.Sources.MayBeDesired(sourceOf(p), p.Namespace, p.Name) {
			s.mayBeDesired[p.UID] = struct{}{}
		}
	}
	s.allSynced = h.cfg.Sources.HasSynced("")
	for _, pod := range h.cfg.Sources.Pods() {
		if _, ok := s.desired[pod.UID]; !ok {
			s.desired[pod.UID] = struct{}{}
		}
	}
	s.desired = h.cfg.PodManager.AddDesiredUIDs(s.desired)
	return s
}

func (h *Housekeeper) known(s *snapshot, uids ...types.UID) {
	for _, uid := range uids {
		if _, ok := s.desired[uid]; ok {
			continue
		}
		if _, ok := h.cfg.Workers.State(uid); ok {
			s.known[uid] = struct{}{}
		}
	}
}

// CleanupFinished looks at pods that have come to their end. What a pod left goes before its
// life is forgotten: should its UID come back meanwhile, it waits for that. Calls
// must not overlap with each other nor with Housekeep.
func (h *Housekeeper) CleanupFinished(ctx context.Context, ended []types.UID) (again []types.UID) {
	again = h.takeCleanedUp()
	began := time.Now()
	for _, uid := range ended {
		if time.Since(began) > maxPass {
			break // the next housekeeping goes on from here
		}
		again = append(again, h.tidy(ctx, uid)...)
	}
	return again
}

func (h *Housekeeper) tidy(ctx context.Context, uid types.UID) (again []types.UID) {
	st, lives := h.cfg.Workers.State(uid)
	wanted := h.cfg.PodManager.get(uid) != nil
	if lives && !st.Idle || !lives && wanted || h.cleanups[uid] != nil {
		return nil
	}
	if !wanted {
		var held bool
		if again, held = h.holdAndCleanUp(ctx, uid, lives, h.stores()); held {
			return again
		}
	}
	// It is wanted: it begins anew, if that is why it is.
	if lives && h.cfg.Workers.ForgetFinished(uid, true) {
		again = append(again, uid)
	}
	return again
}

func (h *Housekeeper) stores() []*PodStore {
	all := make([]*PodStore, len(h.cfg.Stores))
	for i := range all {
		all[i] = &h.cfg.Stores[i]
	}
	return all
}

func (h *Housekeeper) execute(ctx context.Context, c cleanupPlan) (again []types.UID) {
	for i := range c.orphans {
		p := &c.orphans[i]
		h.cfg.Logger.Info("ending a pod that no source knows", slog.String("uid", string(p.UID)),
			slog.String("namespace", p.Namespace), slog.String("pod", p.Name))
		if f := h.cfg.Hooks.OrphanFound; f != nil {
			f(*p)
		}
		h.cfg.Workers.Update(podworkers.Update{Orphan: p})
	}
	began := time.Now()
	uids, stores := h.byPod(c.orphanedResources)
	for _, uid := range uids {
		if ctx.Err() != nil || time.Since(began) > maxPass {
			break
		}
		back, _ := h.holdAndCleanUp(ctx, uid, false, stores[uid])
		again = append(again, back...)
	}
	return again
}

// byPod returns the pods of which something is to be removed, and from where.
func (h *Housekeeper) byPod(drop []storeUIDs) (uids []types.UID, stores map[types.UID][]*PodStore) {
	stores = map[types.UID][]*PodStore{}
	for _, d := range drop {
		for _, uid := range d.uids {
			if stores[uid] == nil {
				uids = append(uids, uid)
			}
			stores[uid] = append(stores[uid], &h.cfg.Stores[d.store])
		}
	}
	return uids, stores
}

// logFailure logs a fault when it is new, and forgets it when it is gone.
func (h *Housekeeper) logFailure(store string, uid types.UID, err error) {
	key := faultKey{store, uid}
	if err == nil {
		delete(h.lastErrors, key)
		return
	}
	if h.lastErrors[key] != err.Error() {
		h.lastErrors[key] = err.Error()
		h.cfg.Logger.Warn("housekeeping failed", slog.String("store", store), slog.String("uid", string(uid)), slog.Any("error", err))
	}
}
