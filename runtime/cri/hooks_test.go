package cri

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/podnet"
	"github.com/sublet-dev/agent/internal/sleep"
	"github.com/sublet-dev/agent/runtime"
)

// RT-10
func TestPostStart(t *testing.T) {
	cases := []struct {
		name string
		exit int32
		err  error
		want string
	}{
		{"that works", 0, nil, ""},
		{"that fails", 7, nil, "PostStartHookError"},
		{"that cannot be run", 0, status.Error(codes.Unknown, "no such command"), "PostStartHookError"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			f, rec := newFake(), &fakeRecorder{}
			f.addImage(busybox)
			f.execute = func(r *v1.ExecSyncRequest) (*v1.ExecSyncResponse, error) {
				assert.Equal(t, []string{"warm", "up"}, r.GetCmd())
				return &v1.ExecSyncResponse{ExitCode: tc.exit, Stderr: []byte("too cold")}, tc.err
			}
			c := f.client(t, Config{Recorder: rec})
			pod := onePod("main")
			pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"warm", "up"}}}}
			applied := c.Apply(t.Context(), pod, startAll(pod), runtime.RunOptions{})
			assert.Equal(t, tc.want, applied.Failures["main"].Reason)
			observed, err := c.Pod(t.Context(), pod.UID)
			require.NoError(t, err)
			if tc.want == "" {
				assert.Equal(t, runtime.Running, observed.Containers[0].State)
				return
			}
			assert.Equal(t, runtime.Exited, observed.Containers[0].State)
			assert.Contains(t, rec.text(), "FailedPostStartHook PostStartHook failed\n")
			assert.Contains(t, f.took(), "StopContainer")
		})
	}
}

// RT-9: a preStop hook has the grace period, also one that is longer than hooks may take elsewhere.
func TestPreStop_HasTheGracePeriod(t *testing.T) {
	for name, hook := range map[string]corev1.LifecycleHandler{
		"exec":    {Exec: &corev1.ExecAction{Command: []string{"drain"}}},
		"httpGet": {HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(80)}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const takes, grace = 40 * time.Minute, time.Hour
				f, rec := newFake(), &fakeRecorder{}
				f.execute = func(r *v1.ExecSyncRequest) (*v1.ExecSyncResponse, error) {
					assert.Equal(t, int64((grace+runtime.MinStopPeriod)/time.Second), r.Timeout)
					time.Sleep(takes)
					return &v1.ExecSyncResponse{}, nil
				}
				c := f.client(t, Config{Recorder: rec, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
					if err := sleep.For(ctx, takes); err != nil {
						return nil, err
					}
					near, far := net.Pipe()
					go func() {
						_, _ = http.ReadRequest(bufio.NewReader(far))
						_, _ = io.WriteString(far, "HTTP/1.1 204 No Content\r\n\r\n")
					}()
					return near, nil
				}})
				pod := onePod("main")
				pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &hook}
				observed := running(t, f, c, pod)
				require.NoError(t, c.Kill(t.Context(), pod, observed, runtime.Termination{GracePeriod: grace}))
				assert.NotContains(t, rec.text(), "FailedPreStopHook")
				assert.Equal(t, int64((grace-takes)/time.Second), f.stops[observed.Containers[0].ID])
			})
		})
	}
}

// RT-9: a sleep has the grace period, however long it is.
func TestPreStop_LongestSleep(t *testing.T) {
	for _, seconds := range []int64{61, 10_000_000_000, 1 << 62, math.MaxInt64} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			c := f.client(t, Config{})
			pod := onePod("main")
			pod.Spec.Containers[0].Lifecycle = sleepHook(seconds)
			observed := running(t, f, c, pod)
			began := time.Now()
			require.NoError(t, c.Kill(t.Context(), pod, observed, runtime.Termination{GracePeriod: time.Minute}))
			assert.Equal(t, time.Minute, time.Since(began), "%d s", seconds)
		})
	}
}

