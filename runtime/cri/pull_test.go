package cri

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// pullsTake makes every pull take that long, and notes how many run at a time.
func pullsTake(f *fake, d time.Duration, most *int) {
	var mu sync.Mutex
	running := 0
	f.setBefore(func(ctx context.Context, rpc string, _ any) error {
		if rpc != "PullImage" {
			return nil
		}
		mu.Lock()
		running++
		*most = max(*most, running)
		mu.Unlock()
		defer func() { mu.Lock(); running--; mu.Unlock() }()
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	})
}

func newEnsureRun(c *Client, pod *corev1.Pod, secrets ...podspec.Object) *applyRun {
	t := &applyRun{c: c, pod: pod, images: make(map[neededImage]*fetch)}
	t.ring, _ = newKeyring(secrets)
	return t
}

// IM-2
func TestOnePullHoweverManyWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, most := newFake(), 0
		pullsTake(f, time.Second, &most)
		c := f.client(t, Config{})
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				im, err := newEnsureRun(c, onePod("main")).ensure(t.Context(), neededImage{"lab/big:1", corev1.PullIfNotPresent})
				assert.NoError(t, err)
				assert.Equal(t, "sha256:lab/big:1", im.GetId())
			})
		}
		wg.Wait()
		assert.Len(t, f.pulls, 1)
	})
}

// IM-2: who looked for an image before it arrived, and asks for it after, does
// not cause a second pull, unless it wants the newest one.
func TestEnsure_ImagePulledBetweenStatusAndPull(t *testing.T) {
	for _, policy := range []corev1.PullPolicy{corev1.PullIfNotPresent, corev1.PullAlways} {
		t.Run(string(policy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, rec := newFake(), &fakeRecorder{}
				slow := make(chan struct{}, 1)
				f.after = func(rpc string, _ any) error {
					select {
					case <-slow:
						if rpc == "ImageStatus" {
							time.Sleep(time.Minute) // the answer is on its way
						}
					default:
					}
					return nil
				}
				c := f.client(t, Config{Recorder: rec})
				var wg sync.WaitGroup
				slow <- struct{}{}
				wg.Go(func() {
					run := newEnsureRun(c, onePod("late"))
					im, err := run.ensure(t.Context(), neededImage{"lab/big:1", policy})
					assert.NoError(t, err)
					assert.Equal(t, "sha256:lab/big:1", im.GetId())
					assert.Equal(t, policy == corev1.PullAlways, run.changed)
				})
				synctest.Wait()
				_, err := newEnsureRun(c, onePod("early")).ensure(t.Context(), neededImage{"lab/big:1", policy})
				require.NoError(t, err)
				wg.Wait()
				if policy == corev1.PullAlways {
					assert.Len(t, f.pulls, 2)
					return
				}
				assert.Len(t, f.pulls, 1)
				assert.Contains(t, rec.text(), "already present")
				f.images = map[string]*v1.Image{}
				_, err = newEnsureRun(c, onePod("late")).ensure(t.Context(), neededImage{"lab/big:1", policy})
				require.NoError(t, err)
				assert.Len(t, f.pulls, 2, "one that is gone is fetched again")
			})
		})
	}
}

// IM-3
func TestFewPullsAtOnceInTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, most := newFake(), 0
		pullsTake(f, time.Second, &most)
		c := f.client(t, Config{Pulls: PullLimits{MaxParallel: 3}})
		began := time.Now()
		var wg sync.WaitGroup
		for i := range 9 {
			synctest.Wait() // one after the other asks
			wg.Go(func() {
				_, err := newEnsureRun(c, onePod("main")).ensure(t.Context(), neededImage{fmt.Sprintf("lab/i%d:1", i), corev1.PullAlways})
				assert.NoError(t, err)
			})
		}
		wg.Wait()
		assert.Equal(t, 3, most)
		assert.Equal(t, 3*time.Second, time.Since(began))
		for round := range 3 {
			var refs []string
			for _, p := range f.pulls[round*3 : round*3+3] {
				refs = append(refs, p.GetImage().GetImage())
			}
			assert.ElementsMatch(t, []string{
				fmt.Sprintf("lab/i%d:1", round*3), fmt.Sprintf("lab/i%d:1", round*3+1), fmt.Sprintf("lab/i%d:1", round*3+2),
			}, refs)
		}
	})
}

