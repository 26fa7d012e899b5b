package agenttest

import (
	"strings"
	"time"
)

// Moment is a moment of a call.
type Moment string

// The moments of a call: before it is made, and after its response has arrived.
const (
	Before Moment = "before"
	After  Moment = "after"
)

// BreakAction is what happens at a breakpoint.
type BreakAction string

// The actions of breakpoints.
const (
	RestartRuntime BreakAction = "restart-runtime"
	KillAgent      BreakAction = "kill-agent"
)

// Breakpoint ends the runtime's process or the agent at a call that changes the runtime,
// and starts it again after a time.
type Breakpoint struct {
	RPC    string // such as StartContainer
	Moment Moment
	Count  int // the call at which it is hit; 1 is the next one
	Action BreakAction
	For    time.Duration
}

// AddBreakpoint adds a breakpoint, which is hit once.
func (h *Harness) AddBreakpoint(b Breakpoint) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.breakpoints = append(h.breakpoints, &b)
}

// dueBreakpoints counts a call and returns the breakpoints that it hits.
func (h *Harness) dueBreakpoints(rpc string, moment Moment) (due []*Breakpoint) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, b := range h.breakpoints {
		if b.RPC == rpc && b.Moment == moment && b.Count > 0 {
			if b.Count--; b.Count == 0 {
				due = append(due, b)
			}
		}
	}
	return due
}

// hitBreakpoints runs the actions of the breakpoints at this call.
func (h *Harness) hitBreakpoints(rpc string, moment Moment, pod string) {
	for _, b := range h.dueBreakpoints(rpc, moment) {
		time.Sleep(time.Millisecond) // after everything else at this time
		call := strings.TrimSuffix(string(moment)+" "+rpc+" of "+pod, " of ")
		h.Trace.Command(call + ": " + string(b.Action) + " " + ShortDuration(b.For))
		switch b.Action {
		case RestartRuntime:
			h.Down()
			time.AfterFunc(b.For, h.Up)
		case KillAgent:
			h.mu.Lock()
			p := h.current
			h.mu.Unlock()
			p.interceptor.die() // the rest blocks
			go func() {
				h.Kill()
				time.Sleep(b.For)
				h.Start()
			}()
		}
	}
}
