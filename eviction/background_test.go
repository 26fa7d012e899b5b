package eviction_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/runtime"
)

// counted is a sim that knows what pods take up of the disk once files were counted,
// which takes a while: all is known at the end of it, or half of it half way.
type counted struct {
	*nodeSimulator
	takes  time.Duration
	partly bool // half of the usage is known when counting starts
	counts []time.Time
	known  int // 0: nothing, 1: half, 2: all
	since  []time.Time
}

func (c *counted) RefreshDiskUsage(ctx context.Context, since time.Time) {
	c.mu.Lock()
	c.counts, c.since = append(c.counts, time.Now()), append(c.since, since)
	c.known = 0
	if c.partly {
		c.known = 1
	}
	c.mu.Unlock()
	select {
	case <-ctx.Done():
	case <-time.After(c.takes):
		c.mu.Lock()
		defer c.mu.Unlock()
		c.known = 2
	}
}

func (c *counted) Usage(ctx context.Context, since time.Time) (runtime.NodeUsage, error) {
	u, err := c.nodeSimulator.Usage(ctx, since)
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range u.Pods {
		d := &u.Pods[i].Containers[0].Logs
		switch c.known {
		case 0:
			*d = runtime.DiskUsage{}
		case 1:
			d.Bytes /= 2
		}
		u.Pods[i].Volumes = nil
	}
	return u, err
}

// EV-4, EV-12: while files are counted, memory is looked at and acted on; the pod
// that fills the disk goes when the count is done.
func TestMemoryWaitsForNoCount(t *testing.T) {
	c := &counted{nodeSimulator: newSim(), takes: 20 * time.Second}
	cfg := eviction.Config{Thresholds: hardThresholds("memory.available<100Mi,nodefs.available<10%")}
	bubbleOver(t, c.nodeSimulator, c, cfg, func(t *testing.T, m *eviction.Manager) {
		c.add("calm", "", 0, 1*mib).logs = 1 * mib
		c.add("full", "", 0, 1*mib).logs = 950 * mib
		c.pause(11 * time.Second)
		require.Len(t, c.counts, 1)
		require.Empty(t, c.evicted)
		c.add("hog", "", 0, 950*mib)
		m.RequestMeasurement()
		short := time.Now()
		c.pause(time.Second)
		require.Equal(t, []string{"hog"}, c.victims())
		assert.Less(t, c.evicted[0].at.Sub(short), 100*time.Millisecond)
		c.pause(time.Minute)
		require.Equal(t, []string{"hog", "full"}, c.victims())
		// What was counted before the first eviction does not count after it.
		require.Len(t, c.counts, 2)
		assert.False(t, c.since[1].Before(c.evicted[0].at))
		assert.Less(t, c.evicted[1].at.Sub(c.counts[1]), 21*time.Second, "it goes when the count is done")
	})
}

// EV-12: while memory alone is short no files are counted, and one victim follows
// the other at once.
func TestMemoryEvictionsCountNoFiles(t *testing.T) {
	c := &counted{nodeSimulator: newSim(), takes: 20 * time.Second}
	cfg := eviction.Config{Thresholds: hardThresholds("memory.available<800Mi,nodefs.available<10%")}
	bubbleOver(t, c.nodeSimulator, c, cfg, func(t *testing.T, _ *eviction.Manager) {
		for _, uid := range []types.UID{"a", "b", "c", "d"} {
			c.add(uid, "", 0, 240*mib).logs = 100 * mib
		}
		c.pause(time.Minute)
		require.Equal(t, []string{"a", "b", "c", "d"}[:4], c.victims())
		assert.Equal(t, c.evicted[0].at, c.evicted[3].at)
		assert.Empty(t, c.counts)
	})
}

// EV-5: a count that does not end delays an eviction by PodCleanupTimeout. Then pods
// are ranked by what has been counted so far.
func TestLongCount(t *testing.T) {
	for _, partly := range []bool{false, true} {
		c := &counted{nodeSimulator: newSim(), takes: time.Hour, partly: partly}
		bubbleOver(t, c.nodeSimulator, c, eviction.Config{Thresholds: hardThresholds("nodefs.available<10%")}, func(t *testing.T, m *eviction.Manager) {
			c.add("calm", "", 0, 1*mib).logs = 100 * mib
			c.add("full", "", 0, 1*mib).logs = 850 * mib
			c.pause(45 * time.Second)
			if !partly {
				assert.Empty(t, c.evicted, "nothing is known of anybody")
				assert.Equal(t, "kubelet has disk pressure", m.Conditions()[1].Message, "and that is not told as the last word")
				return
			}
			if assert.Equal(t, []string{"full"}, c.victims()) {
				assert.InDelta(t, 30, c.evicted[0].at.Sub(c.counts[0]).Seconds(), 1.1)
			}
			assert.Len(t, c.counts, 1, "it goes on")
		})
	}
}

