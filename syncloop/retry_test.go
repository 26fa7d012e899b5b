package syncloop

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

func static(p *Pod) { p.Annotations = map[string]string{podspec.AnnotationSource: "file"} }

// switchAdmitter rejects all pods while it has a reason.
type switchAdmitter struct{ reason string }

func (g *switchAdmitter) Admit(*Pod, []*Pod) podspec.AdmitResult {
	if g.reason != "" {
		return podspec.Rejected(g.reason, "not now")
	}
	return podspec.Admitted()
}

func newSwitchedPods(t *testing.T, change ...func(*PodManagerConfig)) (*pods, *switchAdmitter) {
	t.Helper()
	g := &switchAdmitter{reason: "NoLicence"}
	return newPods(t, append(change, func(c *PodManagerConfig) { c.Admitters = []Admitter{g} })...), g
}

// after waits for d, with the ticks of the loop, and returns the calls made in it.
func (p *pods) after(d time.Duration) []string {
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(2 * time.Second)
		p.Revisit(nil)
	}
	return p.w.take()
}

// finishes reports that a pod has finished.
func (p *pods) finishes(uid types.UID, end runtime.Termination) []string {
	p.w.states[uid] = podworkers.State{UID: uid, Phase: podworkers.Finished, Idle: true, Termination: end}
	p.statuses.saved[uid] = corev1.PodStatus{Phase: corev1.PodFailed, Reason: end.Reason, Message: end.Message}
	p.Revisit([]types.UID{uid})
	return p.w.take()
}

// recreates does what follows the termination of a recreated pod.
func (p *pods) recreates(uid types.UID) []string {
	delete(p.w.states, uid)
	p.HandlePodRecreations([]types.UID{uid})
	return p.w.take()
}

var eviction = runtime.Termination{Reason: podspec.ReasonEvicted, Message: "low on memory", Evicted: true}

// Retry is a rejected or evicted pod that will be retried.
type Retry struct {
	UID types.UID
	At  time.Time // the earliest time; a rejected pod is also retried when pods change or finish
}

// Retries returns the pods that will be retried, ordered by UID.
func (p *PodManager) Retries() []Retry {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []Retry
	for _, uid := range slices.Sorted(maps.Keys(p.retries)) {
		if r := p.retries[uid]; !r.at.IsZero() {
			list = append(list, Retry{uid, r.at})
		}
	}
	return list
}

// SL-11: a rejected static pod is retried with back-off, each retry emits an event, and
// the pod starts when it is admitted.
func TestPodManager_RetriesRejectedStaticPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hooks int
		p, g := newSwitchedPods(t, func(c *PodManagerConfig) { c.Hooks.Rejected = func(*Pod, string, string) { hooks++ } })
		a := newPod("a", static)
		assert.Equal(t, []string{"refuse a: NoLicence: not now"}, p.do(podsource.Add, a))
		require.Len(t, p.events.events, 1)
		assert.Equal(t, "not now; next attempt in 10s", p.events.events[0].Message)
		assert.Equal(t, []Retry{{"a", time.Now().Add(10 * time.Second)}}, p.Retries())

		g.reason = ""
		assert.Empty(t, p.after(8*time.Second), "it is not due yet")
		g.reason = "NoLicence"
		p.after(time.Hour)
		var messages []string
		for _, e := range p.events.events[:8] {
			messages = append(messages, e.Message)
		}
		assert.Equal(t, []string{
			"not now; next attempt in 10s", "not now; next attempt in 20s", "not now; next attempt in 40s", "not now; next attempt in 1m20s",
			"not now; next attempt in 2m40s", "not now; next attempt in 5m0s", "not now; next attempt in 5m0s", "not now; next attempt in 5m0s",
		}, messages)
		assert.Less(t, len(p.events.events), 20)

		g.reason = "Other"
		assert.Contains(t, p.after(5*time.Minute), "forget a", "another reason is reported")
		assert.Equal(t, "Other", p.statuses.saved["a"].Reason)
		g.reason = ""
		assert.Equal(t, []string{"forget a", "create a "}, p.after(5*time.Minute))
		assert.Empty(t, p.Retries())
		assert.Equal(t, []string{"remove a"}, p.do(podsource.Remove, a))
	})
}

