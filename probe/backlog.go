package probe

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// backlog has the changes that were not drained yet: the latest change of each probe,
// grouped by pod, in the order of the first change of each pod.
type backlog struct {
	order []types.UID
	pods  map[types.UID][]ResultChange
}

func (b *backlog) add(c ResultChange) {
	if b.pods == nil {
		b.pods = map[types.UID][]ResultChange{}
	}
	kept, ok := b.pods[c.UID]
	if !ok {
		b.order = append(b.order, c.UID)
	}
	kept = slices.DeleteFunc(kept, func(o ResultChange) bool {
		return o.Container == c.Container && o.Type == c.Type
	})
	b.pods[c.UID] = append(kept, c)
}

func (b *backlog) forget(uid types.UID) {
	if _, ok := b.pods[uid]; ok {
		delete(b.pods, uid)
		b.order = slices.DeleteFunc(b.order, func(o types.UID) bool { return o == uid })
	}
}

func (b *backlog) drain() []ResultChange {
	var all []ResultChange
	for _, uid := range b.order {
		all = append(all, b.pods[uid]...)
	}
	b.order, b.pods = nil, nil
	return all
}
