package syncloop

import (
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

func static(p *Pod) { p.Annotations = map[string]string{podspec.AnnotationSource: "file"} }

// gatekeeper admits nothing while it has a reason.
type gatekeeper struct{ reason string }

func (g *gatekeeper) Admit(*Pod, []*Pod) podspec.AdmitResult {
	if g.reason != "" {
		return podspec.Rejected(g.reason, "not now")
	}
	return podspec.Admitted()
}

func newGuarded(t *testing.T, change ...func(*PodManagerConfig)) (*pods, *gatekeeper) {
	t.Helper()
	g := &gatekeeper{reason: "NoLicence"}
	return newPods(t, append(change, func(c *PodManagerConfig) { c.Admitters = []Admitter{g} })...), g
}

// after lets time pass, with the loop's ticks, and returns what was done in it.
func (p *pods) after(d time.Duration) []string {
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(2 * time.Second)
		p.Revisit(nil)
	}
	return p.w.take()
}

// ends has a pod's life come to its end.
func (p *pods) ends(uid types.UID, end runtime.Termination) []string {
	p.w.states[uid] = podworkers.State{UID: uid, Phase: podworkers.Finished, Idle: true, Termination: end}
	p.statuses.told[uid] = corev1.PodStatus{Phase: corev1.PodFailed, Reason: end.Reason, Message: end.Message}
	p.Revisit([]types.UID{uid})
	return p.w.take()
}

// settles does what follows the end of a pod that came back.
func (p *pods) settles(uid types.UID) []string {
	delete(p.w.states, uid)
	p.HandlePodRecreations([]types.UID{uid})
	return p.w.take()
}

var eviction = runtime.Termination{Reason: podspec.ReasonEvicted, Message: "low on memory", Evicted: true}

// SL-11: a rejected static pod is asked about with back-off, which is told each time,
// and begins anew when it is admitted.
func TestPods_RejectedStaticPodIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hooks int
		p, g := newGuarded(t, func(c *PodManagerConfig) { c.Hooks.Rejected = func(*Pod, string, string) { hooks++ } })
		a := newPod("a", static)
		assert.Equal(t, []string{"refuse a: NoLicence: not now"}, p.do(podsource.Add, a))
		require.Len(t, p.events.events, 1)
		assert.Equal(t, "not now; next attempt in 10s", p.events.events[0].Message)
		assert.Equal(t, []Retry{{"a", time.Now().Add(10 * time.Second)}}, p.Retries())

		g.reason = ""
		assert.Empty(t, p.after(8*time.Second), "it is not its time yet")
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
		assert.Contains(t, p.after(5*time.Minute), "forget a", "another reason is told")
		assert.Equal(t, "Other", p.statuses.told["a"].Reason)
		g.reason = ""
		assert.Equal(t, []string{"forget a", "create a "}, p.after(5*time.Minute))
		assert.Empty(t, p.Retries())
		assert.Equal(t, []string{"remove a"}, p.do(podsource.Remove, a))
	})
}

// SL-11: there may be room when another pod changes, goes or ends; then nobody waits for
// the back-off, nor is anything told of it in vain.
func TestPods_RejectedPodIsTriedWhenThereMayBeRoom(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(p *pods)
		begins bool
	}{
		"another is removed": {func(p *pods) {
			p.HandlePodChange(podsource.Change{Op: podsource.Remove, Pods: []*Pod{newPod("a", static)}})
		}, true},
		"another has ended": {func(p *pods) { p.ends("a", runtime.Termination{}) }, true},
		"another is added":  {func(p *pods) { p.HandlePodChange(podsource.Change{Op: podsource.Add, Pods: []*Pod{newPod("c")}}) }, false},
		"another is changed": {func(p *pods) {
			p.HandlePodChange(podsource.Change{Op: podsource.Update, Pods: []*Pod{newPod("a", static)}})
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPods(t, func(c *PodManagerConfig) { c.Admitters = []Admitter{room(1)} })
			p.do(podsource.Add, newPod("a", static), newPod("b", static))
			events := len(p.events.events)
			tc.change(p)
			assert.Equal(t, tc.begins, !p.get("b").rejected)
			if !tc.begins {
				assert.Equal(t, []Retry{{"b", p.retries["b"].at}}, p.Retries())
				assert.Equal(t, 1, p.retries["b"].fails)
				assert.LessOrEqual(t, len(p.events.events), events+1, "of c alone")
			}
		})
	}
}