// SL-11: so is one that ran in a previous process, which its status tells, unless its containers must not run again.
func TestPodManager_RetriesRejectedPodThatHasRun(t *testing.T) {
	ran := corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: "c", RestartCount: 3}}}
	policy := func(policy corev1.RestartPolicy, own *corev1.ContainerRestartPolicy) func(*Pod) {
		return func(p *Pod) {
			p.Spec.RestartPolicy, p.Spec.Containers = policy, []corev1.Container{{Name: "c", RestartPolicy: own}}
		}
	}
	for name, tc := range map[string]struct {
		change func(*Pod)
		want   []string
	}{
		"always": {policy(corev1.RestartPolicyAlways, nil), []string{"forget a", "create a "}},
		"never":  {policy(corev1.RestartPolicyNever, nil), []string{"create a Failed"}},
		"never of its container": {
			policy(corev1.RestartPolicyAlways, new(corev1.ContainerRestartPolicyNever)), []string{"create a Failed"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, g := newSwitchedPods(t)
				p.statuses.saved["a"] = ran
				assert.Equal(t, []string{"refuse a: NoLicence: not now"}, p.do(podsource.Add, newPod("a", static, tc.change)))
				assert.Len(t, p.Problems(), 1)
				g.reason = ""
				assert.Equal(t, tc.want, p.after(10*time.Second))
			})
		})
	}
}

// SL-11: resources may be free after another pod has changed, was removed or has
// finished. Then rejected pods are retried before their back-off ends, without events.
func TestPodManager_RetriesRejectedPodAfterChanges(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(p *pods)
		begins bool
	}{
		"another is removed": {func(p *pods) {
			p.HandlePodChange(podsource.Change{Op: podsource.Remove, Pods: []*Pod{newPod("a", static)}})
		}, true},
		"another has ended": {func(p *pods) { p.finishes("a", runtime.Termination{}) }, true},
		"another is added":  {func(p *pods) { p.HandlePodChange(podsource.Change{Op: podsource.Add, Pods: []*Pod{newPod("c")}}) }, false},
		"another is changed": {func(p *pods) {
			p.HandlePodChange(podsource.Change{Op: podsource.Update, Pods: []*Pod{newPod("a", static)}})
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPods(t, func(c *PodManagerConfig) { c.Admitters = []Admitter{podLimit(1)} })
			p.do(podsource.Add, newPod("a", static), newPod("b", static))
			events := len(p.events.events)
			tc.change(p)
			assert.Equal(t, tc.begins, !p.get("b").rejected)
			if !tc.begins {
				assert.Equal(t, []Retry{{"b", p.retries["b"].at}}, p.Retries())
				assert.Equal(t, 1, p.retries["b"].failures)
				assert.LessOrEqual(t, len(p.events.events), events+1, "of c alone")
			}
		})
	}
}

// SL-11: a rejected pod that changes is retried.
func TestPodManager_RetriesChangedRejectedPod(t *testing.T) {
	p := newPods(t, func(c *PodManagerConfig) { c.Admitters = []Admitter{cores("4")} })
	p.do(podsource.Add, newPod("a", static, asking("5")))
	assert.True(t, p.get("a").rejected)
	assert.Equal(t, []string{"forget a", "create a "}, p.do(podsource.Update, newPod("a", static, asking("1"))))
}

// SL-3: pods that are not static stay Failed, as in Kubernetes.
func TestPodManager_RetriesOnlyStaticPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, g := newSwitchedPods(t)
		p.do(podsource.Add, newPod("rejected"))
		assert.Equal(t, "not now", p.events.events[0].Message)
		g.reason = ""
		p.do(podsource.Add, newPod("evicted"), newPod("deleted", static, deleting), newPod("failed", static), newPod("ends", static))
		assert.Empty(t, p.finishes("evicted", eviction))
		assert.Empty(t, p.finishes("deleted", eviction))
		assert.Empty(t, p.finishes("failed", runtime.Termination{Reason: "DeadlineExceeded"}))
		p.w.states["ends"] = podworkers.State{Phase: podworkers.Terminated, Termination: eviction}
		p.Revisit([]types.UID{"ends"})
		assert.Empty(t, p.finishes("unknown", eviction))
		assert.Empty(t, p.Retries())
		assert.Empty(t, p.after(time.Hour))
	})
}

