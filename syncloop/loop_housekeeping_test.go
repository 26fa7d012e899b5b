package syncloop

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/sleep"
	"github.com/sublet-dev/agent/pleg"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/probe"
)

// fakeCleaner is a Cleaner that takes a while.
type fakeCleaner struct {
	*callLog
	takes     time.Duration // guarded by the mutex of callLog, as are
	recreated []types.UID
	settled   bool
}

func (k *fakeCleaner) set(takes time.Duration, recreated ...types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.takes, k.recreated = takes, recreated
}

func (k *fakeCleaner) CleanupPods(ctx context.Context) ([]types.UID, bool) {
	k.note("housekeep")
	recreated := k.work(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	return recreated, k.settled
}

func (k *fakeCleaner) CleanupFinished(ctx context.Context, ended []types.UID) []types.UID {
	k.note("tidy %v", ended)
	return k.work(ctx)
}

func (k *fakeCleaner) Wait() { k.note("wait") }

func (k *fakeCleaner) work(ctx context.Context) []types.UID {
	k.mu.Lock()
	takes, recreated := k.takes, k.recreated
	k.mu.Unlock()
	_ = sleep.For(ctx, takes) // what was found counts even if the loop ends
	return recreated
}

// SL-6: housekeeping runs every 2 s and after each finished pod, one pass at a time, and
// does not block the loop.
func TestLoop_HousekeepingDoesNotBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &fakeCleaner{}
		b := start(t, func(b *loopEnv, c *Config) { c.Cleaner, k.callLog = k, &b.log })
		time.Sleep(4500 * time.Millisecond)
		b.podFinished("x")
		synctest.Wait()
		assert.Equal(t, []string{"2s housekeep", "2s again []", "4s housekeep", "4s again []", "4.5s revisit [x]", "4.5s tidy [x]", "4.5s again []"}, b.log.take())

		synctest.Wait()
		k.set(3*time.Second, "y")
		time.Sleep(2 * time.Second) // the third begins at 6 s
		b.podFinished("x")
		b.podFinished("z")
		b.probes.put(probe.ResultChange{UID: "a"})
		time.Sleep(3 * time.Second)
		synctest.Wait()
		assert.Equal(t, []string{"6s housekeep", "6.5s wake a RequeueNow", "9s again [y]", "9s revisit [x z]", "9s tidy [x z]"}, b.log.take())
		b.cancel()
		assert.NoError(t, <-b.stopped, "Run waits for its goroutines")
	})
}

// SL-6: housekeeping comes also if the loop always has something else to do when it is due.
func TestLoop_HousekeepingWhenBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &fakeCleaner{}
		var probes *backlog[probe.ResultChange]
		b := start(t, func(b *loopEnv, c *Config) {
			c.Cleaner, k.callLog, probes = k, &b.log, b.probes
			c.Hooks.IterationEnded = func(Input, time.Duration) {
				time.Sleep(3 * time.Millisecond) // no multiple of which is one of the period's
				probes.put(probe.ResultChange{UID: "a"})
			}
		})
		b.probes.put(probe.ResultChange{UID: "a"})
		time.Sleep(time.Minute)
		passes := 0
		for _, line := range b.log.take() {
			if strings.HasSuffix(line, " housekeep") {
				passes++
			}
		}
		assert.Greater(t, passes, 25, "one in 2 s")
		b.cancel()
		assert.NoError(t, <-b.stopped)
	})
}

// SL-6: when all is settled, housekeeping runs once a minute; after something has happened
// it runs within 2 s.
func TestLoop_HousekeepingWhenIdle(t *testing.T) {
	for name, do := range map[string]func(b *loopEnv){
		"a change": func(b *loopEnv) { b.changes <- podsource.Change{Op: podsource.Add} },
		"an event": func(b *loopEnv) { b.events.put(pleg.Event{Type: pleg.ContainerRemoved, UID: "a"}) },
		"an end":   func(b *loopEnv) { b.podFinished("a") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := &fakeCleaner{settled: true}
				b := start(t, func(b *loopEnv, c *Config) { c.Cleaner, k.callLog = k, &b.log })
				passes := func() (at []string) {
					synctest.Wait()
					for _, line := range b.log.take() {
						if when, ok := strings.CutSuffix(line, " housekeep"); ok {
							at = append(at, when)
						}
					}
					return at
				}
				time.Sleep(130 * time.Second)
				assert.Equal(t, []string{"2s", "1m2s", "2m2s"}, passes())
				time.Sleep(time.Second)
				do(b)
				time.Sleep(60 * time.Second)
				assert.Equal(t, []string{"2m12s"}, passes(), "one pass, which starts the next minute")
				b.probes.put(probe.ResultChange{UID: "a"})
				time.Sleep(10 * time.Second)
				assert.Equal(t, []string{"3m12s"}, passes(), "a probe result is no reason")
				b.cancel()
				assert.NoError(t, <-b.stopped)
			})
		})
	}
}

// SL-6: the loop ends after the work that the Cleaner continues.
func TestLoop_WaitsForCleaner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &fakeCleaner{}
		b := start(t, func(b *loopEnv, c *Config) { c.Cleaner, k.callLog = k, &b.log })
		k.set(time.Minute)
		time.Sleep(2500 * time.Millisecond)
		b.cancel()
		require.NoError(t, <-b.stopped)
		assert.Equal(t, []string{"2s housekeep", "2.5s wait"}, b.log.take())
	})
}