// A disk that stays full does not have files counted all the time: a tenth of it at
// most.
func TestCountsOfADiskThatStaysFull(t *testing.T) {
	for takes, most := range map[time.Duration]int{time.Second: 361, 30 * time.Second: 12} {
		c := &counted{nodeSimulator: newSim(), takes: takes}
		bubbleOver(t, c.nodeSimulator, c, eviction.Config{Thresholds: hardThresholds("nodefs.available<10%")}, func(t *testing.T, m *eviction.Manager) {
			c.add("calm", "", 0, 1*mib).logs = 1 * mib
			c.images = 950 * mib
			c.pause(time.Hour)
			assert.LessOrEqual(t, len(c.counts), most)
			assert.GreaterOrEqual(t, len(c.counts), most*8/10)
			assert.Empty(t, c.evicted)
			assert.Contains(t, m.Conditions()[1].Message, "use less than the missing amount")
		})
	}
}

// slow reclaims nothing, and takes its time for it.
type slow struct {
	takes time.Duration
	deaf  chan struct{} // not nil: it does not listen to its context, but to this
	began []time.Time
	times []time.Duration // that it was given
	errs  []error
}

func (s *slow) Reclaim(ctx context.Context) error {
	s.began = append(s.began, time.Now())
	deadline, _ := ctx.Deadline()
	s.times = append(s.times, max(time.Until(deadline), 0))
	select {
	case <-time.After(s.takes):
	case <-ctx.Done():
		if s.deaf != nil {
			<-s.deaf
		}
		s.errs = append(s.errs, ctx.Err())
		return ctx.Err()
	}
	return nil
}

// EV-4, EV-12: during a reclaim, memory is measured and acted on. A runtime that does
// not answer is waited for for two minutes, and a reclaimer that hangs leaves time to the others.
func TestReclaimThatHangs(t *testing.T) {
	const reclaimTime = 2 * time.Minute
	for name, deaf := range map[string]bool{"listens": false, "does not": true} {
		t.Run(name, func(t *testing.T) {
			s, r, second := newSim(), &slow{takes: time.Hour}, &slow{}
			cfg := eviction.Config{Thresholds: hardThresholds("memory.available<100Mi,nodefs.available<10%"), Reclaimers: []eviction.Reclaimer{r, second}}
			bubble(t, s, cfg, func(t *testing.T, m *eviction.Manager) {
				if deaf {
					r.deaf = make(chan struct{})
				}
				s.add("full", "", 0, 1*mib).logs = 950 * mib
				s.pause(11 * time.Second)
				require.Len(t, r.began, 1)
				s.add("hog", "", 0, 950*mib)
				m.RequestMeasurement()
				s.pause(time.Second)
				require.Equal(t, []string{"hog"}, s.victims())
				s.pause(2 * time.Minute)
				require.Equal(t, []string{"hog", "full"}, s.victims())
				want, left := time.Minute, time.Minute
				if deaf {
					want, left = reclaimTime, 0
					assert.Empty(t, second.began)
					close(r.deaf)
					s.pause(time.Second)
				}
				assert.InDelta(t, want.Seconds(), s.evicted[1].at.Sub(r.began[0]).Seconds(), 1.1)
				assert.Equal(t, []time.Duration{time.Minute}, r.times, "it is not called again")
				assert.Equal(t, []error{context.DeadlineExceeded}, r.errs)
				assert.Equal(t, []time.Duration{left}, second.times)
			})
		})
	}
}

// wild panics.
type wild struct{ called int }

func (w *wild) Reclaim(context.Context) error {
	w.called++
	panic("wild")
}

// A reclaimer that panics or fails does not affect the others.
func TestManager_ContinuesAfterFailedReclaim(t *testing.T) {
	var log bytes.Buffer
	s, w, f := newSim(), &wild{}, failing{}
	cfg := eviction.Config{
		Thresholds: hardThresholds("nodefs.available<10%"), Reclaimers: []eviction.Reclaimer{f, w}, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	}
	bubble(t, s, cfg, func(t *testing.T, _ *eviction.Manager) {
		s.add("full", "", 0, 1*mib).logs = 950 * mib
		s.pause(time.Minute)
		assert.Equal(t, []string{"full"}, s.victims())
		assert.Equal(t, 1, w.called)
	})
	assert.Contains(t, log.String(), "panic=wild")
	assert.Contains(t, log.String(), `msg="reclaiming node resources failed" err="no images"`)
}

type failing struct{}

func (failing) Reclaim(context.Context) error { return errors.New("no images") }
