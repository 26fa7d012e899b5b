package provider_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/provider"
)

func TestNew_ChecksConfig(t *testing.T) {
	_, err := provider.New(provider.Config{Timeout: -1})
	require.ErrorContains(t, err, "provider: Config.Provider required")
	require.ErrorContains(t, err, "provider: Config.Timeout must not be negative")
}

func TestRuntime_Status(t *testing.T) {
	rt, err := provider.New(provider.Config{Provider: newMemory(), Name: "vm", Version: "1"})
	require.NoError(t, err)
	st, err := rt.Status(t.Context())
	require.NoError(t, err)
	assert.Equal(t, runtime.Status{Name: "vm", Version: "1", RuntimeReady: true, NetworkReady: true}, st)

	c := &complete{updating: updating{newMemory()}}
	rt = newTestRuntime(t, c)
	st, err = rt.Status(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "provider", st.Name)
	c.pingErr = errors.New("no quota")
	_, err = rt.Status(t.Context())
	require.ErrorIs(t, err, c.pingErr)
}

// listed returns the UIDs that Pods returns, sorted.
func listed(t *testing.T, rt *provider.Runtime) []types.UID {
	t.Helper()
	pods, err := rt.Pods(t.Context())
	require.NoError(t, err)
	uids := []types.UID{}
	for i := range pods {
		require.NotNil(t, pods[i].Object)
		uids = append(uids, pods[i].UID)
	}
	slices.Sort(uids)
	return uids
}

// observe returns the state that Pod returns.
func observe(t *testing.T, rt *provider.Runtime, name string) runtime.Pod {
	t.Helper()
	p, err := rt.Pod(t.Context(), types.UID("uid-"+name))
	require.NoError(t, err)
	return p
}

// create creates pods.
func create(t *testing.T, rt *provider.Runtime, pods ...*corev1.Pod) {
	t.Helper()
	for _, pod := range pods {
		_, err := rt.SyncPod(t.Context(), pod, runtime.Pod{UID: pod.UID})
		require.NoError(t, err)
	}
}

// listing is a provider that returns what a test gives.
type listing struct {
	*memory
	pods []*corev1.Pod
	err  error
}

func (l *listing) GetPods(context.Context) ([]*corev1.Pod, error) { return l.pods, l.err }

// Nonsense in a list is left out.
func TestRuntime_Pods_LeavesNonsenseOut(t *testing.T) {
	nameless, stranger := newTestPod("web"), newTestPod("stranger")
	nameless.UID, stranger.UID = "", ""
	p := &listing{memory: newMemory(), pods: []*corev1.Pod{nil, newTestPod("a"), newTestPod("a"), nameless, stranger}}
	rt := newTestRuntime(t, p)
	assert.Equal(t, []types.UID{"uid-a"}, listed(t, rt))
	create(t, rt, newTestPod("web"))
	assert.Equal(t, []types.UID{"uid-a", "uid-web"}, listed(t, rt), "it is known by its name")
	assert.Equal(t, types.UID("uid-web"), observe(t, rt, "web").UID)
	assert.True(t, func() bool { p := observe(t, rt, "stranger"); return p.IsEmpty() }())

	p.pods = nil
	assert.Empty(t, listed(t, rt))
	p.err = errors.New("no answer")
	_, err := rt.Pods(t.Context())
	require.ErrorIs(t, err, p.err)
	_, err = rt.Pod(t.Context(), "uid-a")
	require.ErrorIs(t, err, p.err)
}

// What a provider returns is copied: it may change its pods later.
func TestRuntime_Pods_CopiesPods(t *testing.T) {
	pod := newTestPod("a")
	p := &listing{memory: newMemory(), pods: []*corev1.Pod{pod}}
	observed := observe(t, newTestRuntime(t, p), "a")
	pod.Status.Phase = corev1.PodFailed
	assert.Empty(t, observed.Object.Status.Phase)
}

func TestRuntime_Pods_Panics(t *testing.T) {
	p := newMemory()
	p.on("GetPods", func(context.Context, *corev1.Pod) error { panic("no such luck") })
	_, err := newTestRuntime(t, p).Pods(t.Context())
	require.ErrorContains(t, err, "no such luck")
}

// One list answers all callers that wait for it, and one that began before a call does not.
func TestRuntime_Pod_SharesLists(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newMemory()
		rt := newTestRuntime(t, p)
		var lists atomic.Int32
		p.on("GetPods", func(context.Context, *corev1.Pod) error { lists.Add(1); time.Sleep(time.Second); return nil })
		for i := range 10 {
			go func() { _, _ = rt.Pod(t.Context(), types.UID(fmt.Sprint(i))) }()
			if i == 0 {
				synctest.Wait() // its list has begun before the other calls
			}
		}
		synctest.Wait()
		time.Sleep(10 * time.Second)
		assert.EqualValues(t, 2, lists.Load(), "one for the first caller, and one for the others")

		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := rt.Pods(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		time.Sleep(time.Minute)
	})
}

