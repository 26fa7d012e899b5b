package syncloop_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

// The loop, its handler, the housekeeper and real workers on a runtime that answers
// immediately: in a bubble, time passes only where the agent itself waits.
func TestScenarios(t *testing.T) {
	a := pod("a")
	for _, tt := range []struct {
		name string
		do   func(t *testing.T, m *fakeNode)
		want []string
	}{
		{"a pod comes and goes without a wait", func(t *testing.T, m *fakeNode) { // PW-14, SL-6
			x := start(t, m)
			x.change(podsource.Add, a)
			synctest.Wait()
			x.change(podsource.Remove, a)
			synctest.Wait()
			assert.False(t, x.workers.IsKnown("a"))
		}, []string{"0s sync a: start", "0s sync a: runs", "0s terminate a grace=30s", "0s finish a", "0s drop a"}},

		{"an idle pod is synced once a minute", func(t *testing.T, m *fakeNode) { // SL-5
			x := start(t, m)
			x.change(podsource.Add, a)
			time.Sleep(150 * time.Second)
		}, []string{"0s sync a: start", "0s sync a: runs", "1m0s sync a: runs", "2m0s sync a: runs"}},

		{"a pod is removed before its addition was handled", func(t *testing.T, m *fakeNode) { // PW-1
			x := start(t, m)
			x.change(podsource.Add, a)
			x.change(podsource.Remove, a)
			synctest.Wait()
			m.take() // the order of the calls is open
			assert.Empty(t, m.pods)
			assert.False(t, x.workers.IsKnown("a"))
		}, nil},

		{"an edited static pod finishes before the new one starts", func(t *testing.T, m *fakeNode) { // SR-3, PW-9
			m.ends = 7 * time.Second
			x := start(t, m)
			x.change(podsource.Add, pod("v1", "web"))
			synctest.Wait()
			x.change(podsource.Remove, pod("v1", "web"))
			x.change(podsource.Add, pod("v2", "web"))
			time.Sleep(10 * time.Second)
		}, []string{
			"0s sync v1: start", "0s sync v1: runs", "0s terminate v1 grace=30s", "7s finish v1", "7s sync v2: start", "7s drop v1", "7s sync v2: runs",
		}},

		{"three versions of a static pod in a row", func(t *testing.T, m *fakeNode) { // PW-9
			m.ends = 7 * time.Second
			x := start(t, m)
			x.change(podsource.Add, pod("v1", "web"))
			synctest.Wait()
			x.change(podsource.Remove, pod("v1", "web"))
			x.change(podsource.Add, pod("v2", "web"))
			time.Sleep(time.Second)
			x.change(podsource.Remove, pod("v2", "web"))
			x.change(podsource.Add, pod("v3", "web"))
			time.Sleep(10 * time.Second)
		}, []string{
			"0s sync v1: start", "0s sync v1: runs", "0s terminate v1 grace=30s", "1s drop v2",
			"7s finish v1", "7s sync v3: start", "7s drop v1", "7s sync v3: runs",
		}},

		{"a manifest is moved away and back while its pod ends", func(t *testing.T, m *fakeNode) { // PW-10
			m.ends = 7 * time.Second
			x := start(t, m)
			x.change(podsource.Add, a)
			synctest.Wait()
			x.change(podsource.Remove, a)
			x.change(podsource.Add, a)
			time.Sleep(8 * time.Second)
		}, []string{
			"0s sync a: start", "0s sync a: runs", "0s terminate a grace=30s", "7s finish a", "7s sync a: start", "7s sync a: runs",
		}},

		{"and after it has ended, whatever its status was", func(t *testing.T, m *fakeNode) {
			x := start(t, m)
			x.change(podsource.Add, a)
			synctest.Wait()
			x.change(podsource.Remove, a)
			synctest.Wait()
			x.saved["a"] = corev1.PodStatus{Phase: corev1.PodFailed}
			x.change(podsource.Add, a)
			synctest.Wait()
		}, []string{
			"0s sync a: start", "0s sync a: runs", "0s terminate a grace=30s", "0s finish a", "0s drop a", "0s sync a: start", "0s sync a: runs",
		}},

		{"and while what it left is removed", func(t *testing.T, m *fakeNode) {
			m.drops = time.Second
			x := start(t, m)
			x.change(podsource.Add, a)
			synctest.Wait()
			x.change(podsource.Remove, a)
			synctest.Wait()
			x.change(podsource.Add, a)
			time.Sleep(1500 * time.Millisecond) // well before the next housekeeping
		}, []string{
			"0s sync a: start", "0s sync a: runs", "0s terminate a grace=30s", "0s finish a", "0s drop a", "1s sync a: start", "1s sync a: runs",
		}},

		{"the grace period is shortened twice", func(t *testing.T, m *fakeNode) { // PW-5, PW-6
			m.ends = time.Hour
			x := start(t, m)
			x.change(podsource.Add, a)
			synctest.Wait()
			x.change(podsource.Remove, a)
			time.Sleep(5 * time.Second)
			x.workers.RequestKill("a", podworkers.KillOptions{Termination: runtime.Termination{GracePeriod: 10 * time.Second}})
			time.Sleep(time.Second)
			x.workers.RequestKill("a", podworkers.KillOptions{Termination: runtime.Termination{GracePeriod: 2 * time.Second}})
			time.Sleep(5 * time.Second)
		}, []string{
			"0s sync a: start", "0s sync a: runs", "0s terminate a grace=30s", "5s terminate a grace=10s", "6s terminate a grace=2s", "8s finish a", "8s drop a",
		}},

		{"a restarted agent adopts running pods", func(t *testing.T, m *fakeNode) { // SL-3, AG-4
			x := start(t, m)
			x.change(podsource.Add, a)
			synctest.Wait()
			x.stop()
			y := start(t, m)
			y.change(podsource.Add, a)
			synctest.Wait()
		}, []string{"0s sync a: start", "0s sync a: runs", "0s adopt a", "0s sync a: runs"}},

		{"a restarted agent terminates orphans, source by source", func(t *testing.T, m *fakeNode) { // SR-8, SL-6, PW-11
			x := start(t, m)
			x.change(podsource.Add, a, of("api", pod("b")), of("http", pod("c")))
			synctest.Wait()
			x.stop()
			m.take()
			m.pods["foreign"] = runtime.Pod{UID: "foreign", Sandboxes: []runtime.Sandbox{{ID: "f"}}}
			y := start(t, m, "file", "api", "http")
			time.Sleep(61 * time.Second) // no source has synced
			y.syncSource("file")
			time.Sleep(10 * time.Second)
			y.syncSource("api", of("api", pod("b")))
			time.Sleep(10 * time.Second)
			y.syncSource("http")
			time.Sleep(10 * time.Second)
			synctest.Wait()
			m.mu.Lock()
			defer m.mu.Unlock()
			assert.Len(t, m.pods, 2, "b, and what names no source")
		}, []string{
			"1m2s terminate a grace=30s", "1m2s drop a", "1m11s adopt b", "1m11s sync b: runs", "1m22s terminate c grace=30s", "1m22s drop c",
		}},

		{"a static pod with the name of an orphan waits for its termination", func(t *testing.T, m *fakeNode) { // PW-9
			m.pods["old"] = runtime.Pod{UID: "old", Namespace: "ns", Name: "web", Sandboxes: []runtime.Sandbox{{Source: "file"}}}
			m.ends = 5 * time.Second
			x := start(t, m)
			time.Sleep(3 * time.Second)
			x.change(podsource.Add, pod("new", "web"))
			time.Sleep(10 * time.Second)
		}, []string{"2s terminate old grace=30s", "7s drop old", "7s sync new: start", "7s sync new: runs"}},

		{"a manifest was edited while no agent ran", func(t *testing.T, m *fakeNode) { // SR-3, PW-9
			m.ends = 7 * time.Second
			x := start(t, m)
			x.change(podsource.Add, pod("v1", "web"))
			synctest.Wait()
			x.stop()
			y := start(t, m)
			y.change(podsource.Add, pod("v2", "web"))
			time.Sleep(10 * time.Second)
		}, []string{"0s sync v1: start", "0s sync v1: runs", "0s terminate v1 grace=30s", "7s drop v1", "7s sync v2: start", "7s sync v2: runs"}},

		{"the runtime is not ready for a minute", func(t *testing.T, m *fakeNode) { // SL-2
			x := start(t, m)
			x.change(podsource.Add, a)
			time.Sleep(10 * time.Second)
			m.setDown(errors.New("away"))
			time.Sleep(40 * time.Second)
			go x.change(podsource.Add, pod("b"))
			go x.change(podsource.Remove, a)
			time.Sleep(20 * time.Second)
			m.setDown(nil)
			x.recheck <- struct{}{}
			synctest.Wait()
			// a is due too by now: whether it is synced before its termination is open.
			lines := slices.DeleteFunc(m.take(), func(l string) bool { return l == "1m10s sync a: runs" })
			assert.ElementsMatch(t, []string{
				"0s sync a: start", "0s sync a: runs",
				"1m10s sync b: start", "1m10s sync b: runs", "1m10s terminate a grace=30s", "1m10s finish a", "1m10s drop a",
			}, lines[:7])
		}, nil},

		{"an event for an unknown pod is left to housekeeping", func(t *testing.T, m *fakeNode) { // SL-4
			x := start(t, m, "file")
			m.pods["stranger"] = runtime.Pod{UID: "stranger", Sandboxes: []runtime.Sandbox{{Source: "file", GracePeriod: time.Second}}}
			x.inspect("stranger")
			time.Sleep(3 * time.Second)
			assert.False(t, x.workers.IsKnown("stranger"))
			x.syncSource("file")
			time.Sleep(2 * time.Second)
		}, []string{"4s terminate stranger grace=1s", "4s drop stranger"}},

		{"a hung pod delays only itself", func(t *testing.T, m *fakeNode) { // PW-2
			m.ends = time.Hour
			x := start(t, m)
			x.change(podsource.Add, a)
			synctest.Wait()
			x.change(podsource.Remove, a)
			synctest.Wait()
			m.take()
			x.change(podsource.Add, pod("b"))
			synctest.Wait()
			assert.NoError(t, x.loop.Healthy())
		}, []string{"0s sync b: start", "0s sync b: runs"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newFakeNode()
				tt.do(t, m)
				synctest.Wait()
				// The cleanup of one pod runs beside the calls for others.
				want, dropped := part(tt.want)
				got, gotDropped := part(m.take())
				assert.Equal(t, want, got)
				assert.Equal(t, dropped, gotDropped)
			})
		})
	}
}

func part(lines []string) (calls, drops []string) {
	for _, line := range lines {
		if strings.Contains(line, " drop ") {
			drops = append(drops, line)
		} else {
			calls = append(calls, line)
		}
	}
	return calls, drops
}

// PW-16: many pods at the same time.
func TestTenThousandPods(t *testing.T) {
	if testing.Short() {
		t.Skip("slow")
	}
	synctest.Test(t, func(t *testing.T) {
		m := newFakeNode()
		m.quiet = true
		x := start(t, m)
		pods := many(10_000)
		x.change(podsource.Add, pods...)
		synctest.Wait()
		m.mu.Lock()
		assert.Len(t, m.pods, len(pods))
		m.mu.Unlock()
		x.change(podsource.Remove, pods...)
		synctest.Wait()
		assert.Empty(t, m.pods)
		assert.Empty(t, m.things)
		assert.Empty(t, x.workers.Snapshot())
		assert.Zero(t, time.Since(m.began), "no timer stands in between")
	})
}

func many(n int) []*corev1.Pod {
	pods := make([]*corev1.Pod, n)
	for i := range pods {
		pods[i] = pod(string(types.UID("pod-" + time.Duration(i).String())))
	}
	return pods
}
