package containergc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sublet-dev/agent/runtime"
)

// remove executes one removal. The log of a container is removed first: if this process
// ended in between, no container would refer to the log.
func (c *Collector) remove(ctx context.Context, r Removal) error {
	startTime := time.Now()
	var err error
	if r.Container != nil {
		err = errors.Join(c.removeLog(r.Pod, r.Container),
			wrap("remove container "+r.Container.ID, c.cfg.Containers.RemoveContainer(ctx, r.Container.ID)))
	} else {
		err = wrap("remove sandbox "+r.Sandbox.ID, c.cfg.Containers.RemoveSandbox(ctx, r.Sandbox.ID))
	}
	if c.cfg.Hooks.Removed != nil {
		c.cfg.Hooks.Removed(r, time.Since(startTime), err)
	}
	return err
}

// wrap adds what was attempted to err. ErrNotFound counts as success.
func wrap(operation string, err error) error {
	if err == nil || errors.Is(err, runtime.ErrNotFound) {
		return nil
	}
	return fmt.Errorf("%s: %w", operation, err)
}

// maxBackOff is the longest back-off of a removal, unless Config.Period is longer.
const maxBackOff = 15 * time.Minute

// backOffs are those of the containers and sandboxes that could not be removed, by id. A
// runtime may never be able to remove one, and there can be a collection at any time.
type backOffs map[string]backOff

type backOff struct {
	delay time.Duration
	until time.Time
}

// isRunning reports whether a removal is to be tried later.
func (b backOffs) isRunning(id string, now time.Time) bool { return now.Before(b[id].until) }

// last returns the plan with what is to be tried later, and the sandboxes of such containers, at
// its end. A runtime that does not answer for one of them must not delay the others.
func (b backOffs) last(plan []Removal, now time.Time) []Removal {
	if len(b) == 0 {
		return plan
	}
	waits := make(map[string]bool) // by the id of a container or sandbox
	for i := range plan {
		if x := &plan[i]; b.isRunning(x.id(), now) {
			waits[x.id()] = true
			if x.Container != nil {
				waits[x.Container.SandboxID] = true
			}
		}
	}
	first, later := make([]Removal, 0, len(plan)), []Removal(nil)
	for _, x := range plan {
		if waits[x.id()] {
			later = append(later, x)
		} else {
			first = append(first, x)
		}
	}
	return append(first, later...)
}

// note records the result of a removal. The first back-off is one Config.Period.
func (b *backOffs) note(id string, err error, period time.Duration, now time.Time) {
	if err == nil {
		delete(*b, id)
		return
	}
	if *b == nil {
		*b = backOffs{}
	}
	delay := min(max(2*(*b)[id].delay, period), max(maxBackOff, period))
	(*b)[id] = backOff{delay: delay, until: now.Add(delay)}
}

// of returns the back-offs of what is still to be removed.
func (b backOffs) of(plan []Removal) backOffs {
	if len(b) == 0 {
		return nil
	}
	still := backOffs{}
	for i := range plan {
		if id := plan[i].id(); b[id].delay > 0 {
			still[id] = b[id]
		}
	}
	return still
}