// The list of a provider that does not answer is cancelled.
func TestRuntime_Pods_Timeout(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newMemory()
		p.on("GetPods", func(ctx context.Context, _ *corev1.Pod) error { <-ctx.Done(); return ctx.Err() })
		startTime := time.Now()
		_, err := newTestRuntime(t, p).Pods(t.Context())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, 2*time.Minute, time.Since(startTime))
	})
}

func TestRuntime_Pod_WithPodGetter(t *testing.T) {
	p := getting{newMemory()}
	rt := newTestRuntime(t, p)
	create(t, rt, newTestPod("web"))
	p.on("GetPods", func(context.Context, *corev1.Pod) error { return errors.New("not needed") })
	assert.Equal(t, corev1.PodRunning, observe(t, rt, "web").Object.Status.Phase)

	other := newTestPod("web")
	other.UID = "uid-other"
	p.set(other, corev1.PodRunning)
	observed := observe(t, rt, "web")
	assert.True(t, observed.IsEmpty(), "another pod has its name")
	other.UID = ""
	p.set(other, corev1.PodRunning)
	observed = observe(t, rt, "web")
	assert.False(t, observed.IsEmpty(), "the provider does not store UIDs")

	for name, err := range map[string]error{"ours": fmt.Errorf("web: %w", runtime.ErrNotFound), "of virtual-kubelet": fmt.Errorf("web: %w", nfError{})} {
		p.on("GetPod", func(context.Context, *corev1.Pod) error { return err })
		observed := observe(t, rt, "web")
		assert.True(t, observed.IsEmpty(), name)
	}
	broken := errors.New("no answer")
	p.on("GetPod", func(context.Context, *corev1.Pod) error { return broken })
	_, err := rt.Pod(t.Context(), "uid-web")
	require.ErrorIs(t, err, broken)
}

// The last status of a pod comes with a notification, and is kept although the provider
// forgets the pod.
func TestRuntime_Watch_KeepsLastStatus(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := &notifying{memory: newMemory()}
		rt := newTestRuntime(t, p)
		ctx, cancel := context.WithCancel(t.Context())
		var events []types.UID
		done := make(chan error, 1)
		go func() { done <- rt.Watch(ctx, func(uid types.UID) { events = append(events, uid) }) }()
		synctest.Wait()
		web, job := newTestPod("web"), newTestPod("job")
		create(t, rt, web, job)
		p.notify(p.get("web"))
		p.notify(nil)
		p.notify(&corev1.Pod{})
		p.notify(newTestPod("stranger"))
		assert.Equal(t, []types.UID{"uid-web", "uid-stranger"}, events)
		assert.Equal(t, []types.UID{"uid-job", "uid-web"}, listed(t, rt))

		last := p.get("job")
		last.Status.Phase = corev1.PodSucceeded
		p.remove("job")
		last.UID = ""
		p.notify(last)
		assert.Equal(t, types.UID("uid-job"), events[2], "found by its name")
		last.Status.Phase = corev1.PodFailed
		assert.Equal(t, corev1.PodSucceeded, observe(t, rt, "job").Object.Status.Phase)
		assert.Equal(t, []types.UID{"uid-job", "uid-web"}, listed(t, rt))
		require.NoError(t, rt.Remove(t.Context(), observe(t, rt, "job")))
		assert.Equal(t, []types.UID{"uid-web"}, listed(t, rt))
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
		p.notify(web)
		assert.Len(t, events, 3, "nothing watches any more")
	})
}

func TestRuntime_Watch_Unsupported(t *testing.T) {
	err := newTestRuntime(t, newMemory()).Watch(t.Context(), nil)
	require.ErrorIs(t, err, runtime.ErrUnsupported)
}

// badNotifier panics, or blocks although it should not.
type badNotifier struct {
	*memory
	panics bool
}

func (b badNotifier) NotifyPods(ctx context.Context, _ func(*corev1.Pod)) {
	if b.panics {
		panic("no such luck")
	}
	<-ctx.Done()
}

func TestRuntime_Watch_BadNotifier(t *testing.T) {
	err := newTestRuntime(t, badNotifier{newMemory(), true}).Watch(t.Context(), nil)
	require.ErrorContains(t, err, "no such luck")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, newTestRuntime(t, badNotifier{newMemory(), false}).Watch(ctx, nil), context.Canceled)
}
