package containergc_test

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/runtime"
)

// CG-1, CG-2: random nodes against the rules, one by one.
func TestPlan_Rules(t *testing.T) {
	for seed := range uint64(5000) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		pods, stands := randomNode(rnd)
		r := rules{
			t: t, seed: seed, pods: pods, stands: stands, short: rnd.IntN(4) == 0,
			policy: containergc.Policy{MinAge: time.Duration(rnd.IntN(3)) * 10 * time.Minute, MaxPerPodContainer: rnd.IntN(6) - 2, MaxContainers: rnd.IntN(12)},
		}
		r.plan = containergc.Plan(pods, stands.of, r.policy, r.short, testTime)
		require.Equal(t, r.plan, containergc.Plan(pods, stands.of, r.policy, r.short, testTime), "seed %d", seed)
		r.going = map[string]bool{}
		for _, id := range ids(r.plan) {
			require.False(t, r.going[id], "seed %d: %s twice", seed, id)
			r.going[id] = true
		}
		for i := range pods {
			for j := range pods[i].Containers {
				r.container(&pods[i], &pods[i].Containers[j])
			}
			for j := range pods[i].Sandboxes {
				r.sandbox(&pods[i], &pods[i].Sandboxes[j])
			}
		}
		r.node()
		r.order()
	}
}

// rules are what a plan is held against. They say it the long way.
type rules struct {
	t      *testing.T
	seed   uint64
	pods   []runtime.Pod
	stands podStates
	policy containergc.Policy
	short  bool
	plan   []containergc.Removal
	going  map[string]bool

	spared, taken []*runtime.Container // dead ones that the node's limit alone decides on
	left          int                  // exited containers that are kept
}

func (r *rules) removesAll(pod *runtime.Pod) bool {
	s := r.stands[pod.UID]
	return s == containergc.PodDeleted || s == containergc.PodEvicted || r.short && s == containergc.PodTerminated
}

func (r *rules) old(made time.Time) bool { return r.short || testTime.Sub(made) >= r.policy.MinAge }

func (r *rules) container(pod *runtime.Pod, c *runtime.Container) {
	goes, is := r.going[c.ID], func(want bool, why string) {
		require.Equal(r.t, want, r.going[c.ID], "seed %d: container %s of %+v: %s", r.seed, c.ID, r.policy, why)
	}
	switch {
	case c.State == runtime.Running || c.State == runtime.Unknown:
		is(false, "it may be alive")
		return
	case r.removesAll(pod):
		is(true, "its pod is gone")
		return
	case c.State == runtime.Created:
		is(r.old(c.Created) && c.SandboxID != newestSandbox(pod).ID, "it never starts if its sandbox is no more")
		return
	}
	nth, runs := 0, false
	for i := range pod.Containers {
		o := &pod.Containers[i]
		if o.Name == c.Name && o.Attempt >= c.Attempt && o.State == runtime.Exited {
			nth++
		}
		runs = runs || o.Name == c.Name && o.Attempt > c.Attempt && o.State == runtime.Running
	}
	if !goes {
		r.left++
	}
	switch keep := r.policy.MaxPerPodContainer; {
	case !r.old(c.Created):
		is(false, "it is young")
	case keep >= 0 && nth > max(keep, 1):
		is(true, "one too many of its name")
	case keep == containergc.KeepUntilReplaced && (nth > 1 || runs):
		is(true, "it decides nothing any more")
	case nth == 1:
		is(false, "it is the last of its name")
	case goes:
		r.taken = append(r.taken, c)
	default:
		r.spared = append(r.spared, c)
	}
}

func newestSandbox(pod *runtime.Pod) *runtime.Sandbox {
	s := slices.MaxFunc(pod.Sandboxes, func(a, b runtime.Sandbox) int { return cmp.Compare(a.Attempt, b.Attempt) })
	return &s
}

func (r *rules) sandbox(pod *runtime.Pod, s *runtime.Sandbox) {
	want := s.State != runtime.SandboxReady && (r.removesAll(pod) || r.old(s.Created) && s.ID != newestSandbox(pod).ID)
	for i := range pod.Containers {
		if c := &pod.Containers[i]; c.SandboxID == s.ID && !r.going[c.ID] {
			want = false
		}
	}
	require.Equal(r.t, want, r.going[s.ID], "seed %d: sandbox %s", r.seed, s.ID)
}

// node holds the limit of the removesAll node: no more stay than there may if any can
// be spared, no more go than it takes, and the oldest do.
func (r *rules) node() {
	if r.policy.MaxContainers == 0 {
		require.Empty(r.t, r.taken, "seed %d: there is no limit", r.seed)
	}
	if r.policy.MaxContainers > 0 && r.left > r.policy.MaxContainers {
		require.Empty(r.t, r.spared, "seed %d: %d stay of %d", r.seed, r.left, r.policy.MaxContainers)
	}
	if len(r.taken) > 0 {
		require.GreaterOrEqual(r.t, r.left, r.policy.MaxContainers, "seed %d: more go than it takes", r.seed)
	}
	for _, removed := range r.taken {
		for _, c := range r.spared {
			require.False(r.t, c.Created.Before(removed.Created), "seed %d: %s is older than %s", r.seed, c.ID, removed.ID)
		}
	}
}

// order: what is gone before the rest, containers before sandboxes, the oldest
// first.
func (r *rules) order() {
	rank := func(x containergc.Removal) (int, time.Time) {
		n := 2
		if r.removesAll(x.Pod) {
			n = 0
		}
		if x.Container == nil {
			return n + 1, x.Sandbox.Created
		}
		return n, x.Container.Created
	}
	for i := 1; i < len(r.plan); i++ {
		a, madeA := rank(r.plan[i-1])
		b, madeB := rank(r.plan[i])
		require.LessOrEqual(r.t, a, b, "seed %d: at %d", r.seed, i)
		require.False(r.t, a == b && madeB.Before(madeA), "seed %d: at %d the younger goes first", r.seed, i)
	}
}

// A container that was created and not started is kept while it may belong to the newest
// sandbox.
func TestPlan_CreatedContainers(t *testing.T) {
	for name, tt := range map[string]struct {
		sandboxes []runtime.Sandbox
		sandbox   string // of the container
		want      []string
	}{
		"the pod has no sandbox":             {nil, "s0", []string{}},
		"the sandbox is unknown":             {[]runtime.Sandbox{box("s0", 0, runtime.SandboxReady)}, "", []string{}},
		"in the newest sandbox":              {[]runtime.Sandbox{box("s0", 0, runtime.SandboxReady)}, "s0", []string{}},
		"in an old sandbox":                  {[]runtime.Sandbox{box("s0", 0, runtime.SandboxReady), box("s1", 1, runtime.SandboxReady)}, "s0", []string{"c"}},
		"in a sandbox that no longer exists": {[]runtime.Sandbox{box("s1", 1, runtime.SandboxReady)}, "s0", []string{"c"}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := runtime.Pod{UID: "u1", Sandboxes: tt.sandboxes, Containers: []runtime.Container{ctr("c", "a", tt.sandbox, 0, runtime.Created, 60)}}
			assert.Equal(t, tt.want, ids(containergc.Plan([]runtime.Pod{pod}, podStates{}.of, containergc.Policy{}, false, testTime)))
		})
	}
}
