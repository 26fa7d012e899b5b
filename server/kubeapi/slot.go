package kubeapi

import "context"

// slot lets one goroutine at a time do something that takes I/O or calls the functions of
// Config. A mutex is held over memory only.
type slot chan struct{}

func newSlot() slot { return make(slot, 1) }

// acquire waits until the slot is free or ctx is done.
func (s slot) acquire(ctx context.Context) error {
	select {
	case s <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s slot) release() { <-s }