// IM-3
func TestPullsAreBegunAtARate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := f.client(t, Config{Pulls: PullLimits{MaxParallel: 100, QPS: 2, Burst: 4}})
		began := time.Now()
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				_, err := newEnsureRun(c, onePod("main")).ensure(t.Context(), neededImage{fmt.Sprintf("lab/i%d:1", i), corev1.PullAlways})
				assert.NoError(t, err)
			})
		}
		wg.Wait()
		assert.Equal(t, 3*time.Second, time.Since(began)) // four at once, six more at two a second
	})
}

// IM-4
func TestPullFailuresBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.setBefore(func(_ context.Context, rpc string, _ any) error {
			if rpc == "PullImage" {
				return status.Error(codes.Unknown, "manifest unknown")
			}
			return nil
		})
		c := f.client(t, Config{})
		for _, seconds := range []int{10, 20, 40, 80, 160, 300, 300} {
			wait := time.Duration(seconds) * time.Second
			_, err := newEnsureRun(c, onePod("main")).ensure(t.Context(), neededImage{busybox, corev1.PullIfNotPresent})
			got := containerFailure(err)
			assert.Equal(t, "ErrImagePull", got.Reason)
			assert.ErrorContains(t, got.Err, "manifest unknown")
			tried, fresh := time.Now(), min(wait/2, 10*time.Second)
			assert.Equal(t, tried.Add(fresh), got.Until)
			n := f.count("PullImage")
			for range 2 { // who looks again at once does not hide the failure
				_, err = newEnsureRun(c, onePod("main")).ensure(t.Context(), neededImage{busybox, corev1.PullIfNotPresent})
				second := containerFailure(err)
				require.NoError(t, second.Err, "nothing was tried")
				assert.Equal(t, runtime.Failure{Reason: got.Reason, Message: got.Message, Until: got.Until}, second)
				time.Sleep(fresh/2 - time.Millisecond)
			}
			time.Sleep(time.Until(tried.Add(fresh)))
			_, err = newEnsureRun(c, onePod("main")).ensure(t.Context(), neededImage{busybox, corev1.PullIfNotPresent})
			got = containerFailure(err)
			assert.Equal(t, "ImagePullBackOff", got.Reason)
			assert.Equal(t, tried.Add(wait), got.Until)

			time.Sleep(time.Until(tried.Add(wait - time.Millisecond)))
			_, err = newEnsureRun(c, onePod("main")).ensure(t.Context(), neededImage{busybox, corev1.PullIfNotPresent})
			got = containerFailure(err)
			assert.Equal(t, "ImagePullBackOff", got.Reason)
			assert.NoError(t, got.Err, "a back-off is no error")
			assert.Contains(t, got.Message, "manifest unknown")
			assert.Equal(t, n, f.count("PullImage"))
			time.Sleep(time.Millisecond)
		}
	})
}

// IM-4: others go on waiting when one gives up; the pull ends with the last.
func TestPull_CancelledWithoutWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, most := newFake(), 0
		ended := make(chan error, 1)
		pullsTake(f, time.Hour, &most)
		inner := f.before
		f.setBefore(func(ctx context.Context, rpc string, req any) error {
			err := inner(ctx, rpc, req)
			if rpc == "PullImage" {
				ended <- err
			}
			return err
		})
		c := f.client(t, Config{})
		first, stopFirst := context.WithCancel(t.Context())
		second, stopSecond := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for _, ctx := range []context.Context{first, second} {
			wg.Go(func() {
				_, err := newEnsureRun(c, onePod("main")).ensure(ctx, neededImage{busybox, corev1.PullAlways})
				assert.ErrorIs(t, err, context.Canceled)
			})
			synctest.Wait()
		}
		stopFirst()
		synctest.Wait()
		assert.Empty(t, ended)
		stopSecond()
		wg.Wait()
		synctest.Wait()
		assert.Len(t, ended, 1)

		// Giving up is no failure of the image: the next one pulls at once.
		pullsTake(f, time.Second, &most)
		_, err := newEnsureRun(c, onePod("main")).ensure(t.Context(), neededImage{busybox, corev1.PullAlways})
		assert.NoError(t, err)
	})
}

