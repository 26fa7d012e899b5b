package pleg

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// maxPending is how many events of one pod are kept one by one for a slow reader.
const maxPending = 64

// backlog keeps events until they are drained: one entry a pod, pods in the
// order in which they first had something to tell.
type backlog struct {
	order []types.UID
	pods  map[types.UID]*pending
}

type pending struct {
	base   runtime.Pod // the view before the first of events
	events []Event
}

// add appends events, which lead from old to now. A pod's list that grows long is
// cut down to the difference between what the reader knows and what is now.
func (b *backlog) add(old, now runtime.Pod, events []Event) {
	p := b.pods[now.UID]
	if p == nil {
		if b.pods == nil {
			b.pods = map[types.UID]*pending{}
		}
		p = &pending{base: old}
		b.pods[now.UID] = p
		b.order = append(b.order, now.UID)
	}
	p.events = append(p.events, events...)
	if len(p.events) <= maxPending {
		return
	}
	p.events = diff(p.base, now)
	if len(p.events) == 0 { // it is as it was, and yet things happened
		p.events = []Event{{Type: PodSync, UID: now.UID}}
	}
}

func (b *backlog) drain() []Event {
	var events []Event
	for _, uid := range b.order {
		events = append(events, b.pods[uid].events...)
	}
	b.order, b.pods = nil, nil
	return events
}
