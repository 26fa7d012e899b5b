package syncloop

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

// HousekeeperWorkers is what the Housekeeper needs of the pod workers. None of the
// methods blocks.
type HousekeeperWorkers interface {
	Update(u podworkers.Update)
	State(uid types.UID) (podworkers.State, bool)
	ForgetFinished(uid types.UID, desired bool) (recreated bool)
	SyncKnownPods(desired map[types.UID]struct{}, allSynced bool) (recreated []types.UID)
}

// Sources has the desired pods. None of the methods blocks.
type Sources interface {
	// HasSynced reports whether the source has delivered its complete set. An empty or
	// unknown source stands for all sources.
	HasSynced(source string) bool
	// MayBeDesired reports whether a running pod that is not in Pods may still belong to
	// a source that has not synced. Such a pod must not be terminated.
	MayBeDesired(source, namespace, name string) bool
	// Pods returns the desired pods, including those that the loop has not received yet.
	Pods() []*corev1.Pod
}

// PodCache has the last observed state of each pod in the runtime. See podcache.Cache.
type PodCache interface {
	Pods() []runtime.Pod // from memory
}

// PodStore has resources of pods by their UIDs: directories, volumes, cgroups, statuses,
// probes.
type PodStore struct {
	Name    string
	PodUIDs func() ([]types.UID, error) // the pods with resources
	// Remove removes the resources of a pod. It should return soon after its context
	// ends; a slow call delays only its own pod. It is called from several goroutines,
	// but for each pod from one at a time.
	Remove func(ctx context.Context, uid types.UID) error
}

// HousekeeperConfig describes a Housekeeper.
type HousekeeperConfig struct {
	Workers    HousekeeperWorkers // required
	PodManager *PodManager        // required

	Sources   Sources   // required
	PodCache  PodCache  // required
	Inspector Inspector // Default: PodCache has all pods in the runtime

	Stores        []PodStore    // Default: none
	RemoveTimeout time.Duration // of each removal from a store. Default: 2m

	Logger *slog.Logger // Default: discard
	Hooks  HousekeeperHooks
}

// HousekeeperHooks are called when orphans are found and removed, OrphanFound also from the
// goroutine of the loop. Any may be nil.
type HousekeeperHooks struct {
	OrphanFound  func(pod runtime.Pod)
	StoreCleaned func(store string, uid types.UID, err error)
}

// Join returns hooks that call those of h and then those of next. A panic of one is logged
// and does not prevent the others from being called. Join allocates; calls do not.
func (h HousekeeperHooks) Join(log *slog.Logger, next HousekeeperHooks) HousekeeperHooks {
	return HousekeeperHooks{
		OrphanFound:  safe.Hook1(log, "Housekeeper.OrphanFound", h.OrphanFound, next.OrphanFound),
		StoreCleaned: safe.Hook3(log, "Housekeeper.StoreCleaned", h.StoreCleaned, next.StoreCleaned),
	}
}

// guarded returns hooks that recover panics.
func (h HousekeeperHooks) guarded(log *slog.Logger) HousekeeperHooks {
	return HousekeeperHooks{
		OrphanFound:  safe.Hook1(log, "OrphanFound", h.OrphanFound),
		StoreCleaned: safe.Hook3(log, "StoreCleaned", h.StoreCleaned),
	}
}

func (c *HousekeeperConfig) fill() error {
	var errs []error
	require := func(ok bool, problem string) {
		if !ok {
			errs = append(errs, errors.New("syncloop: HousekeeperConfig."+problem))
		}
	}
	require(c.Workers != nil, "Workers required")
	require(c.PodManager != nil, "PodManager required")
	require(c.Sources != nil, "Sources required")
	require(c.PodCache != nil, "PodCache required")
	require(c.RemoveTimeout >= 0, "RemoveTimeout must not be negative")
	for _, s := range c.Stores {
		require(s.Name != "" && s.PodUIDs != nil && s.Remove != nil, "Stores: Name, PodUIDs and Remove required: "+s.Name)
	}
	if c.Inspector == nil {
		c.Inspector = noInspector{}
	}
	setDefault(&c.RemoveTimeout, defaultRemoveTimeout)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Hooks = c.Hooks.guarded(c.Logger)
	return errors.Join(errs...)
}

