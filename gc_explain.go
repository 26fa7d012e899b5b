package agent

import (
	"context"
	"errors"

	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/imagegc"
)

var errNotAdopted = errors.New("what runs on the node is not taken up yet")

// ExplainImages says what would become of each image now and why, and removes
// none: first those that would go, in order. all is for eviction's question, which
// asks for every image that may go; else it is for the room that is wanted now.
// Without WithImageGC there is nothing to tell.
func (a *Agent) ExplainImages(ctx context.Context, all bool) ([]imagegc.Decision, error) {
	switch {
	case a.images == nil:
		return nil, nil
	case !a.adopted.Load(): // before, the runtime may not even be connected to
		return nil, errNotAdopted
	}
	return a.images.Explain(ctx, all)
}

// ExplainContainers says which dead containers and sandboxes would be removed now,
// in order, and removes none.
func (a *Agent) ExplainContainers(ctx context.Context) ([]containergc.Removal, error) {
	if a.containers == nil {
		return nil, nil
	}
	return a.containers.Explain(ctx)
}
