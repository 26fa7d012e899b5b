package cri

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"strconv"
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
	"github.com/sublet-dev/agent/runtime/cri/internal/images"
)

func newEnsureRun(c *Client, pod *corev1.Pod, secrets ...podspec.Object) *applyRun {
	t := &applyRun{c: c, pod: pod, images: make(map[neededImage]*fetch)}
	t.ring, _ = images.NewKeyring(secrets)
	return t
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
					im, err := run.ensure(t.Context(), "main", neededImage{"lab/big:1", policy})
					assert.NoError(t, err)
					assert.Equal(t, "sha256:lab/big:1", im.GetId())
					assert.Equal(t, policy == corev1.PullAlways, run.changed)
				})
				synctest.Wait()
				_, err := newEnsureRun(c, onePod("early")).ensure(t.Context(), "main", neededImage{"lab/big:1", policy})
				require.NoError(t, err)
				wg.Wait()
				if policy == corev1.PullAlways {
					assert.Len(t, f.pulls, 2)
					return
				}
				assert.Len(t, f.pulls, 1)
				assert.Contains(t, rec.text(), "already present")
				f.images = map[string]*v1.Image{}
				_, err = newEnsureRun(c, onePod("late")).ensure(t.Context(), "main", neededImage{"lab/big:1", policy})
				require.NoError(t, err)
				assert.Len(t, f.pulls, 2, "one that is gone is fetched again")
			})
		})
	}
}

// IM-4: a back-off is no error of the sync.
func TestEnsure_BackOffIsNoError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.setBefore(func(_ context.Context, rpc string, _ any) error {
			if rpc == "PullImage" {
				return status.Error(codes.Unknown, "manifest unknown")
			}
			return nil
		})
		c := f.client(t, Config{})
		pod := onePod("main")
		ensure := func() runtime.Failure {
			_, err := newEnsureRun(c, pod).ensure(t.Context(), "main", neededImage{busybox, corev1.PullIfNotPresent})
			require.Error(t, err)
			return containerFailure(err)
		}
		tried := time.Now()
		failed := ensure()
		assert.Equal(t, "ErrImagePull", failed.Reason)
		assert.ErrorContains(t, failed.Err, "manifest unknown")
		assert.Equal(t, runtime.Failure{Reason: failed.Reason, Message: failed.Message, Until: tried.Add(5 * time.Second)}, ensure())
		time.Sleep(5 * time.Second)
		waits := ensure()
		require.NoError(t, waits.Err)
		assert.Equal(t, "ImagePullBackOff", waits.Reason)
		assert.Contains(t, waits.Message, "manifest unknown")
		assert.Equal(t, tried.Add(10*time.Second), waits.Until)
		assert.Equal(t, 1, f.count("PullImage"))

		pod = onePod("main")
		pod.UID = "uid-2"
		assert.Equal(t, "ErrImagePull", ensure().Reason, "one that replaces it is tried at once")
		assert.Equal(t, 2, f.count("PullImage"))
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
			im, err := newEnsureRun(f.client(t, Config{}), onePod("main")).ensure(t.Context(), "main", neededImage{tc.ref, tc.policy})
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

// The event of a pull says how long the pull took, and how long the pod waited for it with the pulls before.
func TestPull_EventHasDurations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, rec := newFake(), &fakeRecorder{}
		f.setBefore(func(_ context.Context, rpc string, _ any) error {
			if rpc == "PullImage" {
				time.Sleep(time.Minute)
			}
			return nil
		})
		c := f.client(t, Config{Recorder: rec, Pulls: PullLimits{MaxParallel: 1}})
		pod := onePod("a", "b")
		pod.Spec.Containers[0].Image, pod.Spec.Containers[1].Image = "lab/a:1", "lab/b:1"
		require.Empty(t, c.Apply(t.Context(), pod, startAll(pod), runtime.RunOptions{}).Failures)
		assert.Regexp(t, `Pulled Successfully pulled image "lab/[ab]:1" in 1m0s \(1m0s including waiting\)\. Image size: `+strconv.Itoa(imageBytes)+` bytes\.\n`, rec.text())
		assert.Regexp(t, `Pulled Successfully pulled image "lab/[ab]:1" in 1m0s \(2m0s including waiting\)\. Image size: `+strconv.Itoa(imageBytes)+` bytes\.\n`, rec.text())
	})
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
	_, err := newEnsureRun(c, onePod("main"), secret).ensure(t.Context(), "main", neededImage{busybox, corev1.PullAlways})
	require.Error(t, err)
	assert.ErrorIs(t, err, runtime.ErrUnauthorized)
	assert.Equal(t, codes.Unauthenticated, status.Code(errors.Unwrap(err)))
	_, second := newEnsureRun(c, onePod("main"), secret).ensure(t.Context(), "main", neededImage{busybox, corev1.PullAlways})
	reported := err.Error() + fmt.Sprintf("%+v", err) + second.Error() + containerFailure(second).Message + rec.text() + fmt.Sprint(hooked) + status.Convert(err).Message()
	for _, never := range []string{password, token, url.QueryEscape(password), base64.StdEncoding.EncodeToString([]byte("ann:" + password))} {
		assert.NotContains(t, reported, never)
	}
	assert.Contains(t, reported, "[redacted]")
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

// RT-16: an Apply that breaks off while images are pulled returns when all that it began
// has ended. The race detector sees it if not.
func TestApply_EndsWithItsPulls(t *testing.T) {
	for range 50 {
		f, calls := newFake(), 0
		f.setBefore(func(_ context.Context, rpc string, _ any) error {
			if rpc == "RunPodSandbox" {
				return status.Error(codes.Unknown, "no")
			}
			return nil
		})
		c := f.client(t, Config{Hooks: Hooks{Call: func(rpc string, _ time.Duration, _ error) {
			if rpc == "PullImage" {
				calls++
			}
		}}})
		applied := c.Apply(t.Context(), onePod("a"), startAll(onePod("a")), runtime.RunOptions{})
		require.Contains(t, applied.Failures, "")
		require.LessOrEqual(t, calls, 1)
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

// A pull has the annotations of the pod, as with a kubelet, and a shared one those of the pod that began it: others do not make it
// two pulls.
func TestEnsure_PullHasAnnotationsOfPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.setBefore(func(_ context.Context, _ string, request any) error {
			switch r := request.(type) {
			case *v1.PullImageRequest:
				time.Sleep(time.Minute)
			case *v1.ImageStatusRequest:
				assert.Empty(t, r.GetImage().GetAnnotations())
			}
			return nil
		})
		c := f.client(t, Config{})
		var wg sync.WaitGroup
		for _, index := range []string{"0", "1"} {
			pod := onePod("main")
			pod.UID += types.UID(index)
			pod.Annotations = map[string]string{"example.com/platform": "arm64", "batch.kubernetes.io/job-completion-index": index}
			wg.Go(func() {
				_, err := newEnsureRun(c, pod).ensure(t.Context(), "main", neededImage{"lab/big:1", corev1.PullIfNotPresent})
				assert.NoError(t, err)
			})
			synctest.Wait()
		}
		wg.Wait()
		require.Len(t, f.pulls, 1)
		want := map[string]string{"example.com/platform": "arm64", "batch.kubernetes.io/job-completion-index": "0"}
		assert.Equal(t, want, f.pulls[0].GetImage().GetAnnotations())
		assert.Empty(t, f.pulls[0].GetImage().GetUserSpecifiedImage(), "the image is what the user specified")
	})
}
