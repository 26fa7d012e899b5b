package agent

import (
	"context"
	"errors"

	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/imagegc"
)

var errNotAdopted = errors.New("agent is not ready: running pods are not adopted yet")

// ExplainImages returns the decision on each image now and its reason, and removes
// none: first those that would be removed, in order. With all set it decides as eviction
// does, which removes every unused image; otherwise for the bytes to free now. Without
// WithImageGC it returns nil.
func (a *Agent) ExplainImages(ctx context.Context, all bool) ([]imagegc.Decision, error) {
	switch {
	case a.images == nil:
		return nil, nil
	case !a.adopted.Load(): // before, the runtime may not even be connected to
		return nil, errNotAdopted
	}
	return a.images.Explain(ctx, all)
}

// ExplainContainers returns the exited containers and stopped sandboxes that would be
// removed now, in order, and removes none.
func (a *Agent) ExplainContainers(ctx context.Context) ([]containergc.Removal, error) {
	if a.containers == nil {
		return nil, nil
	}
	return a.containers.Explain(ctx)
}