// Housekeeper is a Cleaner: it terminates runtime pods that no source contains, forgets
// finished pods and removes their resources from stores. A slow cleanup continues after
// the method that has started it returned, and a later call collects its result; see
// Wait.
type Housekeeper struct {
	cfg        HousekeeperConfig
	lastErrors map[errorKey]string // each error is logged once
	cleanups   map[types.UID]*cleanup
	handled    map[types.UID]time.Time // when a worker had a pod that is in the runtime and not desired
	wg         sync.WaitGroup          // of cleanups
}

// errorKey identifies a failure: of reading a store if uid is empty, and of the cleanup
// of a pod as a whole if store is.
type errorKey struct {
	store string
	uid   types.UID
}

// NewHousekeeper returns a Housekeeper. From then on its PodManager asks it for pods that a
// previous process has left, before it starts static pods of the same name.
func NewHousekeeper(cfg HousekeeperConfig) (*Housekeeper, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	h := &Housekeeper{cfg: cfg, lastErrors: map[errorKey]string{}, cleanups: map[types.UID]*cleanup{}, handled: map[types.UID]time.Time{}}
	cfg.PodManager.terminatePredecessors = h.terminatePredecessors
	return h, nil
}

// CleanupPods is one pass over all pods. It returns the pods that were desired again
// during their termination or the removal of their resources. settled is false while a
// source has not synced and after a pass that removed something, because the next pass
// must check the result. Calls must not overlap with each other nor with those of
// CleanupFinished.
func (h *Housekeeper) CleanupPods(ctx context.Context) (recreated []types.UID, settled bool) {
	recreated = h.collectCleanups()
	s := h.takeSnapshot()
	h.forgetErrors(s)
	recreated = append(recreated, h.cfg.Workers.SyncKnownPods(s.desired, s.allSynced)...)
	plan := s.plan()
	recreated = append(recreated, h.execute(ctx, plan)...)
	busy := len(s.mayBeDesired) > 0 || len(plan.orphans) > 0 || len(plan.orphanedResources) > 0 || len(h.lastErrors) > 0 || len(h.cleanups) > 0
	return recreated, s.allSynced && !busy
}

// takeSnapshot collects the input of a pass. The order of the reads matters, because
// pods are added and removed meanwhile. The desired pods are read last: a pod that is
// found in a store or in the runtime was desired before, so it is desired now or has a
// worker, which only this type forgets. Whether all sources have synced is read before
// their pods. The desired pods are also read first, to save a query of the workers for
// each: one that is not desired any more a moment later is left to the next pass.
func (h *Housekeeper) takeSnapshot() *snapshot {
	s := &snapshot{known: map[types.UID]struct{}{}, mayBeDesired: map[types.UID]struct{}{}, desired: h.cfg.PodManager.AddDesiredUIDs(nil)}
	for i, store := range h.cfg.Stores {
		var uids []types.UID
		err := safe.Call(h.cfg.Logger, "list pods of "+store.Name, func() (err error) { uids, err = store.PodUIDs(); return err })
		h.logFailure(store.Name, "", err)
		s.stores = append(s.stores, storeUIDs{i, uids, err})
		h.addKnown(s, uids...)
	}
	s.uninspected = h.cfg.Inspector.Uninspected() // before PodCache, so that a pod inspected meanwhile is in one of them
	s.runtime = h.cfg.PodCache.Pods()
	for i := range s.runtime {
		p := &s.runtime[i]
		if h.addKnown(s, p.UID); !s.isDesiredOrKnown(p.UID) && h.cfg.Sources.MayBeDesired(p.Source(), p.Namespace, p.Name) {
			s.mayBeDesired[p.UID] = struct{}{}
		}
	}
	if s.allSynced = h.cfg.Sources.HasSynced(""); !s.allSynced {
		s.removed = h.removedPods(s)
	}
	for _, pod := range h.cfg.Sources.Pods() {
		s.desired[pod.UID] = struct{}{}
	}
	s.desired = h.cfg.PodManager.AddDesiredUIDs(s.desired)
	h.handled = s.handledOrphans(h.handled, time.Now())
	s.handled = h.handled
	return s
}

