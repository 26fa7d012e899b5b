package cri

import (
	"context"
	"time"

	"github.com/sublet-dev/agent/runtime"
)

// observe calls f between the hooks of an operation. f gets the context of
// Hooks.OperationStarted and may complete op.
func (c *Client) observe(ctx context.Context, op *runtime.Operation, f func(ctx context.Context) error) (err error) {
	if started := c.cfg.Hooks.OperationStarted; started != nil {
		ctx = started(ctx, *op)
	}
	if ended := c.cfg.Hooks.OperationEnded; ended != nil {
		startTime := time.Now()
		defer func() { ended(ctx, *op, time.Since(startTime), err) }()
	}
	return f(ctx)
}
