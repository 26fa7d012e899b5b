package kubeapi

import (
	"context"
	"time"
)

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

// refresher has one goroutine at a time update what clients see, so that an older state does not replace a newer one. An
// update is for all who wait for it when it begins: any number of requests that come at once costs two.
type refresher struct {
	slot
	began time.Time // the last update that has succeeded; guarded by slot
}

func newRefresher() refresher { return refresher{slot: newSlot()} }

// do runs update, unless another goroutine has begun one since do was called.
func (r *refresher) do(ctx context.Context, update func() error) error {
	came := time.Now()
	if err := r.acquire(ctx); err != nil {
		return err
	}
	defer r.release()
	if r.began.After(came) {
		return nil
	}
	began := time.Now()
	if err := update(); err != nil {
		return err
	}
	r.began = began
	return nil
}