// IM-1
func TestPullPolicies(t *testing.T) {
	cases := []struct {
		name, ref string
		policy    corev1.PullPolicy
		present   bool
		fails     error
		pulls     int
		reason    string
	}{
		{"always pulls though it is there", busybox, corev1.PullAlways, true, nil, 1, ""},
		{"if not present, and it is", busybox, corev1.PullIfNotPresent, true, nil, 0, ""},
		{"if not present, and it is not", busybox, corev1.PullIfNotPresent, false, nil, 1, ""},
		{"never, and it is there", busybox, corev1.PullNever, true, nil, 0, ""},
		{"never, and it is not", busybox, corev1.PullNever, false, nil, 0, "ErrImageNeverPull"},
		{"a name that is none", "Not An Image", corev1.PullAlways, false, nil, 0, "InvalidImageName"},
		{"a registry that is down", busybox, corev1.PullAlways, false, status.Error(codes.Unknown, "RegistryUnavailable: down"), 1, "RegistryUnavailable"},
		{"a bad signature", busybox, corev1.PullAlways, false, status.Error(codes.Unknown, "SignatureValidationFailed: no"), 1, "SignatureValidationFailed"},
		{"any other failure", busybox, corev1.PullAlways, false, status.Error(codes.NotFound, "nothing there"), 1, "ErrImagePull"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			f := newFake()
			if tc.present {
				f.addImage(tc.ref)
			}
			f.setBefore(func(_ context.Context, rpc string, _ any) error {
				if rpc == "PullImage" {
					return tc.fails
				}
				return nil
			})
			im, err := newEnsureRun(f.client(t, Config{}), onePod("main")).ensure(t.Context(), neededImage{tc.ref, tc.policy})
			assert.Equal(t, tc.pulls, f.count("PullImage"))
			if tc.reason == "" {
				require.NoError(t, err)
				assert.NotEmpty(t, im.GetId())
				return
			}
			assert.Equal(t, tc.reason, containerFailure(err).Reason)
		})
	}
}

func dockerSecret(name, text string) podspec.Object {
	return podspec.Object{
		Ref:  podspec.Ref{Kind: podspec.Secret, Namespace: "shop", Name: name},
		Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(text)},
	}
}

type fakeRecorder struct {
	mu     sync.Mutex
	events []*corev1.Event
}

func (r *fakeRecorder) Record(e *corev1.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

func (r *fakeRecorder) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	for _, e := range r.events {
		fmt.Fprintln(&b, e.Reason, e.Message)
	}
	return b.String()
}

// IM-5: a registry that echoes all it was sent cannot make the agent tell it.
func TestPull_CredentialsAreNotReported(t *testing.T) {
	const password, token = "s3cr3t/pass+word", "tok-0123456789"
	f := newFake()
	f.setBefore(func(_ context.Context, rpc string, req any) error {
		if r, ok := req.(*v1.PullImageRequest); ok && rpc == "PullImage" {
			pair := r.GetAuth().GetUsername() + ":" + r.GetAuth().GetPassword()
			return status.Errorf(codes.Unauthenticated, "401: Authorization: Basic %s; %s; https://r/?p=%s&t=%s; %q",
				base64.StdEncoding.EncodeToString([]byte(pair)), pair, url.QueryEscape(password), r.GetAuth().GetIdentityToken(), password)
		}
		return nil
	})
	rec := &fakeRecorder{}
	var hooked []error
	c := f.client(t, Config{Recorder: rec, Hooks: Hooks{Call: func(_ string, _ time.Duration, err error) { hooked = append(hooked, err) }}})
	secret := dockerSecret("s", fmt.Sprintf(`{"auths":{"docker.io":{"username":"ann","password":%q,"identitytoken":%q}}}`, password, token))
	_, err := newEnsureRun(c, onePod("main"), secret).ensure(t.Context(), neededImage{busybox, corev1.PullAlways})
	require.Error(t, err)
	assert.ErrorIs(t, err, runtime.ErrUnauthorized)
	assert.Equal(t, codes.Unauthenticated, status.Code(errors.Unwrap(errors.Unwrap(err))))
	_, second := newEnsureRun(c, onePod("main"), secret).ensure(t.Context(), neededImage{busybox, corev1.PullAlways})
	reported := err.Error() + fmt.Sprintf("%+v", err) + second.Error() + containerFailure(second).Message + rec.text() + fmt.Sprint(hooked) + status.Convert(err).Message()
	for _, never := range []string{password, token, url.QueryEscape(password), base64.StdEncoding.EncodeToString([]byte("ann:" + password))} {
		assert.NotContains(t, reported, never)
	}
	assert.Contains(t, reported, "[redacted]")
}

