package runtimetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// FaultKind is a kind of fault.
type FaultKind string

// The kinds of fault.
const (
	Delay       FaultKind = "delay"        // the call is made after Rule.Delay
	Hang        FaultKind = "hang"         // the call is not made and gets no response
	Fail        FaultKind = "fail"         // the call is not made and fails with Rule.Code
	Drop        FaultKind = "drop"         // the call is made and its response lost: Rule.Code, or none if that is OK
	BreakStream FaultKind = "break-stream" // a stream breaks with Rule.Code after Rule.After messages
	Duplicate   FaultKind = "duplicate"    // each message of a stream is sent twice
	Reorder     FaultKind = "reorder"      // each second message of a stream is sent before the first
	Corrupt     FaultKind = "corrupt"      // responses are changed by Rule.Mutate
)

// Rule selects calls and the fault that is injected into them. Fields left out do not
// restrict it.
type Rule struct {
	RPC         string        // method name, or a pattern of path.Match: Start*, *Container
	Pod         string        // pod by name, namespace/name, or UID
	Skip        int           // matching calls that pass before the first fault
	Count       int           // faults after that; 0 is no limit
	Probability float64       // of a fault; 0 is always
	From, Until time.Duration // since the proxy was created; 0 is from the start, and without end

	Fault FaultKind
	Delay time.Duration // of Delay
	Code  codes.Code    // of Fail and BreakStream: OK means Unavailable
	After int           // of BreakStream
	// Mutate changes a response for Corrupt. nil changes it at random: a running
	// container becomes exited or unknown, a ready sandbox not ready, or a list
	// loses its last item.
	Mutate func(rpc string, response proto.Message)
}

// check returns the first error of a rule.
func (r Rule) check() error {
	const faults = "delay, hang, fail, drop, break-stream, duplicate, reorder or corrupt"
	switch r.Fault {
	case Delay, Hang, Fail, Drop, BreakStream, Duplicate, Reorder, Corrupt:
	case "":
		return errors.New("rule: fault required: " + faults)
	default:
		return fmt.Errorf("rule: unknown fault %q; use %s", r.Fault, faults)
	}
	if _, err := path.Match(r.RPC, ""); err != nil {
		return fmt.Errorf("rule: rpc %q: %w", r.RPC, err)
	}
	if r.Probability < 0 || r.Probability > 1 || r.Probability != r.Probability {
		return fmt.Errorf("rule: probability %v is not within 0..1", r.Probability)
	}
	if r.Skip < 0 || r.Count < 0 || r.After < 0 || r.Delay < 0 || r.From < 0 || r.Until < 0 {
		return fmt.Errorf("rule %s: negative value", r)
	}
	return nil
}

// String returns the rule in the form that ParseRule reads.
func (r Rule) String() string {
	parts := []string{"fault=" + string(r.Fault)}
	add := func(name, value string, zero bool) {
		if !zero {
			parts = append(parts, name+"="+value)
		}
	}
	add("rpc", r.RPC, r.RPC == "")
	add("pod", r.Pod, r.Pod == "")
	add("skip", strconv.Itoa(r.Skip), r.Skip == 0)
	add("count", strconv.Itoa(r.Count), r.Count == 0)
	add("probability", strconv.FormatFloat(r.Probability, 'g', -1, 64), r.Probability == 0)
	add("from", r.From.String(), r.From == 0)
	add("until", r.Until.String(), r.Until == 0)
	add("delay", r.Delay.String(), r.Delay == 0)
	add("code", r.Code.String(), r.Code == codes.OK)
	add("after", strconv.Itoa(r.After), r.After == 0)
	return strings.Join(parts, ",")
}