// SL-11: an evicted static pod starts again after the back-off and the pressure have
// ended and its resources were removed.
func TestPodManager_RetriesEvictedStaticPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pressure, asked := true, 0
		p, g := newSwitchedPods(t, func(c *PodManagerConfig) { c.UnderPressure = func() bool { asked++; return pressure } })
		g.reason = ""
		a := newPod("a", static)
		p.do(podsource.Add, a)
		p.after(time.Minute)
		assert.Zero(t, asked, "no pod waits for it")
		assert.Empty(t, p.finishes("a", eviction))
		require.Len(t, p.events.events, 1)
		assert.Equal(t, "BackOff", p.events.events[0].Reason)
		assert.Equal(t, "Back-off restarting evicted pod; next attempt in 10s", p.events.events[0].Message)
		assert.Empty(t, p.after(time.Hour), "the node is under pressure")
		pressure = false
		assert.Equal(t, []string{"remove a", "comes back a"}, p.after(2*time.Second))
		assert.Empty(t, p.Retries())
		assert.Empty(t, p.finishes("a", runtime.Termination{Evicted: true, Deleted: true}), "finished again, after its resources were removed")
		assert.Equal(t, []string{"forget a", "create a "}, p.recreates("a"))

		// Each further eviction doubles the back-off.
		for _, wait := range []string{"20s", "40s", "1m20s", "2m40s", "5m0s", "5m0s"} {
			p.after(2 * time.Second)
			p.finishes("a", eviction)
			last := p.events.events[len(p.events.events)-1]
			assert.Equal(t, "Back-off restarting evicted pod; next attempt in "+wait, last.Message)
			assert.Equal(t, []string{"remove a", "comes back a"}, p.after(5*time.Minute))
			p.recreates("a")
		}
		p.after(retryReset)
		p.finishes("a", eviction)
		assert.Equal(t, "Back-off restarting evicted pod; next attempt in 10s", p.events.events[len(p.events.events)-1].Message, "it ran long enough")

		pressure = true
		p.after(2 * retryReset)
		pressure, g.reason = false, "NoLicence" // it did not run meanwhile
		assert.Empty(t, p.after(2*time.Second))
		assert.Equal(t, "Back-off restarting evicted pod: NoLicence: not now; next attempt in 20s", p.events.events[len(p.events.events)-1].Message)
		p.do(podsource.Remove, a)
		g.reason = ""
		assert.Empty(t, p.Retries())
		assert.Empty(t, p.after(time.Hour), "it is not desired any more")
	})
}

// SL-11: an evicted static pod that is started again by request before its back-off has ended
// is not restarted when that ends.
func TestPodManager_EvictedPodStartedByRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, g := newSwitchedPods(t)
		g.reason = ""
		p.do(podsource.Add, newPod("a", static))
		p.finishes("a", eviction)
		require.Len(t, p.Retries(), 1)
		assert.Equal(t, []string{"forget a", "create a "}, p.recreates("a"))
		assert.Empty(t, p.Retries())
		assert.Empty(t, p.after(time.Hour), "it runs")

		p.w.states["a"] = podworkers.State{Phase: podworkers.Finished, Idle: true, Termination: eviction, Recreate: true}
		p.Revisit([]types.UID{"a"})
		assert.Empty(t, p.Retries(), "the request came before its end")
	})
}

// SL-11: the status of a static pod by a previous process is not final: a rejected pod is
// admitted like a new one, and an evicted one is postponed.
func TestPodManager_RestoresRetries(t *testing.T) {
	rejected := corev1.PodStatus{Phase: corev1.PodFailed, Reason: "NoLicence", Message: "Pod was rejected: not now"}
	evicted := corev1.PodStatus{Phase: corev1.PodFailed, Reason: podspec.ReasonEvicted, Message: "low on memory"}
	failed := corev1.PodStatus{Phase: corev1.PodFailed, Reason: "DeadlineExceeded", Message: "too late"}
	synctest.Test(t, func(t *testing.T) {
		p, g := newSwitchedPods(t, func(c *PodManagerConfig) { c.Inspector = running(func(uid types.UID) bool { return uid == "runs" }) })
		maps.Copy(p.statuses.saved, map[types.UID]corev1.PodStatus{
			"still": rejected, "other": {Phase: corev1.PodFailed, Reason: "Old", Message: "Pod was rejected: then"}, "runs": rejected,
			"gone": evicted, "late": failed, "api": rejected,
		})
		assert.Equal(t, []string{"refuse still: NoLicence: not now"}, p.do(podsource.Add, newPod("still", static)), "reported as before")
		assert.Equal(t, []string{"forget other", "refuse other: NoLicence: not now"}, p.do(podsource.Add, newPod("other", static)))
		assert.Equal(t, []string{"forget runs", "create runs "}, p.do(podsource.Add, newPod("runs", static)))
		assert.Equal(t, []string{"create late Failed"}, p.do(podsource.Add, newPod("late", static)), "it has failed by itself")
		assert.Equal(t, []string{"create api Failed"}, p.do(podsource.Add, newPod("api")))
		assert.Equal(t, []string{"create gone Failed"}, p.do(podsource.Add, newPod("gone", static)))
		assert.Len(t, p.Retries(), 3)
		last := p.events.events[len(p.events.events)-1]
		assert.Equal(t, "Back-off restarting pod that was evicted before the agent started; next attempt in 10s", last.Message)
		p.statuses.saved["deleted"], p.statuses.saved["ended"] = rejected, evicted
		assert.Equal(t, []string{"create deleted Failed"}, p.do(podsource.Add, newPod("deleted", static, deleting)), "so that its deletion is reported")
		assert.Equal(t, []string{"create ended Failed"}, p.do(podsource.Add, newPod("ended", static, deleting)))
		assert.Len(t, p.Retries(), 3)

		g.reason = ""
		p.statuses.saved["new"] = rejected
		assert.Equal(t, []string{"forget new", "create new "}, p.do(podsource.Add, newPod("new", static)), "it is admitted now")
		p.w.states["gone"] = podworkers.State{Phase: podworkers.Finished, Idle: true}
		assert.Subset(t, p.after(10*time.Second), []string{"remove gone", "comes back gone"})
		assert.Equal(t, []string{"forget gone", "create gone "}, p.recreates("gone"))
	})
}