// A tcpSocket, which the API still accepts for hooks, was never supported: it fails.
func TestHooks_TCPSocket(t *testing.T) {
	f, rec := newFake(), &fakeRecorder{}
	f.addImage(busybox)
	c := f.client(t, Config{Recorder: rec})
	pod := onePod("main")
	hook := &corev1.LifecycleHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(80)}}
	pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: hook}
	observed := running(t, f, c, pod)
	require.NoError(t, c.Kill(t.Context(), pod, observed, runtime.Termination{GracePeriod: time.Minute}))
	assert.Contains(t, rec.text(), "FailedPreStopHook")
	assert.Contains(t, f.took(), "StopContainer")

	pod = onePod("other")
	pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: hook}
	applied := c.Apply(t.Context(), pod, startAll(pod), runtime.RunOptions{})
	assert.Equal(t, "PostStartHookError", applied.Failures["other"].Reason)
}

// RT-10: the command of a hook and its output are for the status of the pod: events and logs have
// other readers.
func TestHooks_CommandAndOutputAreForTheStatus(t *testing.T) {
	f, rec := newFake(), &fakeRecorder{}
	f.addImage(busybox)
	f.execute = func(*v1.ExecSyncRequest) (*v1.ExecSyncResponse, error) {
		return &v1.ExecSyncResponse{ExitCode: 7, Stderr: []byte("hunter2")}, nil
	}
	var text strings.Builder
	c := f.client(t, Config{Recorder: rec, Logger: slog.New(slog.NewTextHandler(&text, nil))})
	hook := &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"login", "--token=hunter2"}}}
	pod := onePod("main")
	pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: hook}
	failed := c.Apply(t.Context(), pod, startAll(pod), runtime.RunOptions{}).Failures["main"]
	assert.Equal(t, `postStart hook: command ["login" "--token=hunter2"] ended with 7: hunter2`, failed.Message)
	assert.Equal(t, "postStart hook: lifecycle hook failed with exit code 7", logattr.Redact(failed.Err))

	pod = onePod("main")
	pod.UID, pod.Spec.Containers[0].Lifecycle = "uid-2", &corev1.Lifecycle{PreStop: hook}
	observed := running(t, f, c, pod)
	require.NoError(t, c.Kill(t.Context(), pod, observed, runtime.Termination{GracePeriod: 30 * time.Second}))
	assert.Contains(t, rec.text(), "FailedPreStopHook PreStopHook failed\n")
	assert.NotContains(t, rec.text(), "hunter2")
	assert.Contains(t, text.String(), `msg="preStop hook failed"`)
	assert.Contains(t, text.String(), `err="lifecycle hook failed with exit code 7"`)
	assert.NotContains(t, text.String(), "hunter2")
}

// RT-10: a container whose hook failed is not left running because its end failed
// at first.
func TestPostStart_FailedStopIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.addImage(busybox)
		f.execute = func(*v1.ExecSyncRequest) (*v1.ExecSyncResponse, error) { return &v1.ExecSyncResponse{ExitCode: 7}, nil }
		fails := 3
		f.before = func(_ context.Context, rpc string, _ any) error {
			if rpc == "StopContainer" && fails > 0 {
				fails--
				return status.Error(codes.DeadlineExceeded, "busy")
			}
			return nil
		}
		c := f.client(t, Config{})
		pod := onePod("main")
		pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"warm"}}}}
		applied := c.Apply(t.Context(), pod, startAll(pod), runtime.RunOptions{})
		assert.Equal(t, "PostStartHookError", applied.Failures["main"].Reason)
		observed, err := c.Pod(t.Context(), pod.UID)
		require.NoError(t, err)
		assert.Equal(t, runtime.Exited, observed.Containers[0].State)
	})
}

