//go:build linux

package logrotate

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/runtime"
)

var within = bounds{full: 10 << 20, watch: 500 * time.Millisecond, longest: 10 * time.Second}

func TestPollSchedule_Update(t *testing.T) {
	t0 := time.Now()
	for _, tt := range []struct {
		name   string
		sizes  []int64 // at each look
		waits  []int   // milliseconds, after each
		silent []bool
	}{
		{"nothing comes", []int64{0, 0, 0, 0, 0, 0, 0}, []int{500, 1000, 2000, 4000, 8000, 10000, 10000}, []bool{false, true, true, true, true, true, true}},
		{"a line now and then", []int64{0, 100, 100, 200}, []int{500, 1000, 2000, 4000}, []bool{false, false, true, false}},
		{"half the way each time", []int64{0, 1 << 20, 2 << 20}, []int{500, 1000, 2000}, []bool{false, false, false}},
		{"quickly", []int64{0, 5 << 20}, []int{500, 250}, []bool{false, false}},
		{"beyond what it may have", []int64{0, 11 << 20}, []int{500, 20}, []bool{false, false}},
		{"cut short by somebody", []int64{1 << 20, 10}, []int{500, 1000}, []bool{false, false}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var p pollSchedule
			now := t0
			for i, size := range tt.sizes {
				silent := p.update(size, now, 1, within)
				assert.EqualValues(t, tt.waits[i], p.wait.Milliseconds(), "look %d", i)
				assert.Equal(t, tt.silent[i], silent, "look %d", i)
				require.Equal(t, now.Add(p.wait), p.due)
				now = p.due
			}
		})
	}
}

// A log is longer than it may be by what is written within the least interval, if
// its speed doubles at most from one second to the next: whatever speeds come.
func TestPollSchedule_KeepsUp(t *testing.T) {
	for seed := range uint64(30) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		var p pollSchedule
		now, size, speed := time.Now(), 0.0, 1+rnd.Float64()*1e5 // bytes a second
		p.update(0, now, 0, within)
		for range 400 {
			for until := p.due; now.Before(until); now = now.Add(minPollInterval / 4) {
				speed = min(max(speed*(1+(rnd.Float64()*2-0.98)*0.005), 1), 1e9)
				size += speed * (minPollInterval / 4).Seconds()
			}
			p.update(int64(size), now, 0, within)
			if int64(size) >= within.full {
				over := size - float64(within.full)
				require.LessOrEqual(t, over, max(speed*2*minPollInterval.Seconds(), 0.1*float64(within.full)), "seed %d at %.0f B/s", seed, speed)
				size = 0
				p.begin(minPollInterval)
			}
		}
	}
}

func TestPollSchedule_IsDiskLow(t *testing.T) {
	p := pollSchedule{size: 4 << 20, free: 100 << 20}
	for lost, want := range map[int64]bool{0: false, 3<<20 - 1: false, 3 << 20: true, 50 << 20: true, -50 << 20: false} {
		assert.Equal(t, want, p.isDiskLow(10<<20, uint64(100<<20-lost)), lost)
	}
	assert.False(t, (&pollSchedule{}).isDiskLow(10<<20, 0), "nothing is known of the disk")
	p.size = 20 << 20
	assert.True(t, p.isDiskLow(10<<20, 99<<20), "it is too long already")
}

// logFiles is a runtime of many containers with logs.
type logFiles struct {
	dir  string
	pods []runtime.Pod

	mu     sync.Mutex
	opened []string
}

func newLogFiles(t testing.TB, n int) *logFiles {
	c := &logFiles{dir: t.TempDir()}
	for i := range n {
		c.pods = append(c.pods, runtime.Pod{Namespace: "ns", Name: fmt.Sprint("p", i), UID: "u", Containers: []runtime.Container{
			{ID: fmt.Sprint(i), Name: "app", State: runtime.Running},
		}})
		require.NoError(t, os.MkdirAll(filepath.Dir(c.log(i)), 0o755))
		c.write(t, i, "hello\n")
	}
	return c
}

func (c *logFiles) log(i int) string {
	return filepath.Join(c.dir, fmt.Sprintf("ns_p%d_u/app/0.log", i))
}

func (c *logFiles) write(t testing.TB, i int, text string) {
	f, err := os.OpenFile(c.log(i), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	require.NoError(t, err)
	_, err = f.WriteString(text)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

func (c *logFiles) Pods(context.Context) ([]runtime.Pod, error) { return c.pods, nil }

func (c *logFiles) ReopenLog(_ context.Context, id string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.opened = append(c.opened, id)
	return os.WriteFile(filepath.Join(c.dir, "ns_p"+id+"_u/app/0.log"), nil, 0o644)
}

func (c *logFiles) reopened() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.opened)
}

// rotatorEnv steps through the looks of a Rotator, as Run does.
type rotatorEnv struct {
	*Rotator
	t     testing.TB
	root  logRoot
	slots chan struct{}
}