// SL-11: an evicted pod does not count for its own admission, and a deleted pod is not
// retried.
func TestPodManager_EvictedAndDeletedPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPods(t, func(c *PodManagerConfig) { c.Admitters = []Admitter{podLimit(1)} })
		p.do(podsource.Add, newPod("a", static))
		p.finishes("a", eviction)
		assert.Equal(t, []string{"remove a", "comes back a"}, p.after(10*time.Second))
		assert.Equal(t, []string{"forget a", "create a "}, p.recreates("a"))

		p.do(podsource.Add, newPod("b", static))
		require.Len(t, p.Retries(), 1)
		assert.Equal(t, []string{"change b Failed"}, p.do(podsource.Delete, newPod("b", static, deleting)))
		assert.Empty(t, p.Retries())
	})
}

// SL-3: waiting pods start in the order of their creation.
func TestPodManager_RetriesInOrderOfCreation(t *testing.T) {
	p, g := newSwitchedPods(t)
	var want []string
	last := newPod("last")
	p.do(podsource.Add, last)
	for i := range 9 {
		uid := fmt.Sprint("p", 9-i)
		p.do(podsource.Add, newPod(uid, static, created(int64(i))))
		want = append(want, "forget "+uid, "create "+uid+" ")
	}
	g.reason = ""
	assert.Equal(t, want, p.do(podsource.Remove, last)[1:])
}

// SL-11: the log has the pod and the time of the next retry.
func TestPodManager_LogsRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		p, g := newSwitchedPods(t, func(c *PodManagerConfig) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
		p.do(podsource.Add, newPod("a", static))
		next := time.Now().Add(10 * time.Second).Format("2006-01-02T15:04:05.000Z07:00")
		assert.Contains(t, log.String(), `msg="pod rejected" pod=ns/a podUID=a source=file reason=NoLicence message="not now" retryAt=`+next)
		g.reason = ""
		p.after(10 * time.Second)
		assert.Contains(t, log.String(), `msg="retrying rejected pod" pod=ns/a podUID=a`)
		p.finishes("a", eviction)
		assert.Contains(t, log.String(), `msg="pod restart postponed" pod=ns/a podUID=a message="Back-off restarting evicted pod" retryAt=`)
	})
}

// SL-11: the pods that the node has rejected or evicted are known, with the time of the
// next attempt for those that are retried.
func TestPodManager_Problems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, g := newSwitchedPods(t)
		p.do(podsource.Add, newPod("b", static), newPod("a"))
		g.reason = ""
		p.do(podsource.Add, newPod("c"), newPod("d"), newPod("e"))
		began := time.Now().Add(-time.Hour)
		p.statuses.saved["c"] = corev1.PodStatus{Phase: corev1.PodFailed, Reason: podspec.ReasonEvicted, Message: "low on memory", Conditions: []corev1.PodCondition{
			{Type: corev1.PodInitialized}, {Type: corev1.PodReady, LastTransitionTime: metav1.NewTime(began)},
		}}
		p.statuses.saved["d"] = corev1.PodStatus{Phase: corev1.PodFailed, Message: "it failed by itself"}
		var texts []string
		for _, problem := range p.Problems() {
			texts = append(texts, problem.Error())
			if problem.Pod.UID == "c" {
				assert.Equal(t, began, problem.Since)
				assert.Equal(t, "low on memory", problem.Pod.Status.Message)
			}
		}
		next := time.Now().Add(10 * time.Second).Format(time.RFC3339)
		assert.Equal(t, []string{
			"pod ns/a: NoLicence: Pod was rejected: not now",
			"pod ns/b: NoLicence: Pod was rejected: not now (next attempt at " + next + ")",
			"pod ns/c: Evicted: low on memory",
		}, texts)

		g.reason = "NoLicence"
		p.do(podsource.Remove, newPod("a"), newPod("c"))
		assert.Len(t, p.Problems(), 1)
	})
}
