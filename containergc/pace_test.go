package containergc_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/runtime"
)

// listTimes records when a runtime was listed.
type listTimes struct {
	*node

	startTime time.Time
	times     []time.Duration
}

func (l *listTimes) Pods(ctx context.Context) ([]runtime.Pod, error) {
	l.times = append(l.times, time.Since(l.startTime))
	return l.node.Pods(ctx)
}

// CG-1: a paced collection lists again for a request after half a second, and lists
// that are ten seconds old are renewed. Collect is not interrupted by requests.
func TestCollector_Relists(t *testing.T) {
	for name, tt := range map[string]struct {
		interval  time.Duration
		requestAt time.Duration // during the collection; 0: never
		full      bool          // by Collect
		want      []time.Duration
	}{
		"not while the list is fresh":       {want: []time.Duration{0}},
		"for a request after half a second": {requestAt: 410 * time.Millisecond, want: []time.Duration{0, 500 * time.Millisecond}},
		"for a request at once after that":  {requestAt: 710 * time.Millisecond, want: []time.Duration{0, 720 * time.Millisecond}},
		"not for a request during Collect":  {requestAt: 410 * time.Millisecond, full: true, want: []time.Duration{0}},
		"when the list is ten seconds old": {interval: 5 * time.Second, full: true, want: []time.Duration{
			0, 10 * time.Second, 20 * time.Second, 30 * time.Second, 40 * time.Second, 50 * time.Second, 60 * time.Second, 70 * time.Second,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := crowded(61)
				if tt.interval > 0 {
					n = crowded(18)
				}
				rt := &listTimes{node: n}
				c := collector(t, containergc.Config{Containers: rt, PodState: podStates{}.of, RemovalInterval: tt.interval, Period: time.Hour, RequestDelay: time.Second})
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error)
				if tt.requestAt > 0 {
					delay := tt.requestAt
					if !tt.full {
						delay += time.Second
					}
					time.AfterFunc(delay, c.RequestCollection)
				}
				if tt.full {
					rt.startTime = time.Now()
					_, err := c.Collect(ctx)
					require.NoError(t, err)
				} else {
					rt.startTime = time.Now().Add(time.Second)
					c.RequestCollection()
					go func() { done <- c.Run(ctx) }()
					time.Sleep(2300 * time.Millisecond)
					synctest.Wait()
				}
				assert.Equal(t, tt.want, rt.times)
				assert.Equal(t, 1, n.left())
				cancel()
				if !tt.full {
					require.NoError(t, <-done)
				}
			})
		})
	}
}

// slowList takes a while for each list of all pods.
type slowList struct {
	*node

	takes time.Duration
}

func (s *slowList) Pods(ctx context.Context) ([]runtime.Pod, error) {
	time.Sleep(s.takes)
	return s.node.Pods(ctx)
}

// While pods end all the time, collections list all pods for a twentieth of the time, however many
// these are.
func TestCollector_ListsLessOftenWhereThatTakesLong(t *testing.T) {
	for takes, atMost := range map[time.Duration]int{0: 121, 100 * time.Millisecond: 32, time.Second: 5, 10 * time.Second: 2} {
		t.Run(takes.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &slowList{node: crowded(0), takes: takes}
				c := collector(t, containergc.Config{Containers: n, PodState: podStates{}.of})
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error)
				go func() { done <- c.Run(ctx) }()
				for range 600 {
					c.RequestCollection()
					time.Sleep(100 * time.Millisecond)
				}
				lists := n.listed()
				assert.LessOrEqual(t, lists, atMost)
				assert.GreaterOrEqual(t, lists, atMost/2)
				cancel()
				require.NoError(t, <-done)
			})
		})
	}
}

// A failure is reported although the list was renewed, or Reclaim took over, since.
func TestCollector_ReturnsEarlierErrors(t *testing.T) {
	boom := errors.New("boom")
	t.Run("after a new list", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := crowded(10)
			n.fail["c0"] = boom
			c := collector(t, containergc.Config{Containers: n, PodState: podStates{}.of, RemovalInterval: 6 * time.Second})
			_, err := c.Collect(t.Context())
			require.ErrorIs(t, err, boom)
			assert.Greater(t, n.listed(), 1)
			assert.Equal(t, 2, n.left())
		})
	})
	t.Run("after Reclaim took over", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := crowded(10)
			n.fail["c0"] = boom
			c := collector(t, containergc.Config{Containers: n, PodState: podStates{}.of, RemovalInterval: time.Second})
			time.AfterFunc(1500*time.Millisecond, func() { assert.ErrorIs(t, c.Reclaim(t.Context()), boom) })
			startTime := time.Now()
			_, err := c.Collect(t.Context())
			require.ErrorIs(t, err, boom)
			assert.Equal(t, 2*time.Second, time.Since(startTime))
			synctest.Wait()
			assert.Equal(t, 2, n.left())
		})
	})
}

// AG-9: hooks that panic do not keep anything from being removed.
func TestCollector_SurvivesHooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := crowded(3)
		c := collector(t, containergc.Config{Containers: n, PodState: podStates{}.of, Hooks: containergc.Hooks{
			Removed:   func(containergc.Removal, time.Duration, error) { panic("removed") },
			Collected: func(containergc.Result, error) { panic("collected") },
		}})
		_, err := c.Collect(t.Context())
		require.NoError(t, err)
		assert.Equal(t, 1, n.left())
	})
}

// Run ends at once although another collection is still running.
func TestCollector_RunEndsDuringReclaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := collector(t, containergc.Config{Containers: slowRuntime{crowded(1000)}, PodState: podStates{}.of})
		reclaimed := make(chan error)
		go func() { reclaimed <- c.Reclaim(t.Context()) }()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		startTime := time.Now()
		require.NoError(t, c.Run(ctx))
		assert.Equal(t, 2*time.Minute, time.Since(startTime))
		require.NoError(t, <-reclaimed)
	})
}

// CG-1: a link may be created before its log, so a dangling one is kept for a minute,
// unless disk space is needed.
func TestCollector_KeepsFreshLinks(t *testing.T) {
	for name, tt := range map[string]struct {
		age    time.Duration
		urgent bool
		want   bool // it is kept
	}{
		"fresh":                       {time.Minute - 1, false, true},
		"old":                         {time.Minute, false, false},
		"fresh, but space is needed":  {0, true, false},
		"of a clock that is ahead":    {time.Second - time.Minute, false, true},
		"of before the clock was set": {-time.Hour, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newLogsNode(t)
				n.cfg.PodState = podStates{}.of
				link := filepath.Join(n.links, "fresh.log")
				require.NoError(t, os.Symlink(filepath.Join(n.podDir, "app", "1.log"), link))
				require.NoError(t, lutimes(link, time.Now().Add(-tt.age)))
				c := collector(t, n.cfg)
				if tt.urgent {
					require.NoError(t, c.Reclaim(t.Context()))
				} else {
					_, err := c.Collect(t.Context())
					require.NoError(t, err)
				}
				_, err := os.Lstat(link)
				assert.Equal(t, tt.want, err == nil)
				assert.FileExists(t, n.link, "a link to a log is kept")
			})
		})
	}
}