// IM-5: every login that fits is tried, the best first.
func TestPull_TriesLoginsInOrder(t *testing.T) {
	f := newFake()
	var tried []string
	f.setBefore(func(_ context.Context, rpc string, req any) error {
		r, ok := req.(*v1.PullImageRequest)
		if !ok || rpc != "PullImage" {
			return nil
		}
		tried = append(tried, r.GetAuth().GetUsername())
		if r.GetAuth().GetUsername() != "team" {
			return status.Error(codes.PermissionDenied, "no")
		}
		return nil
	})
	secret := dockerSecret("s", `{"auths":{
		"reg.example/shop/web":{"username":"exact","password":"xxxx"}, "reg.example/shop":{"username":"team","password":"xxxx"},
		"reg.example":{"username":"all","password":"xxxx"}, "other.example":{"username":"other","password":"xxxx"}}}`)
	_, err := newEnsureRun(f.client(t, Config{}), onePod("main"), secret).ensure(t.Context(), neededImage{"reg.example/shop/web:1", corev1.PullAlways})
	require.NoError(t, err)
	assert.Equal(t, []string{"exact", "team"}, tried)
}

// RT-16: the image comes while the sandbox is made.
func TestImagesComeWhileTheSandboxIsMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.setBefore(func(_ context.Context, rpc string, _ any) error {
			if rpc == "PullImage" || rpc == "RunPodSandbox" {
				time.Sleep(time.Second)
			}
			return nil
		})
		c := f.client(t, Config{Pulls: PullLimits{MaxParallel: 3}})
		pod := onePod("a", "b", "c")
		for i := range pod.Spec.Containers {
			pod.Spec.Containers[i].Image = fmt.Sprintf("lab/i%d:1", i)
		}
		began := time.Now()
		require.Empty(t, c.Apply(t.Context(), pod, startAll(pod), runtime.RunOptions{}).Failures)
		assert.Equal(t, time.Second, time.Since(began))
	})
}

// RT-16: a turn that breaks off while images come tells of what it changed only
// when all that it began has ended. The race detector sees it if not.
func TestATurnEndsWithItsPulls(t *testing.T) {
	for range 50 {
		f := newFake()
		f.setBefore(func(_ context.Context, rpc string, _ any) error {
			if rpc == "RunPodSandbox" {
				return status.Error(codes.Unknown, "no")
			}
			return nil
		})
		c := f.client(t, Config{})
		applied := c.Apply(t.Context(), onePod("a"), startAll(onePod("a")), runtime.RunOptions{})
		require.Contains(t, applied.Failures, "")
		require.Empty(t, c.puller.inFlight)
	}
}

// A container whose image cannot be had does not keep the next from starting.
func TestOneFailingContainerDoesNotKeepOthersFromStarting(t *testing.T) {
	f := newFake()
	f.addImage(busybox)
	c := f.client(t, Config{})
	pod := onePod("a", "b")
	pod.Spec.Containers[0].Image, pod.Spec.Containers[0].ImagePullPolicy = "lab/none:1", corev1.PullNever
	applied := c.Apply(t.Context(), pod, startAll(pod), runtime.RunOptions{})
	require.Len(t, applied.Failures, 1)
	assert.Equal(t, "ErrImageNeverPull", applied.Failures["a"].Reason)
	observed, err := c.Pod(t.Context(), types.UID("uid-1"))
	require.NoError(t, err)
	require.Len(t, observed.Containers, 1)
	assert.Equal(t, runtime.Running, observed.Containers[0].State)
}
