package images

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// pullsTake is a registry from which every pull takes that long.
func pullsTake(d time.Duration) func(context.Context, string, string) error {
	return func(ctx context.Context, _, _ string) error {
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// IM-2
func TestPuller_OnePullForManyWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeService{registry: pullsTake(time.Second)}
		p := f.puller()
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				id, err := pullNow(t.Context(), p, request(t, "lab/big:1", ""))
				assert.NoError(t, err)
				assert.True(t, isImageID(id))
			})
		}
		wg.Wait()
		assert.Len(t, f.pulled(), 1)
		_, err := pullNow(t.Context(), p, request(t, "lab/big:1", ""))
		require.NoError(t, err)
		assert.Len(t, f.pulled(), 2, "one that is asked for later is another pull")
		assert.Empty(t, p.inFlight)
		assert.Empty(t, p.last)
	})
}

// IM-2: another login can have another answer, but the runtime pulls a reference once at a
// time.
func TestPuller_OtherLoginsPullOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeService{registry: pullsTake(time.Second)}
		p := f.puller()
		began := time.Now()
		var wg sync.WaitGroup
		for _, user := range []string{"ann", "bob"} {
			wg.Go(func() {
				_, err := pullNow(t.Context(), p, request(t, "reg.example/a:1", user))
				assert.NoError(t, err)
			})
		}
		wg.Wait()
		assert.Len(t, f.pulled(), 2)
		assert.Equal(t, 1, f.most)
		assert.Equal(t, 2*time.Second, time.Since(began))
	})
}

// IM-3
func TestPuller_FewPullsInTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeService{registry: pullsTake(time.Second)}
		p := f.puller(func(c *Config) { c.Limits.MaxParallel = 3 })
		began := time.Now()
		var wg sync.WaitGroup
		for i := range 9 {
			synctest.Wait() // one after the other asks
			wg.Go(func() {
				_, err := pullNow(t.Context(), p, request(t, fmt.Sprintf("lab/i%d:1", i), ""))
				assert.NoError(t, err)
			})
		}
		wg.Wait()
		assert.Equal(t, 3, f.most)
		assert.Equal(t, 3*time.Second, time.Since(began))
		for round := range 3 {
			assert.ElementsMatch(t, []string{
				fmt.Sprintf("lab/i%d:1", round*3), fmt.Sprintf("lab/i%d:1", round*3+1), fmt.Sprintf("lab/i%d:1", round*3+2),
			}, f.pulled()[round*3:round*3+3])
		}
	})
}

// IM-3
func TestPuller_PullsBeginAtARate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeService{}
		p := f.puller(func(c *Config) { c.Limits.MaxParallel, c.Limits.QPS, c.Limits.Burst = 100, 2, 4 })
		began := time.Now()
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				_, err := pullNow(t.Context(), p, request(t, fmt.Sprintf("lab/i%d:1", i), ""))
				assert.NoError(t, err)
			})
		}
		wg.Wait()
		assert.Equal(t, 3*time.Second, time.Since(began)) // four at once, six more at two a second
	})
}

// IM-4
func TestPuller_FailuresBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeService{registry: func(context.Context, string, string) error { return errors.New("manifest unknown") }}
		p, req := f.puller(), request(t, "busybox", "")
		pull := func() *PullError {
			t.Helper()
			_, err := pullNow(t.Context(), p, req)
			failed, ok := errors.AsType[*PullError](err)
			require.True(t, ok, "%v", err)
			assert.ErrorContains(t, err, "manifest unknown")
			return failed
		}
		for i, seconds := range []int{10, 20, 40, 80, 160, 300, 300} {
			tried, wait := time.Now(), time.Duration(seconds)*time.Second
			fresh := min(wait/2, 10*time.Second)
			got := pull()
			assert.Equal(t, ReasonPullFailed, got.Reason)
			assert.Equal(t, tried.Add(fresh), got.Until)
			assert.False(t, got.BackOff)

			time.Sleep(fresh - time.Millisecond)
			got = pull()
			assert.Equal(t, ReasonPullFailed, got.Reason, "who looks again at once does not hide the failure")
			assert.Equal(t, tried.Add(fresh), got.Until)
			assert.True(t, got.BackOff, "nothing was tried")

			time.Sleep(time.Millisecond)
			for range 2 {
				got = pull()
				assert.Equal(t, ReasonPullBackOff, got.Reason)
				assert.ErrorContains(t, got, `back-off pulling image "busybox:latest"`)
				assert.Equal(t, tried.Add(wait), got.Until)
				assert.True(t, got.BackOff)
				time.Sleep(time.Until(tried.Add(wait - time.Millisecond)))
			}
			assert.Len(t, f.pulled(), i+1)
			time.Sleep(time.Millisecond)
		}
		time.Sleep(10*time.Minute + time.Millisecond)
		assert.Equal(t, time.Now().Add(5*time.Second), pull().Until, "a failure that is long past does not count")
		f.registry = nil
		time.Sleep(10 * time.Second)
		_, err := pullNow(t.Context(), p, req)
		require.NoError(t, err)
		assert.Empty(t, p.failed)
	})
}

