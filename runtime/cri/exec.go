package cri

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Exec runs a command in a container and waits for it to end. It returns what
// the command wrote, standard output before standard error, cut off after limit
// bytes, and its exit code. An exit code other than 0 is no error. A command
// that takes longer than timeout [the Client's] is runtime.ErrDeadlineExceeded. The runtime
// counts that from the start of the command; it may take the Client's timeout more for the
// call, within ctx.
func (c *Client) Exec(ctx context.Context, containerID string, cmd []string, timeout time.Duration, limit int) ([]byte, int, error) {
	if timeout <= 0 {
		timeout = c.cfg.Timeout
	}
	if err := c.mayChangeContainer(ctx, containerID); err != nil {
		return nil, -1, fmt.Errorf("exec: %w", err)
	}
	limited := min(timeout, math.MaxInt64-c.cfg.Timeout) + c.cfg.Timeout // a grace period may be endless
	resp, err := do(ctx, c, "ExecSync", containerID, limited, c.rs.ExecSync, &v1.ExecSyncRequest{
		ContainerId: containerID, Cmd: cmd, Timeout: roundUpSeconds(timeout),
	})
	if err != nil {
		return nil, -1, err
	}
	limit = max(limit, 0)
	out := resp.GetStdout()[:min(limit, len(resp.GetStdout()))]
	more := resp.GetStderr()[:min(limit-len(out), len(resp.GetStderr()))]
	return append(slices.Clip(out), more...), int(resp.GetExitCode()), nil
}

// roundUpSeconds rounds up, since the CRI takes 0 for no timeout at all.
func roundUpSeconds(d time.Duration) int64 {
	return int64(math.Ceil(d.Seconds()))
}

// ReopenLog makes the runtime reopen a container's log file after it was
// renamed.
func (c *Client) ReopenLog(ctx context.Context, containerID string) error {
	if err := c.mayChangeContainer(ctx, containerID); err != nil {
		return fmt.Errorf("reopen log: %w", err)
	}
	_, err := do(ctx, c, "ReopenContainerLog", containerID, c.cfg.Timeout, c.rs.ReopenContainerLog,
		&v1.ReopenContainerLogRequest{ContainerId: containerID})
	return err
}
