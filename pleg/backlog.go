package pleg

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// maxPending limits the individual events that are kept of one pod for a slow
// reader.
const maxPending = 64

// backlog holds the events that were not drained yet: one entry per pod, in the
// order of the first event of each.
type backlog struct {
	order []*pending
	pods  map[types.UID]*pending
}

type pending struct {
	base   runtime.Pod // state before the first of events
	latest runtime.Pod // state after the last of events
	events []Event
}

// add appends events, which lead from previous to latest. A list that grows too
// long is replaced by the difference between base and latest.
func (b *backlog) add(previous, latest runtime.Pod, events []Event) {
	p := b.pods[latest.UID]
	if p == nil {
		if b.pods == nil {
			b.pods = map[types.UID]*pending{}
		}
		p = &pending{base: previous}
		b.pods[latest.UID] = p
		b.order = append(b.order, p)
	}
	p.latest = latest
	p.events = append(p.events, events...)
	if len(p.events) <= maxPending {
		return
	}
	p.events = difference(p.base, latest)
	if len(p.events) == 0 { // the pod changed and changed back
		p.events = []Event{{Type: PodSync, UID: latest.UID}}
	}
}

// drain empties the backlog.
func (b *backlog) drain() []*pending {
	pods := b.order
	b.order, b.pods = nil, nil
	return pods
}