// SL-11: a change may be what a rejected pod needed.
func TestPods_ChangedRejectedPodIsTriedAgain(t *testing.T) {
	p := newPods(t, func(c *PodManagerConfig) { c.Admitters = []Admitter{cores("4")} })
	p.do(podsource.Add, newPod("a", static, asking("5")))
	assert.True(t, p.get("a").rejected)
	assert.Equal(t, []string{"forget a", "create a "}, p.do(podsource.Update, newPod("a", static, asking("1"))))
}

// SL-3: pods of other sources stay Failed, as Kubernetes has it.
func TestPods_OnlyStaticPodsAreTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, g := newGuarded(t)
		p.do(podsource.Add, newPod("rejected"))
		assert.Equal(t, "not now", p.events.events[0].Message)
		g.reason = ""
		p.do(podsource.Add, newPod("evicted"), newPod("deleted", static, deleting), newPod("failed", static), newPod("ends", static))
		assert.Empty(t, p.ends("evicted", eviction))
		assert.Empty(t, p.ends("deleted", eviction))
		assert.Empty(t, p.ends("failed", runtime.Termination{Reason: "DeadlineExceeded"}))
		p.w.states["ends"] = podworkers.State{Phase: podworkers.Terminated, Termination: eviction}
		p.Revisit([]types.UID{"ends"})
		assert.Empty(t, p.ends("unknown", eviction))
		assert.Empty(t, p.Retries())
		assert.Empty(t, p.after(time.Hour))
	})
}

// SL-11: an evicted static pod begins anew when the back-off and the pressure are over,
// and what is left of it has gone.
func TestPods_EvictedStaticPodIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pressure, asked := true, 0
		p, g := newGuarded(t, func(c *PodManagerConfig) { c.UnderPressure = func() bool { asked++; return pressure } })
		g.reason = ""
		a := newPod("a", static)
		p.do(podsource.Add, a)
		p.after(time.Minute)
		assert.Zero(t, asked, "nothing waits for it")
		assert.Empty(t, p.ends("a", eviction))
		require.Len(t, p.events.events, 1)
		assert.Equal(t, "BackOff", p.events.events[0].Reason)
		assert.Equal(t, "Back-off restarting evicted pod; next attempt in 10s", p.events.events[0].Message)
		assert.Empty(t, p.after(time.Hour), "the node is under pressure")
		pressure = false
		assert.Equal(t, []string{"remove a", "comes back a"}, p.after(2*time.Second))
		assert.Empty(t, p.Retries())
		assert.Empty(t, p.ends("a", runtime.Termination{Evicted: true, Deleted: true}), "the same end once more, when the rest has gone")
		assert.Equal(t, []string{"forget a", "create a "}, p.settles("a"))

		// It is evicted again and again.
		for _, wait := range []string{"20s", "40s", "1m20s", "2m40s", "5m0s", "5m0s"} {
			p.after(2 * time.Second)
			p.ends("a", eviction)
			last := p.events.events[len(p.events.events)-1]
			assert.Equal(t, "Back-off restarting evicted pod; next attempt in "+wait, last.Message)
			assert.Equal(t, []string{"remove a", "comes back a"}, p.after(5*time.Minute))
			p.settles("a")
		}
		p.after(retryReset)
		p.ends("a", eviction)
		assert.Equal(t, "Back-off restarting evicted pod; next attempt in 10s", p.events.events[len(p.events.events)-1].Message, "it ran long enough")

		pressure = true
		p.after(2 * retryReset)
		pressure, g.reason = false, "NoLicence" // it did not run meanwhile
		assert.Empty(t, p.after(2*time.Second))
		assert.Equal(t, "Back-off restarting evicted pod: NoLicence: not now; next attempt in 20s", p.events.events[len(p.events.events)-1].Message)
		p.do(podsource.Remove, a)
		g.reason = ""
		assert.Empty(t, p.Retries())
		assert.Empty(t, p.after(time.Hour), "nobody wants it any more")
	})
}

