package timeline

import "github.com/sublet-dev/agent/internal/priority"

// ranks has the records of a History in the orders in which they make room, so that this needs no walk through all of them.
type ranks struct {
	changed *priority.Queue[*podRecord] // the one that has not changed for longest is first
	deleted *priority.Queue[*podRecord] // only pods that are gone, the one that went first is first
	longest *priority.Queue[*podRecord] // the one with most entries is first
}

// places are the items of a record in the queues.
type places struct {
	changed, deleted, longest *priority.Item[*podRecord]
}

func newRanks() ranks {
	return ranks{
		changed: priority.New(func(a, b *podRecord) bool { return a.Version < b.Version }),
		deleted: priority.New(func(a, b *podRecord) bool { return a.DeletedAt.Before(b.DeletedAt) }),
		longest: priority.New(func(a, b *podRecord) bool { return len(a.entries) > len(b.entries) }),
	}
}

func (k *ranks) add(r *podRecord) {
	r.places.changed, r.places.longest = k.changed.Push(r), k.longest.Push(r)
}

func (k *ranks) remove(r *podRecord) {
	k.changed.Remove(r.places.changed)
	k.longest.Remove(r.places.longest)
	if r.places.deleted != nil {
		k.deleted.Remove(r.places.deleted)
	}
}

// deletionChanged is called after a pod went, or came again.
func (k *ranks) deletionChanged(r *podRecord) {
	switch item := r.places.deleted; {
	case item == nil && !r.DeletedAt.IsZero():
		r.places.deleted = k.deleted.Push(r)
	case item != nil && r.DeletedAt.IsZero():
		k.deleted.Remove(item)
		r.places.deleted = nil
	}
}

// oldestDeleted returns the pod that has been gone for longest, except for one. It is nil if there is none.
func (k *ranks) oldestDeleted(except *podRecord) *podRecord {
	if except != nil && except.places.deleted != nil {
		k.deleted.Remove(except.places.deleted)
		defer func() { except.places.deleted = k.deleted.Push(except) }()
	}
	if k.deleted.Len() == 0 {
		return nil
	}
	return k.deleted.First()
}