func newRotatorEnv(t testing.TB, c *logFiles, cfg Config) *rotatorEnv {
	cfg.Runtime, cfg.LogsDir = c, c.dir
	r, err := New(cfg)
	require.NoError(t, err)
	r.logWatch, err = newLogWatch()
	require.NoError(t, err)
	root, err := os.OpenRoot(c.dir)
	require.NoError(t, err)
	l := &rotatorEnv{r, t, logRoot{Root: root, maxFiles: 5, renames: new(sync.Mutex)}, make(chan struct{}, 4)}
	t.Cleanup(func() {
		r.wg.Wait()
		r.logWatch.close()
		require.NoError(t, root.Close())
	})
	r.list(t.Context())
	return l
}

func (l *rotatorEnv) step() time.Duration {
	wait := l.pollLogs(l.t.Context(), l.root, l.slots)
	l.wg.Wait()
	return wait
}

// settle looks until all logs sleep.
func (l *rotatorEnv) settle() {
	l.t.Helper()
	require.Eventually(l.t, func() bool { l.step(); return len(l.polled) == 0 }, time.Minute, time.Millisecond)
}

// CG-3: a log that is silent is not polledAt at, until the kernel tells that it is
// written to.
func TestRotator_WatchesIdleLogs(t *testing.T) {
	c := newLogFiles(t, 100)
	l := newRotatorEnv(t, c, Config{MaxSize: 1000, SizePollInterval: time.Millisecond})
	l.settle()
	polledAt := l.logs["ns_p7_u/app/0.log"].at
	for range 10 {
		assert.Equal(t, time.Millisecond, l.step())
	}
	l.waits = true
	assert.Equal(t, maxPollInterval, l.step(), "there is no need to look for events")
	l.waits = false
	l.list(t.Context())
	require.Empty(t, l.polled, "listing wakes nobody")
	assert.Equal(t, polledAt, l.logs["ns_p7_u/app/0.log"].at)

	c.write(t, 7, string(make([]byte, 500)))
	l.step()
	require.Len(t, l.polled, 1, "it was heard")
	assert.EqualValues(t, 506, l.logs["ns_p7_u/app/0.log"].size)
	l.settle()
	c.write(t, 7, string(make([]byte, 500)))
	l.step()
	assert.Equal(t, []string{"7"}, c.reopened())
	l.settle()

	c.write(t, 7, string(make([]byte, 2000)))
	require.NoError(t, os.Rename(c.log(3), c.log(3)+".by-somebody-else"))
	l.step()
	assert.Equal(t, []string{"7", "7"}, c.reopened(), "the new file is watched as the old one was")
	assert.True(t, l.logs["ns_p3_u/app/0.log"].missing)
	c.pods = c.pods[:3]
	l.list(t.Context())
	assert.Len(t, l.logs, 3)
	assert.Len(t, l.logWatch.logs, 3)
	for lg := range l.polled {
		assert.Contains(t, l.logs, lg.path)
	}
}

// A write that comes while a log is being put to sleep is not missed.
func TestRotator_MissesNoWrite(t *testing.T) {
	c := newLogFiles(t, 1)
	l := newRotatorEnv(t, c, Config{MaxSize: 2000, SizePollInterval: time.Millisecond})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 300 {
			c.write(t, 0, "ten bytes\n")
			time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond)
		}
		cancel()
	})
	for ctx.Err() == nil {
		l.step()
		time.Sleep(time.Millisecond)
	}
	wg.Wait()
	l.settle()
	info, err := os.Stat(c.log(0))
	require.NoError(t, err)
	assert.Equal(t, info.Size(), l.logs["ns_p0_u/app/0.log"].size, "what it is known as is what it is")
	assert.NotEmpty(t, c.reopened())
}

// Without the kernel's help silent logs are polledAt at, ever more rarely.
func TestRotator_PollsWithoutInotify(t *testing.T) {
	c := newLogFiles(t, 1)
	l := newRotatorEnv(t, c, Config{MaxSize: 1000, SizePollInterval: time.Millisecond, MonitorInterval: 8 * time.Millisecond})
	l.logWatch.close()
	l.logWatch = nil
	lg := l.logs["ns_p0_u/app/0.log"]
	require.Eventually(t, func() bool { l.step(); return lg.wait == 8*time.Millisecond }, time.Minute, time.Millisecond)
	c.write(t, 0, string(make([]byte, 2000)))
	require.Eventually(t, func() bool { l.step(); return len(c.reopened()) == 1 }, time.Minute, time.Millisecond)
}

// Two names of one file have one watch: who comes second is polledAt at.
func TestRotator_OneFileByTwoNames(t *testing.T) {
	c := newLogFiles(t, 2)
	require.NoError(t, os.Remove(c.log(1)))
	require.NoError(t, os.Link(c.log(0), c.log(1)))
	l := newRotatorEnv(t, c, Config{MaxSize: 1000, SizePollInterval: time.Millisecond, MonitorInterval: 2 * time.Millisecond})
	require.Eventually(t, func() bool { l.step(); return len(l.polled) == 1 }, time.Minute, time.Millisecond)
	for range 5 {
		l.step()
		time.Sleep(3 * time.Millisecond)
	}
	assert.Len(t, l.polled, 1)
}

// BenchmarkPollLogs is a look at 1,000 silent logs.
func BenchmarkPollLogs(b *testing.B) {
	l := newRotatorEnv(b, newLogFiles(b, 1000), Config{SizePollInterval: time.Millisecond})
	l.settle()
	for b.Loop() {
		l.step()
	}
}
