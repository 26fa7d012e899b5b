package syncloop

import (
	"context"
	"errors"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

// Lives are the lives of pods, as podworkers keeps them. None of the methods
// blocks.
type Lives interface {
	Update(u podworkers.Update)
	State(uid types.UID) (podworkers.State, bool)
	Settle(uid types.UID, wanted bool) (again bool)
	SyncKnown(wanted map[types.UID]struct{}, full bool) (again []types.UID)
}

// Sources know what is wanted. None of the methods blocks.
type Sources interface {
	// Ready reports whether all that the source wants is known; that of all sources
	// for one that is not there.
	Ready(source string) bool
	// Holds reports whether a pod found running that names the source, and is not
	// among Pods, may yet turn out to be wanted.
	Holds(source, namespace, name string) bool
	// Pods are the pods that are wanted, also those that the loop has not heard of
	// yet.
	Pods() []*corev1.Pod
}

// Store is a place where something is kept for pods by their UID: folders, volumes,
// cgroups, statuses, probes.
type Store struct {
	Name   string
	Known  func() ([]types.UID, error) // those of which something is there
	Remove func(ctx context.Context, uid types.UID) error
}

// HousekeeperConfig describes a Housekeeper.
type HousekeeperConfig struct {
	Lives Lives // required
	Pods  *Pods // what the loop has taken in; required

	Sources Sources // required
	// Runtime is what was last seen in the runtime, from memory. Required.
	Runtime func() []runtime.Pod
	// Unseen are pods that are in the runtime and of which Runtime does not tell
	// yet: nothing that is kept for them goes. Default: there are none.
	Unseen func() []types.UID

	Stores []Store      // default: none
	Logger *slog.Logger // default: discard
	Hooks  HousekeeperHooks
}

// HousekeeperHooks are called as things are found that nobody wants. Any may be nil.
type HousekeeperHooks struct {
	Orphan  func(pod runtime.Pod)
	Dropped func(store string, uid types.UID, err error)
}

func (c *HousekeeperConfig) fill() error {
	var errs []error
	require := func(ok bool, what string) {
		if !ok {
			errs = append(errs, errors.New("syncloop: "+what))
		}
	}
	require(c.Lives != nil, "nil Lives")
	require(c.Pods != nil, "nil Pods")
	require(c.Sources != nil, "nil Sources")
	require(c.Runtime != nil, "nil Runtime")
	for _, s := range c.Stores {
		require(s.Name != "" && s.Known != nil && s.Remove != nil, "store "+s.Name+" is not complete")
	}
	if c.Unseen == nil {
		c.Unseen = func() []types.UID { return nil }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return errors.Join(errs...)
}

// Housekeeper is a Keeper: it ends runtime pods that no source knows, forgets
// finished workers and removes what is left in stores.
type Housekeeper struct {
	cfg    HousekeeperConfig
	faults map[string]string // what went wrong last, by store and pod: each is logged once
}

// NewHousekeeper returns a Housekeeper.
func NewHousekeeper(cfg HousekeeperConfig) (*Housekeeper, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	return &Housekeeper{cfg: cfg, faults: map[string]string{}}, nil
}

// Housekeep looks once for what nobody wants, and returns the pods that came back
// while they ended, or while what was left of them was removed. Nothing is settled
// as long as not all is known that is wanted, nor while there was something to do:
// the next look tells what came of it. Calls must not overlap with each other nor
// with Tidy.
func (h *Housekeeper) Housekeep(ctx context.Context) (again []types.UID, settled bool) {
	s := h.look()
	again = h.cfg.Lives.SyncKnown(s.wanted, s.full)
	c := s.plan()
	again = append(again, h.do(ctx, c)...)
	return again, s.full && len(s.held)+len(c.end)+len(c.drop)+len(h.faults) == 0
}

// look gathers what there is to know. The order matters, since pods come and go
// meanwhile. What is wanted is read last: whatever is seen in a store or in the
// runtime was wanted before, and then is still wanted now, or has a life, which
// only this type forgets. Whether all is known is asked before what it is. What is
// wanted is read first as well, to save asking about each of those pods: one that
// is not wanted any more a moment later is left to the next time.
func (h *Housekeeper) look() *scene {
	s := &scene{known: map[types.UID]struct{}{}, held: map[types.UID]struct{}{}, wanted: h.cfg.Pods.Wanted(nil)}
	for i, store := range h.cfg.Stores {
		uids, err := store.Known()
		h.note(store.Name, "", err)
		s.stores = append(s.stores, stored{i, uids})
		h.known(s, uids...)
	}
	s.unseen = h.cfg.Unseen() // before Runtime: one that is seen meanwhile is in either
	s.runtime = h.cfg.Runtime()
	for i := range s.runtime {
		p := &s.runtime[i]
		if h.known(s, p.UID); !s.claimed(p.UID) && h.cfg.Sources.Holds(sourceOf(p), p.Namespace, p.Name) {
			s.held[p.UID] = struct{}{}
		}
	}
	s.full = h.cfg.Sources.Ready("")
	for _, pod := range h.cfg.Sources.Pods() {
		if _, ok := s.wanted[pod.UID]; !ok {
			s.wanted[pod.UID] = struct{}{}
		}
	}
	s.wanted = h.cfg.Pods.Wanted(s.wanted)
	return s
}

func (h *Housekeeper) known(s *scene, uids ...types.UID) {
	for _, uid := range uids {
		if _, ok := s.wanted[uid]; ok {
			continue
		}
		if _, ok := h.cfg.Lives.State(uid); ok {
			s.known[uid] = struct{}{}
		}
	}
}

// Tidy looks at pods that have come to their end. What a pod left goes before its
// life is forgotten: should its UID come back meanwhile, it waits for that. Calls
// must not overlap with each other nor with Housekeep.
func (h *Housekeeper) Tidy(ctx context.Context, ended []types.UID) (again []types.UID) {
	for _, uid := range ended {
		st, ok := h.cfg.Lives.State(uid)
		wanted := h.cfg.Pods.get(uid) != nil
		switch {
		case ok && !st.Over, !ok && wanted:
			continue
		case !ok: // its life is forgotten already: it could begin anew at any moment
			if h.clear(uid, func() { h.dropAll(ctx, uid) }) {
				again = append(again, uid)
			}
			continue
		case !wanted && !h.dropAll(ctx, uid):
			continue // the next housekeeping goes on from here
		}
		if h.cfg.Lives.Settle(uid, wanted) {
			again = append(again, uid)
		}
	}
	return again
}

// clear has what is left of a pod removed that nobody wants and that has no life.
// Meanwhile it is given none; it reports that it has been wanted since, so that it
// has to be added now.
func (h *Housekeeper) clear(uid types.UID, remove func()) (back bool) {
	if !h.cfg.Pods.hold(uid) {
		return false // it has come back since
	}
	if _, ok := h.cfg.Lives.State(uid); !ok {
		remove()
	}
	return h.cfg.Pods.letGo(uid)
}

// dropAll removes a pod from all stores and reports whether that went well.
func (h *Housekeeper) dropAll(ctx context.Context, uid types.UID) bool {
	ok := true
	for i := range h.cfg.Stores {
		ok = h.drop(ctx, &h.cfg.Stores[i], uid) == nil && ok
	}
	return ok
}

func (h *Housekeeper) drop(ctx context.Context, store *Store, uid types.UID) error {
	err := store.Remove(ctx, uid)
	h.note(store.Name, uid, err)
	if f := h.cfg.Hooks.Dropped; f != nil {
		f(store.Name, uid, err)
	}
	return err
}

func (h *Housekeeper) do(ctx context.Context, c chores) (back []types.UID) {
	for i := range c.end {
		p := &c.end[i]
		h.cfg.Logger.Info("ending a pod that no source knows", slog.String("uid", string(p.UID)),
			slog.String("namespace", p.Namespace), slog.String("pod", p.Name))
		if f := h.cfg.Hooks.Orphan; f != nil {
			f(*p)
		}
		h.cfg.Lives.Update(podworkers.Update{Orphan: p})
	}
	for _, d := range c.drop {
		for _, uid := range d.uids {
			if ctx.Err() != nil {
				return back
			}
			remove := func() { _ = h.drop(ctx, &h.cfg.Stores[d.store], uid) } // noted, and tried again next time
			if h.clear(uid, remove) {
				back = append(back, uid)
			}
		}
	}
	return back
}

// note logs a fault when it is new, and forgets it when it is gone.
func (h *Housekeeper) note(store string, uid types.UID, err error) {
	key := store + "/" + string(uid)
	if err == nil {
		delete(h.faults, key)
		return
	}
	if h.faults[key] != err.Error() {
		h.faults[key] = err.Error()
		h.cfg.Logger.Warn("housekeeping failed", slog.String("store", store), slog.String("uid", string(uid)), slog.Any("error", err))
	}
}
