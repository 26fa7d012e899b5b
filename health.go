package agent

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sublet-dev/agent/internal/dirlock"
	"github.com/sublet-dev/agent/internal/owner"
	"github.com/sublet-dev/agent/internal/run"
	"github.com/sublet-dev/agent/runtimestate"
	"github.com/sublet-dev/agent/syncloop"
)

// Errors that come out of Run and Healthy, wrapped, for callers that branch on them.
var (
	// ErrNoRuntime is wrapped by the error of New when no option says where pods run.
	ErrNoRuntime = errors.New("no runtime; give WithRuntimeEndpoint for the CRI socket of a real one, " +
		"WithRuntime for one of your own or an embedded one with host processes, or WithSimulatedRuntime for pods that do not really run")
	// ErrAlreadyRun is returned by a second Run.
	ErrAlreadyRun = errors.New("an agent runs once")
	// ErrRootInUse is wrapped by the error of Run while another agent has the root
	// directory. The error names its process.
	ErrRootInUse = dirlock.ErrInUse
	// ErrOwnerID is wrapped by the error of Run if the root directory has pods, or
	// had, but the id of their owner cannot be read from it. The error says what to
	// do.
	ErrOwnerID = owner.ErrNoID
	// ErrComponentExited is wrapped by the error of Run when a component returned
	// before it was asked to.
	ErrComponentExited = run.ErrExited

	// ErrRuntimeNotReady is wrapped by the error of Healthy while the runtime does
	// not answer or says that it is not ready.
	ErrRuntimeNotReady = syncloop.ErrRuntimeNotReady
	// ErrNetworkNotReady is wrapped by the error of Healthy while the runtime says
	// that its network is not ready. Pods on the host's network run.
	ErrNetworkNotReady = runtimestate.ErrNetworkNotReady
	// ErrPodsNotListed is wrapped, beside ErrRuntimeNotReady, by the error of Healthy
	// until the pods in the runtime are known.
	ErrPodsNotListed = runtimestate.ErrPodsNotListed
	// ErrStalled is wrapped by the error of Healthy when pods are not handed on
	// any more.
	ErrStalled = syncloop.ErrStalled
)

// Healthy returns nil if the agent works, its runtime answers and it is known what
// should run, else all that is wrong. A source that is waited for is a
// podsource.Unsynced in it; one whose last word is known from its cache is not
// waited for: see podsource.Cached.
func (a *Agent) Healthy() error {
	loop := a.loop.Healthy()
	errs := []error{loop, a.pleg.Healthy(), a.runtimeHealthy(loop)}
	for _, u := range a.mux.Unsynced() {
		errs = append(errs, u)
	}
	return errors.Join(errs...)
}

// runtimeHealthy is what the runtime said last, unless the loop waits for just that.
func (a *Agent) runtimeHealthy(loop error) error {
	err := a.ready.Healthy()
	switch {
	case err == nil, loop != nil && strings.Contains(loop.Error(), err.Error()):
		return nil
	case errors.Is(err, ErrNetworkNotReady):
		return err
	}
	return fmt.Errorf("%w: %w", ErrRuntimeNotReady, err)
}