// removedPods returns the pods of stores that their source does not contain, although others have not synced. The last
// report of a pod, which may be of a previous process, says which source that is.
func (h *Housekeeper) removedPods(s *snapshot) map[types.UID]struct{} {
	reported := h.cfg.PodManager.cfg.Reported
	left := map[types.UID]struct{}{}
	for _, st := range s.stores {
		for _, uid := range st.uids {
			if !s.isDesiredOrKnown(uid) {
				left[uid] = struct{}{}
			}
		}
	}
	if reported == nil || len(left) == 0 {
		return nil
	}
	removed := map[types.UID]struct{}{}
	for _, pod := range reported() {
		if _, ok := left[pod.UID]; ok && !h.cfg.Sources.MayBeDesired(pod.Annotations[podspec.AnnotationSource], pod.Namespace, pod.Name) {
			removed[pod.UID] = struct{}{}
		}
	}
	return removed
}

func (h *Housekeeper) addKnown(s *snapshot, uids ...types.UID) {
	for _, uid := range uids {
		if _, ok := s.desired[uid]; ok {
			continue
		}
		if _, ok := h.cfg.Workers.State(uid); ok {
			s.known[uid] = struct{}{}
		}
	}
}

// CleanupFinished removes the resources of finished pods and then forgets them. A pod of
// the same UID that is added meanwhile waits for that. Calls must not overlap with each
// other nor with those of CleanupPods.
func (h *Housekeeper) CleanupFinished(ctx context.Context, finished []types.UID) (recreated []types.UID) {
	recreated = h.collectCleanups()
	startTime := time.Now()
	for _, uid := range finished {
		if time.Since(startTime) > maxPass {
			break // the next CleanupPods continues
		}
		recreated = append(recreated, h.cleanUpFinished(ctx, uid)...)
	}
	return recreated
}

func (h *Housekeeper) cleanUpFinished(ctx context.Context, uid types.UID) (recreated []types.UID) {
	st, known := h.cfg.Workers.State(uid)
	desired := h.cfg.PodManager.get(uid) != nil
	if known && !st.Idle || !known && desired || h.cleanups[uid] != nil {
		return nil
	}
	if !desired {
		var reserved bool
		if recreated, reserved = h.reserveAndCleanUp(ctx, uid, known, h.stores()); reserved {
			return recreated
		}
	}
	// It is desired. It starts again if it was recreated during its termination.
	if known && h.cfg.Workers.ForgetFinished(uid, true) {
		recreated = append(recreated, uid)
	}
	return recreated
}

func (h *Housekeeper) stores() []*PodStore {
	all := make([]*PodStore, len(h.cfg.Stores))
	for i := range all {
		all[i] = &h.cfg.Stores[i]
	}
	return all
}

func (h *Housekeeper) execute(ctx context.Context, plan cleanupPlan) (recreated []types.UID) {
	for i := range plan.orphans {
		p := &plan.orphans[i]
		h.handled[p.UID] = time.Now()
		h.terminateOrphan(p)
	}
	startTime := time.Now()
	uids, stores := h.storesByPod(plan.orphanedResources)
	for _, uid := range uids {
		if ctx.Err() != nil || time.Since(startTime) > maxPass {
			break
		}
		pods, _ := h.reserveAndCleanUp(ctx, uid, false, stores[uid])
		recreated = append(recreated, pods...)
	}
	return recreated
}

func (h *Housekeeper) terminateOrphan(p *runtime.Pod) {
	h.cfg.Logger.Info("terminating orphaned pod", logattr.PodName(p.Namespace, p.Name), logattr.PodUID(p.UID), slog.String("source", p.Source()))
	if f := h.cfg.Hooks.OrphanFound; f != nil {
		f(*p)
	}
	h.cfg.Workers.Update(podworkers.Update{Orphan: p})
}

// storesByPod returns the pods with resources to remove, and the stores that have them.
func (h *Housekeeper) storesByPod(resources []storeUIDs) (uids []types.UID, stores map[types.UID][]*PodStore) {
	stores = map[types.UID][]*PodStore{}
	for _, r := range resources {
		for _, uid := range r.uids {
			if stores[uid] == nil {
				uids = append(uids, uid)
			}
			stores[uid] = append(stores[uid], &h.cfg.Stores[r.store])
		}
	}
	return uids, stores
}

// logFailure logs an error when it is new, and forgets it when it is resolved.
func (h *Housekeeper) logFailure(store string, uid types.UID, err error) {
	key := errorKey{store, uid}
	if err == nil {
		delete(h.lastErrors, key)
		return
	}
	if h.lastErrors[key] != err.Error() {
		h.lastErrors[key] = err.Error()
		h.cfg.Logger.Warn("removing orphaned pod resources failed", slog.String("store", store), logattr.PodUID(uid), logattr.Err(err))
	}
}