// IM-4: a plugin that has a new token of the node at each request does not end the back-off. Another user, or
// one for another service account, is another pull.
func TestPuller_BackOffOutlastsTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeService{registry: func(context.Context, string, string) error { return errors.New("401") }}
		p, tokens := f.puller(), 0
		pull := func(user, account string) *PullError {
			t.Helper()
			tokens++
			ring, err := NodeKeyring(map[string]NodeLogin{"reg.example": {Auth: &v1.AuthConfig{Username: user, Password: fmt.Sprint("token-", tokens)}, Account: account}})
			require.NoError(t, err)
			_, err = pullNow(t.Context(), p, request(t, "reg.example/a:1", "").WithNode(ring))
			failed, ok := errors.AsType[*PullError](err)
			require.True(t, ok, "%v", err)
			return failed
		}
		assert.False(t, pull("AWS", "").BackOff)
		for range 3 {
			time.Sleep(3 * time.Second)
			assert.True(t, pull("AWS", "").BackOff)
		}
		assert.Len(t, f.pulled(), 1)
		assert.False(t, pull("other", "").BackOff)
		assert.False(t, pull("AWS", "ns/builder").BackOff)
		assert.False(t, pull("AWS", "ns/other").BackOff)
		assert.Len(t, f.pulled(), 4)
		time.Sleep(time.Second)
		assert.False(t, pull("AWS", "").BackOff, "the first one is over")
	})
}

// IM-4: others go on waiting when one gives up; the pull ends with the last.
func TestPuller_CancelledWithoutWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		f := &fakeService{registry: func(ctx context.Context, _, _ string) error {
			err := pullsTake(time.Hour)(ctx, "", "")
			ended <- err
			return err
		}}
		p, req := f.puller(), request(t, "busybox", "")
		first, stopFirst := context.WithCancel(t.Context())
		second, stopSecond := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for _, ctx := range []context.Context{first, second} {
			wg.Go(func() {
				_, err := pullNow(ctx, p, req)
				assert.ErrorIs(t, err, context.Canceled)
			})
			synctest.Wait()
		}
		stopFirst()
		synctest.Wait()
		assert.Empty(t, ended)
		stopSecond()
		wg.Wait()
		assert.Len(t, ended, 1)
		assert.Empty(t, p.failed, "giving up is no failure of the image")
		assert.Empty(t, p.inFlight)
	})
}

// A pull without a waiter does not begin when it is its turn.
func TestPuller_CancelledInTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeService{registry: pullsTake(time.Minute)}
		p := f.puller(func(c *Config) { c.Limits.MaxParallel = 1 })
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := pullNow(t.Context(), p, request(t, "reg.example/a:1", ""))
			assert.NoError(t, err)
		})
		synctest.Wait()
		// One waits for the slot, one for the pull of the same reference.
		for _, req := range []Request{request(t, "reg.example/b:1", ""), request(t, "reg.example/a:1", "ann")} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := pullNow(ctx, p, req)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			cancel()
		}
		wg.Wait()
		assert.Len(t, f.pulled(), 1)
	})
}

// IM-5: every login that matches is tried, the best match first, unless the registry is
// down.
func TestPuller_TriesLoginsInOrder(t *testing.T) {
	ring, err := NewKeyring([]podspec.Object{dockerSecret("s", `{"auths":{
		"reg.example/shop/web":{"username":"exact","password":"xxxx"}, "reg.example/shop":{"username":"team","password":"xxxx"},
		"reg.example":{"username":"all","password":"xxxx"}, "other.example":{"username":"other","password":"xxxx"}}}`)})
	require.NoError(t, err)
	for name, tc := range map[string]struct {
		exact error
		tried []string
		fails bool
	}{
		"the second may":           {errors.New("denied"), []string{"exact", "team"}, false},
		"the first may":            {nil, []string{"exact"}, false},
		"the runtime is not there": {runtime.ErrUnavailable, []string{"exact"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fakeService{registry: func(_ context.Context, _, user string) error {
				if user == "exact" {
					return tc.exact
				}
				return nil
			}}
			req, err := ring.Request("reg.example/shop/web:1", "")
			require.NoError(t, err)
			_, err = pullNow(t.Context(), f.puller(), req)
			assert.Equal(t, tc.fails, err != nil)
			var want []string
			for _, user := range tc.tried {
				want = append(want, "reg.example/shop/web:1 "+user)
			}
			assert.Equal(t, want, f.pulled())
		})
	}
}

