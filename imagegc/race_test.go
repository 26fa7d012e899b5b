package imagegc_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/imagegc"
)

// IG-1: a pod that starts while its image is being removed waits, and finds the
// image gone; one that starts before keeps it; one that starts with no lease is
// seen right before the removal.
func TestCollector_LeasesDuringRemoval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(10)
		s.slow = 10 * time.Second
		c := collector(t, imagegc.Config{Images: s})
		first, second, third := s.pull("a", 3), s.pull("b", 3), s.pull("c", 3)
		fourth := s.pull("d", 1)
		_, _ = c.Collect(t.Context())
		time.Sleep(time.Hour)

		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = c.DeleteUnused(t.Context())
		}()
		time.Sleep(time.Second)
		began := time.Now()
		require.NoError(t, c.Lease(t.Context(), "late", []string{"reg.io/a:1"}))
		assert.Equal(t, 9*time.Second, time.Since(began), "until the removal is over")
		assert.Equal(t, []string{first}, s.removed)
		require.NoError(t, c.Lease(t.Context(), "early", []string{"reg.io/d:1"}))
		s.run("reg.io/c:1") // by a client without leases

		synctest.Wait()
		began = time.Now()
		require.NoError(t, c.Lease(t.Context(), "other", []string{"elsewhere/x"}))
		assert.Zero(t, time.Since(began), "one that is not concerned does not wait")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, c.Lease(ctx, "impatient", []string{"reg.io/b:1"}), context.DeadlineExceeded)
		<-done
		assert.Equal(t, []string{first, second}, s.removed)
		assert.Equal(t, []string{third, fourth}, s.ids())
		c.Retain(func(uid types.UID) bool { return uid == "other" })
	})
}

// Many pods start, run and end while collection goes on without a pause: none
// ever misses an image that it had found.
func TestCollector_StartsDuringCollection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(1000)
		c := collector(t, imagegc.Config{Images: s, DiskSettleTime: time.Millisecond, Policy: imagegc.Policy{MinAge: time.Millisecond, HighThresholdPercent: 2, LowThresholdPercent: 1}})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			for ctx.Err() == nil {
				_, _ = c.Collect(ctx)
				time.Sleep(3 * time.Millisecond)
			}
		})
		s.slow = 2 * time.Millisecond
		pulls := 0
		for i := range 300 {
			name := fmt.Sprint("app", i%12)
			uid := types.UID(fmt.Sprint("pod", i))
			require.NoError(t, c.Lease(ctx, uid, []string{"reg.io/" + name + ":1"}))
			id := "sha256:" + fmt.Sprintf("%x", name)
			if !slices.Contains(s.ids(), id) {
				require.Equal(t, id, s.pull(name, 20))
				pulls++
			}
			time.Sleep(time.Duration(i%7) * time.Millisecond)
			require.Contains(t, s.ids(), id, "start %d: its image went away under it", i)
			c.Release(uid)
			time.Sleep(time.Millisecond)
		}
		assert.Greater(t, pulls, 50, "collection was at work")
		cancel()
		wg.Wait()
	})
}