// RT-10: the preStop hook of a container that is killed for its postStart hook is run, once, within the grace period,
// which is at least a second.
func TestPostStart_FailedRunsPreStop(t *testing.T) {
	for _, grace := range []int64{30, 0} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			f.addImage(busybox)
			f.execute = func(*v1.ExecSyncRequest) (*v1.ExecSyncResponse, error) { return &v1.ExecSyncResponse{ExitCode: 7}, nil }
			refusals := 1
			f.before = func(_ context.Context, rpc string, _ any) error {
				if rpc == "StopContainer" && refusals > 0 {
					refusals--
					return status.Error(codes.Unavailable, "away")
				}
				return nil
			}
			c := f.client(t, Config{})
			pod := onePod("main")
			pod.Spec.TerminationGracePeriodSeconds = &grace
			pod.Spec.Containers[0].Lifecycle = sleepHook(10)
			pod.Spec.Containers[0].Lifecycle.PostStart = &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"warm"}}}
			began := time.Now()
			applied := c.Apply(t.Context(), pod, startAll(pod), runtime.RunOptions{})
			assert.Equal(t, "PostStartHookError", applied.Failures["main"].Reason)
			observed, err := c.Pod(t.Context(), pod.UID)
			require.NoError(t, err)
			assert.Equal(t, runtime.Exited, observed.Containers[0].State)
			hook := min(10, max(grace, 1))
			assert.Equal(t, time.Duration(hook+1)*time.Second, time.Since(began), "the hook, and the wait after the failed stop")
			assert.Equal(t, max(grace-hook-1, 1), f.stops[observed.Containers[0].ID])
		})
	}
}

// RT-10: a container whose StartContainer response is lost may run without its hook, so it is stopped.
func TestPostStart_StartResponseLost(t *testing.T) {
	for name, tc := range map[string]struct {
		hook bool
		err  error
		want runtime.ContainerState
	}{
		"no response":                     {true, status.Error(codes.DeadlineExceeded, "lost"), runtime.Exited},
		"the connection breaks":           {true, status.Error(codes.Unavailable, "broken"), runtime.Exited},
		"no hook":                         {false, status.Error(codes.DeadlineExceeded, "lost"), runtime.Running},
		"the runtime reports the failure": {true, status.Error(codes.Unknown, "no such file"), runtime.Running},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			f.addImage(busybox)
			f.after = func(rpc string, _ any) error {
				if rpc == "StartContainer" {
					return tc.err
				}
				return nil
			}
			c := f.client(t, Config{})
			pod := onePod("main")
			if tc.hook {
				pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"warm"}}}}
			}
			applied := c.Apply(t.Context(), pod, startAll(pod), runtime.RunOptions{})
			assert.Equal(t, "RunContainerError", applied.Failures["main"].Reason)
			observed, err := c.Pod(t.Context(), pod.UID)
			require.NoError(t, err)
			assert.Equal(t, tc.want, observed.Containers[0].State)
		})
	}
}

// The pod's own headers stand alone where they are the same as those that a hook
// has by itself, as in a probe.
func TestHTTPHook_Headers(t *testing.T) {
	for name, tc := range map[string]struct {
		headers       []corev1.HTTPHeader
		agent, accept []string
	}{
		"none":         {nil, []string{"kube-lifecycle/1.37"}, []string{"*/*"}},
		"the pod's":    {[]corev1.HTTPHeader{{Name: "user-agent", Value: "ours"}, {Name: "Accept", Value: "a/b"}}, []string{"ours"}, []string{"a/b"}},
		"set to empty": {[]corev1.HTTPHeader{{Name: "User-Agent"}, {Name: "Accept"}}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got http.Header
			server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.Header }))
			defer server.Close()
			at, err := url.Parse(server.URL)
			require.NoError(t, err)
			err = newFake().client(t, Config{}).runHook(t.Context(), hookTarget{Container: podnet.Container{PodIP: at.Hostname()}}, &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{
				Port: intstr.Parse(at.Port()), HTTPHeaders: tc.headers,
			}})
			require.NoError(t, err)
			assert.Equal(t, tc.agent, got["User-Agent"])
			assert.Equal(t, tc.accept, got["Accept"])
		})
	}
}

