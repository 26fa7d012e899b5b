package podworkers_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

type contextKey struct{}

// The Syncer and SyncEnded get the context that SyncStarted returned, which is cancelled
// with the call.
func TestWorkers_HooksDeriveContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []any
		f := &fakeSyncer{do: func(ctx context.Context, _ string, _ types.UID) (runtime.SyncResult, error) {
			got = append(got, ctx.Value(contextKey{}))
			<-ctx.Done()
			panic("cancelled")
		}}
		w := runWorkers(t, f, func(c *podworkers.Config) {
			c.Hooks.SyncStarted = func(ctx context.Context, call podworkers.SyncCall) context.Context {
				return context.WithValue(ctx, contextKey{}, "trace of "+call.UID)
			}
			c.Hooks.SyncEnded = func(ctx context.Context, _ podworkers.SyncCall, duration time.Duration, _ runtime.SyncResult, err error) {
				got = append(got, ctx.Value(contextKey{}), ctx.Err() != nil, duration, err != nil)
			}
		})
		w.Update(create(newTestPod("a")))
		time.Sleep(time.Second)
		w.RequestKill("a", podworkers.KillOptions{})
		synctest.Wait()
		trace := types.UID("trace of a")
		assert.Equal(t, []any{trace, trace, true, time.Second, true}, got[:5])
	})
}

// A hook that returns no context leaves the one of the call.
func TestWorkers_HooksWithoutContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got context.Context
		f := &fakeSyncer{}
		w := runWorkers(t, f, func(c *podworkers.Config) {
			c.Hooks.SyncStarted = func(context.Context, podworkers.SyncCall) context.Context { return nil }
			c.Hooks.SyncEnded = func(ctx context.Context, _ podworkers.SyncCall, _ time.Duration, _ runtime.SyncResult, _ error) {
				got = ctx
			}
		})
		w.Update(create(newTestPod("a")))
		synctest.Wait()
		assert.NotNil(t, got)
		assert.Equal(t, []string{"0s sync a"}, f.take())
	})
}
