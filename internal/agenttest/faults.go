package agenttest

import (
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/sublet-dev/agent/runtime/runtimetest"
)

// FaultPlan is the set of random faults between an agent and its runtime, in addition to
// those of a scenario. nil has none.
type FaultPlan struct {
	seed  uint64
	rules []runtimetest.Rule // their times count from the start of the scenario
	hits  []int              // calls that each rule has affected
}

// FaultKinds returns all kinds of faults.
func FaultKinds() []runtimetest.FaultKind {
	return []runtimetest.FaultKind{
		runtimetest.Delay, runtimetest.Hang, runtimetest.Fail, runtimetest.Drop,
		runtimetest.BreakStream, runtimetest.Duplicate, runtimetest.Reorder, runtimetest.Corrupt,
	}
}

// reads are the calls of an inspection. An agent cannot detect that their responses are
// wrong. The content of all others only triggers an inspection.
func reads() []string {
	return []string{"ListPodSandbox", "ListContainers", "PodSandboxStatus", "ContainerStatus"}
}

func streams() []string {
	return []string{"GetContainerEvents", "StreamPodSandboxes", "StreamContainers", "Stream*"}
}

// DrawFaults returns random faults for a scenario of that length. first selects the kind of
// the first rule, so that each kind occurs in each scenario.
func DrawFaults(seed uint64, first int, length time.Duration) *FaultPlan {
	r := rand.New(rand.NewPCG(seed, 0xFA17))
	kinds := FaultKinds()
	p := &FaultPlan{seed: seed}
	for i := range 1 + r.IntN(3) {
		kind := kinds[r.IntN(len(kinds))]
		if i == 0 {
			kind = kinds[first%len(kinds)]
		}
		p.rules = append(p.rules, drawRule(r, kind, length))
	}
	p.hits = make([]int, len(p.rules))
	return p
}

func drawRule(r *rand.Rand, kind runtimetest.FaultKind, length time.Duration) runtimetest.Rule {
	rule := runtimetest.Rule{Fault: kind, RPC: "*", Probability: 0.05 + 0.45*r.Float64()}
	if r.IntN(2) == 0 {
		rule.RPC = one(r, slices.Concat(reads(), streams(), []string{
			"*", "RunPodSandbox", "StopPodSandbox", "RemovePodSandbox", "*PodSandbox*",
			"CreateContainer", "StartContainer", "StopContainer", "RemoveContainer", "*Container*",
			"PullImage", "ImageStatus", "*Image*", "ExecSync", "Status", "Version",
		}))
	}
	failures := []codes.Code{
		codes.Unavailable, codes.DeadlineExceeded, codes.Unknown, codes.Internal,
		codes.Canceled, codes.ResourceExhausted, codes.Aborted, codes.FailedPrecondition,
	}
	switch kind {
	case runtimetest.Delay:
		rule.Delay = one(r, []time.Duration{10 * time.Millisecond, time.Second, 5 * time.Second, 30 * time.Second, 3 * time.Minute})
	case runtimetest.Fail:
		rule.Code = one(r, failures)
	case runtimetest.Drop:
		rule.Code = one(r, append(failures, codes.OK)) // OK: no response
	case runtimetest.BreakStream:
		rule.RPC, rule.After, rule.Code = one(r, streams()), r.IntN(4), one(r, failures)
	case runtimetest.Duplicate, runtimetest.Reorder:
		rule.RPC = one(r, streams())
	case runtimetest.Corrupt:
		rule.RPC = one(r, append(append(reads(), streams()...), "*"))
	}
	switch r.IntN(3) { // a few calls, those in an interval, or all
	case 0:
		rule.Skip, rule.Count, rule.Probability = r.IntN(4), 1+r.IntN(5), 0
	case 1:
		rule.From = time.Duration(r.Int64N(int64(length)))
		rule.Until = rule.From + time.Second + time.Duration(r.Int64N(int64(length)))
	}
	return rule
}

func one[T any](r *rand.Rand, of []T) T { return of[r.IntN(len(of))] }

func (p *FaultPlan) proxySeed() uint64 {
	if p == nil {
		return 1
	}
	return p.seed
}

// count adds the counts of a proxy, unless it was made after some rules had ended.
func (p *FaultPlan) count(hits []int) {
	if p == nil || len(hits) < len(p.rules) {
		return
	}
	for i := range p.rules {
		p.hits[i] += hits[i]
	}
}

// since returns the rules for a proxy that is made that long after the start.
func (p *FaultPlan) since(made time.Duration) []runtimetest.Rule {
	if p == nil {
		return nil
	}
	var rules []runtimetest.Rule
	for _, r := range p.rules {
		if r.Until > 0 && r.Until <= made {
			continue
		}
		r.From = max(0, r.From-made)
		if r.Until > 0 {
			r.Until -= made
		}
		rules = append(rules, r)
	}
	return rules
}

// Strikes reports whether a rule of that kind applies to a call. An empty kind is any.
func (p *FaultPlan) Strikes(kind runtimetest.FaultKind, rpc string) bool {
	if p == nil {
		return false
	}
	return slices.ContainsFunc(p.rules, func(r runtimetest.Rule) bool {
		ok, err := path.Match(r.RPC, rpc)
		return ok && err == nil && (kind == "" || r.Fault == kind)
	})
}

// Lies reports whether inspections get wrong responses.
func (p *FaultPlan) Lies() bool {
	return slices.ContainsFunc(reads(), func(rpc string) bool { return p.Strikes(runtimetest.Corrupt, rpc) })
}

// Hits returns the number of calls that each kind of fault has affected. EndFaults counts
// them.
func (p *FaultPlan) Hits() map[runtimetest.FaultKind]int {
	hits := map[runtimetest.FaultKind]int{}
	for i, r := range p.rules {
		hits[r.Fault] += p.hits[i]
	}
	return hits
}

// String lists the rules.
func (p *FaultPlan) String() string {
	all := []string{fmt.Sprintf("seed %d", p.seed)}
	for _, r := range p.rules {
		all = append(all, "  "+r.String())
	}
	return strings.Join(all, "\n")
}