func TestHTTPHook(t *testing.T) {
	var got *http.Request
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r
		http.Redirect(w, r, "http://192.0.2.1/elsewhere", http.StatusFound)
	}))
	defer server.Close()
	var dialled string
	c := newFake().client(t, Config{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		dialled = address
		return new(net.Dialer).DialContext(ctx, network, strings.TrimPrefix(server.URL, "http://"))
	}})
	to := hookTarget{
		id: "x", Container: podnet.Container{PodIP: "10.0.0.7", Ports: []corev1.ContainerPort{{Name: "admin", ContainerPort: 9000}}},
	}
	err := c.runHook(t.Context(), to, &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{
		Path: "stop?now=1", Port: intstr.FromString("admin"),
		HTTPHeaders: []corev1.HTTPHeader{{Name: "X-A", Value: "1"}, {Name: "X-A", Value: "2"}, {Name: "Host", Value: "web.local"}},
	}})
	require.NoError(t, err)
	assert.Equal(t, "10.0.0.7:9000", dialled, "a redirect to another host is not followed")
	assert.Equal(t, "/stop?now=1", got.URL.String())
	assert.Equal(t, []string{"1", "2"}, got.Header["X-A"])
	assert.Equal(t, "web.local", got.Host)
	assert.Contains(t, got.UserAgent(), "kube-lifecycle/")

	for _, bad := range []*corev1.LifecycleHandler{
		{},
		{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromString("nothing")}},
		{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(0)}},
	} {
		assert.ErrorIs(t, c.runHook(t.Context(), to, bad), runtime.ErrInvalid)
	}
	assert.ErrorIs(t, c.runHook(t.Context(), hookTarget{}, &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(80)}}), runtime.ErrNotReady)
}

// A server without TLS is a success for a hook with it, as with a kubelet. It does not get what authorizes the request.
func TestHTTPHook_ServerWithoutTLS(t *testing.T) {
	var got []*http.Request
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = append(got, r) }))
	defer server.Close()
	at, err := url.Parse(server.URL)
	require.NoError(t, err)
	rec := &fakeRecorder{}
	c := newFake().client(t, Config{Recorder: rec})
	to := hookTarget{Container: podnet.Container{Name: "main", PodIP: at.Hostname()}, pod: onePod("main")}
	hook := &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{
		Path: "/stop?now", Port: intstr.Parse(at.Port()), Scheme: corev1.URISchemeHTTPS,
		HTTPHeaders: []corev1.HTTPHeader{{Name: "authorization", Value: "Basic dTpw"}, {Name: "X-A", Value: "1"}},
	}}
	require.NoError(t, c.runHook(t.Context(), to, hook))
	require.Len(t, got, 1)
	assert.Equal(t, "/stop?now", got[0].URL.String())
	assert.Equal(t, "1", got[0].Header.Get("X-A"))
	assert.NotContains(t, got[0].Header, "Authorization")
	assert.Contains(t, rec.text(), "LifecycleHTTPFallback HTTPS hook: "+at.Host+" answers without TLS, so it was sent without")

	server.Close()
	require.Error(t, c.runHook(t.Context(), to, hook))
}

// A hook follows a redirect to another port of its host, where there may be nothing but HTTP/2.
func TestHTTPHook_RedirectToAnotherPort(t *testing.T) {
	var got string
	target := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.Proto + " " + r.URL.Path }))
	target.EnableHTTP2 = true
	target.TLS = &tls.Config{NextProtos: []string{"h2"}}
	target.StartTLS()
	defer target.Close()
	server := httptest.NewServer(http.RedirectHandler(target.URL+"/there", http.StatusFound))
	defer server.Close()
	at, err := url.Parse(server.URL)
	require.NoError(t, err)
	require.NoError(t, newFake().client(t, Config{}).runHook(t.Context(), hookTarget{Container: podnet.Container{PodIP: at.Hostname()}},
		&corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.Parse(at.Port())}}))
	assert.Equal(t, "HTTP/2.0 /there", got)
}

// Where packets are dropped, a hook leaves nothing behind that still connects.
func TestHTTPHook_GivesUpItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		took := make(chan time.Duration, 1)
		c := newFake().client(t, Config{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			took <- time.Since(start)
			return nil, ctx.Err()
		}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, c.runHook(ctx, hookTarget{Container: podnet.Container{PodIP: "10.0.0.1"}},
			&corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(80)}}), context.DeadlineExceeded)
		assert.Equal(t, time.Second, <-took)
	})
}