// SL-11: what a former process told of a static pod is not final: a rejected one is
// asked about as a new one, an evicted one is put off.
func TestPods_FormerRejectionsAndEvictionsAreNotFinal(t *testing.T) {
	rejected := corev1.PodStatus{Phase: corev1.PodFailed, Reason: "NoLicence", Message: "Pod was rejected: not now"}
	evicted := corev1.PodStatus{Phase: corev1.PodFailed, Reason: podspec.ReasonEvicted, Message: "low on memory"}
	failed := corev1.PodStatus{Phase: corev1.PodFailed, Reason: "DeadlineExceeded", Message: "too late"}
	synctest.Test(t, func(t *testing.T) {
		p, g := newGuarded(t, func(c *PodManagerConfig) { c.IsRunning = func(uid types.UID) bool { return uid == "runs" } })
		maps.Copy(p.statuses.told, map[types.UID]corev1.PodStatus{
			"still": rejected, "other": {Phase: corev1.PodFailed, Reason: "Old", Message: "Pod was rejected: then"}, "runs": rejected,
			"gone": evicted, "late": failed, "api": rejected,
		})
		assert.Equal(t, []string{"refuse still: NoLicence: not now"}, p.do(podsource.Add, newPod("still", static)), "told as it was")
		assert.Equal(t, []string{"forget other", "refuse other: NoLicence: not now"}, p.do(podsource.Add, newPod("other", static)))
		assert.Equal(t, []string{"forget runs", "create runs "}, p.do(podsource.Add, newPod("runs", static)))
		assert.Equal(t, []string{"create late Failed"}, p.do(podsource.Add, newPod("late", static)), "that was its own end")
		assert.Equal(t, []string{"create api Failed"}, p.do(podsource.Add, newPod("api")))
		assert.Equal(t, []string{"create gone Failed"}, p.do(podsource.Add, newPod("gone", static)))
		assert.Len(t, p.Retries(), 3)
		last := p.events.events[len(p.events.events)-1]
		assert.Equal(t, "Back-off restarting pod that was evicted before the agent started; next attempt in 10s", last.Message)
		p.statuses.told["deleted"], p.statuses.told["ended"] = rejected, evicted
		assert.Equal(t, []string{"create deleted Failed"}, p.do(podsource.Add, newPod("deleted", static, deleting)), "so that its end can be told")
		assert.Equal(t, []string{"create ended Failed"}, p.do(podsource.Add, newPod("ended", static, deleting)))
		assert.Len(t, p.Retries(), 3)

		g.reason = ""
		p.statuses.told["new"] = rejected
		assert.Equal(t, []string{"forget new", "create new "}, p.do(podsource.Add, newPod("new", static)), "nothing speaks against it any more")
		p.w.states["gone"] = podworkers.State{Phase: podworkers.Finished, Idle: true}
		assert.Subset(t, p.after(10*time.Second), []string{"remove gone", "comes back gone"})
		assert.Equal(t, []string{"forget gone", "create gone "}, p.settles("gone"))
	})
}

// SL-11: an evicted pod does not stand in its own way, and one that is deleted is not
// tried again.
func TestPods_RetriesOfOnePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPods(t, func(c *PodManagerConfig) { c.Admitters = []Admitter{room(1)} })
		p.do(podsource.Add, newPod("a", static))
		p.ends("a", eviction)
		assert.Equal(t, []string{"remove a", "comes back a"}, p.after(10*time.Second))
		assert.Equal(t, []string{"forget a", "create a "}, p.settles("a"))

		p.do(podsource.Add, newPod("b", static))
		require.Len(t, p.Retries(), 1)
		assert.Equal(t, []string{"change b Failed"}, p.do(podsource.Delete, newPod("b", static, deleting)))
		assert.Empty(t, p.Retries())
	})
}

// SL-3: those that wait begin in the order of their creation.
func TestPods_RejectedPodsBeginInOrder(t *testing.T) {
	p, g := newGuarded(t)
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

// SL-11: the log says of which pod it speaks, and when it is tried next.
func TestPods_LogSaysWhenPodsAreTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		p, g := newGuarded(t, func(c *PodManagerConfig) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
		p.do(podsource.Add, newPod("a", static))
		next := time.Now().Add(10 * time.Second).Format("2006-01-02T15:04:05.000Z07:00")
		assert.Contains(t, log.String(), `msg="pod refused" namespace=ns pod=a uid=a reason=NoLicence message="not now" in=10s nextAttempt=`+next)
		g.reason = ""
		p.after(10 * time.Second)
		assert.Contains(t, log.String(), `msg="rejected pod is tried again" namespace=ns pod=a uid=a`)
		p.ends("a", eviction)
		assert.Contains(t, log.String(), `msg="pod is tried again" namespace=ns pod=a uid=a message="Back-off restarting evicted pod" in=20s`)
	})
}