// ParseRule parses a rule such as fault=delay,rpc=StartContainer,delay=2s,count=3.
// The names are those of Rule's fields in lower case. A rule that can have no effect is
// an error: one for a call that the CRI does not have, or a delay of nothing.
func ParseRule(s string) (Rule, error) {
	var r Rule
	for part := range strings.SplitSeq(s, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok {
			return r, fmt.Errorf("rule %q: %q is not name=value", s, part)
		}
		if err := r.set(name, value); err != nil {
			return r, fmt.Errorf("rule %q: %s: %w", s, name, err)
		}
	}
	err := r.check()
	switch {
	case err != nil:
	case r.RPC != "" && !r.matchesCRI():
		err = fmt.Errorf("rpc %q: the CRI has no such call; write it like StartContainer or *Container", r.RPC)
	case r.Fault == Delay && r.Delay == 0:
		err = errors.New("fault=delay needs delay=, such as delay=2s")
	}
	if err != nil {
		return r, fmt.Errorf("rule %q: %w", s, err)
	}
	return r, nil
}

// matchesCRI reports whether the CRI has a call that the rule matches.
func (r Rule) matchesCRI() bool {
	services := v1.File_staging_src_k8s_io_cri_api_pkg_apis_runtime_v1_api_proto.Services()
	for i := range services.Len() {
		for j, methods := 0, services.Get(i).Methods(); j < methods.Len(); j++ {
			if ok, _ := path.Match(r.RPC, string(methods.Get(j).Name())); ok {
				return true
			}
		}
	}
	return false
}

func (r *Rule) set(name, value string) (err error) {
	switch name {
	case "fault":
		r.Fault = FaultKind(value)
	case "rpc":
		r.RPC = value
	case "pod":
		r.Pod = value
	case "skip":
		r.Skip, err = strconv.Atoi(value)
	case "count":
		r.Count, err = strconv.Atoi(value)
	case "after":
		r.After, err = strconv.Atoi(value)
	case "probability":
		r.Probability, err = strconv.ParseFloat(value, 64)
	case "from":
		r.From, err = time.ParseDuration(value)
	case "until":
		r.Until, err = time.ParseDuration(value)
	case "delay":
		r.Delay, err = time.ParseDuration(value)
	case "code":
		for c := codes.OK; c <= codes.Unauthenticated; c++ {
			if c.String() == value {
				r.Code = c
				return nil
			}
		}
		return fmt.Errorf("invalid gRPC code %q; write it like Unavailable", value)
	default:
		return errors.New("unknown name; use fault, rpc, pod, skip, count, probability, from, until, delay, code or after")
	}
	return err
}

// code is the code of the fault.
func (r Rule) code() codes.Code {
	if r.Code == codes.OK {
		return codes.Unavailable
	}
	return r.Code
}

// corrupt changes a response at random.
func corrupt(rnd *rand.Rand, response proto.Message) {
	dead := []v1.ContainerState{v1.ContainerState_CONTAINER_EXITED, v1.ContainerState_CONTAINER_UNKNOWN}[rnd.IntN(2)]
	flip := func(s *v1.ContainerState) {
		if *s == v1.ContainerState_CONTAINER_RUNNING {
			*s = dead
		}
	}
	switch a := response.(type) {
	case *v1.ContainerStatusResponse:
		if a.Status != nil {
			flip(&a.Status.State)
		}
	case *v1.PodSandboxStatusResponse:
		if a.Status != nil {
			a.Status.State = v1.PodSandboxState_SANDBOX_NOTREADY
		}
		for _, c := range a.ContainersStatuses {
			flip(&c.State)
		}
	case *v1.ContainerEventResponse:
		for _, c := range a.ContainersStatuses {
			flip(&c.State)
		}
	case *v1.ListContainersResponse:
		for _, c := range a.Containers {
			flip(&c.State)
		}
	case *v1.ListPodSandboxResponse:
		if n := len(a.Items); n > 0 {
			a.Items = a.Items[:n-1]
		}
	case *v1.StreamPodSandboxesResponse:
		if n := len(a.PodSandboxes); n > 0 {
			a.PodSandboxes = a.PodSandboxes[:n-1]
		}
	case *v1.StreamContainersResponse:
		for _, c := range a.Containers {
			flip(&c.State)
		}
	}
}