// The reasons that runtimes state themselves are those of the pull.
func TestPuller_Reasons(t *testing.T) {
	for message, want := range map[string]string{
		"RegistryUnavailable: down": "RegistryUnavailable", "SignatureValidationFailed: no": "SignatureValidationFailed", "not found": ReasonPullFailed,
	} {
		f := &fakeService{registry: func(context.Context, string, string) error { return status.Error(codes.Unknown, message) }}
		_, err := pullNow(t.Context(), f.puller(), request(t, "busybox", ""))
		failed, ok := errors.AsType[*PullError](err)
		require.True(t, ok)
		assert.Equal(t, want, failed.Reason)
		assert.Equal(t, codes.Unknown, status.Code(errors.Unwrap(err)))
	}
}

// IM-2: who looked for an image before it arrived, and asks for it after, does not cause a
// second pull, unless it wants the newest one or is too late.
func TestPuller_Arrivals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeService{}
		p := f.puller()
		known := p.Arrivals()
		id, err := pullNow(t.Context(), p, request(t, "reg.example/a:1", "ann"))
		require.NoError(t, err)
		pull := func(user string, arrivals uint64) {
			t.Helper()
			got, _, err := p.Pull(request(t, "reg.example/a:1", user), arrivals, nil, func(wait func(context.Context) error) error { return wait(t.Context()) })
			require.NoError(t, err)
			assert.Equal(t, id, got)
		}
		pull("ann", known)
		assert.Len(t, f.pulled(), 1)
		pull("bob", known)
		assert.Len(t, f.pulled(), 2, "that ann may have it says nothing of bob")
		pull("ann", p.Arrivals())
		assert.Len(t, f.pulled(), 3, "it arrived before ann looked")
		time.Sleep(2 * time.Minute)
		pull("ann", known)
		assert.Len(t, f.pulled(), 3)
		time.Sleep(time.Millisecond)
		pull("ann", known)
		assert.Len(t, f.pulled(), 4)
	})
}

// IM-4: a pod that replaces another tries at once, and does not change when the others do. Pods whose back-offs end together
// share a pull.
func TestPuller_EachPodHasItsBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeService{registry: func(context.Context, string, string) error {
			time.Sleep(time.Second)
			return errors.New("manifest unknown")
		}}
		p := f.puller()
		pull := func(pod types.UID) *PullError {
			req := request(t, "reg.example/a:1", "")
			req.Pod = pod
			_, err := pullNow(t.Context(), p, req)
			failed, _ := errors.AsType[*PullError](err)
			return failed
		}
		together := func(pods ...types.UID) []*PullError {
			var wg sync.WaitGroup
			out := make([]*PullError, len(pods))
			for i, pod := range pods {
				wg.Go(func() { out[i] = pull(pod) })
			}
			wg.Wait()
			return out
		}
		for n, wait := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second} {
			for _, failed := range together("a", "b") {
				require.NotNil(t, failed)
				assert.False(t, failed.BackOff)
			}
			require.Len(t, f.pulled(), n+1, "one pull for both")
			time.Sleep(wait)
		}
		for _, failed := range together("a", "b") {
			assert.False(t, failed.BackOff)
		}
		time.Sleep(20 * time.Second)

		fresh := together("new", "a")
		assert.False(t, fresh[0].BackOff, "it has not failed before")
		assert.Equal(t, time.Now().Add(5*time.Second), fresh[0].Until)
		assert.Equal(t, ReasonPullBackOff, fresh[1].Reason, "it waits, whoever pulls meanwhile")
		require.Len(t, f.pulled(), 5)
		time.Sleep(10 * time.Second)
		assert.False(t, pull("new").BackOff)
		assert.Equal(t, ReasonPullBackOff, pull("b").Reason)
		require.Len(t, f.pulled(), 6)

		f.registry = nil
		time.Sleep(80 * time.Second)
		assert.Nil(t, pull("a"))
		assert.Len(t, p.failed, 2, "of the others, which find the image now")
		time.Sleep(20 * time.Minute)
		assert.Nil(t, pull("a"))
		assert.Empty(t, p.failed)
	})
}
