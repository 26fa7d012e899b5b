package cri

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"time"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
)

var _ runtime.Streamer = (*Client)(nil)

// ExecURL prepares a command in a container. See runtime.Streamer.
func (c *Client) ExecURL(ctx context.Context, containerID string, command []string, s runtime.Streams) (*url.URL, error) {
	if err := c.mayChangeContainer(ctx, containerID); err != nil {
		return nil, fmt.Errorf("exec: %w", err)
	}
	resp, err := do(ctx, c, "Exec", containerID, c.cfg.Timeout, c.rs.Exec, &v1.ExecRequest{
		ContainerId: containerID, Cmd: command, Stdin: s.Stdin, Stdout: s.Stdout, Stderr: s.Stderr, Tty: s.TTY,
	})
	return streamURL("Exec", resp.GetUrl(), err)
}

// AttachURL prepares a connection to the process of a container. See runtime.Streamer.
func (c *Client) AttachURL(ctx context.Context, containerID string, s runtime.Streams) (*url.URL, error) {
	if err := c.mayChangeContainer(ctx, containerID); err != nil {
		return nil, fmt.Errorf("attach: %w", err)
	}
	resp, err := do(ctx, c, "Attach", containerID, c.cfg.Timeout, c.rs.Attach, &v1.AttachRequest{
		ContainerId: containerID, Stdin: s.Stdin, Stdout: s.Stdout, Stderr: s.Stderr, Tty: s.TTY,
	})
	return streamURL("Attach", resp.GetUrl(), err)
}

// PortForwardURL prepares connections to ports of a sandbox. See runtime.Streamer.
func (c *Client) PortForwardURL(ctx context.Context, sandboxID string, ports []int32) (*url.URL, error) {
	if err := c.mayChangeSandbox(ctx, sandboxID); err != nil {
		return nil, fmt.Errorf("port forward: %w", err)
	}
	resp, err := do(ctx, c, "PortForward", sandboxID, c.cfg.Timeout, c.rs.PortForward, &v1.PortForwardRequest{PodSandboxId: sandboxID, Port: ports})
	return streamURL("PortForward", resp.GetUrl(), err)
}

// streamURL does not show the URL in its error, because of the token in it.
func streamURL(rpc, text string, err error) (*url.URL, error) {
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("%s: the runtime returned an invalid URL of its streaming server", rpc)
	}
	return u, nil
}

var _ runtime.ContainerCheckpointer = (*Client)(nil)

// checkpointMargin is how much longer than the timeout of a checkpoint its call may take.
const checkpointMargin = 5 * time.Second

// CheckpointContainer writes a checkpoint of a container. See runtime.ContainerCheckpointer.
func (c *Client) CheckpointContainer(ctx context.Context, containerID, path string, timeout time.Duration) error {
	if err := c.mayChangeContainer(ctx, containerID); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	timeout = cmp.Or(timeout, c.cfg.Timeout)
	_, err := do(ctx, c, "CheckpointContainer", containerID, timeout+checkpointMargin, c.rs.CheckpointContainer, &v1.CheckpointContainerRequest{
		ContainerId: containerID, Location: path, Timeout: int64(timeout.Seconds()),
	})
	return err
}
