package csi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sublet-dev/agent/pluginregistry"
)

// maxReconnectDelay bounds the time until a restarted driver is noticed.
const maxReconnectDelay = 3 * time.Second

// maxMessageLength bounds what is repeated of an error of a driver.
const maxMessageLength = 1024

type capability = spec.NodeServiceCapability_RPC_Type

// client is the connection to a registered driver.
type client struct {
	name     string
	socket   string // of its registration
	endpoint string
	timeout  time.Duration
	conn     *grpc.ClientConn
	node     spec.NodeClient
	info     *spec.NodeGetInfoResponse
	can      map[capability]bool

	previous   *client            // guarded by Manager.mu: that it has replaced while that one's socket is there; nil: none
	maxVolumes int64              // guarded by Manager.mu: that the node can have now
	stop       context.CancelFunc // ends watchLimit; nil without it
	watched    chan struct{}      // closed when watchLimit has ended
}

// without returns what is left of c and those it has replaced without the one of a socket, and that one; nil: none.
func (c *client) without(socket string) (left, removed *client) {
	switch {
	case c == nil:
		return nil, nil
	case c.socket == socket:
		return c.previous, c
	}
	c.previous, removed = c.previous.without(socket)
	return c, removed
}

// connect connects to a driver and asks what it is. A driver with another name than that
// of its registration is an error.
func (m *Manager) connect(ctx context.Context, name, endpoint string) (*client, error) {
	conn, err := pluginregistry.Connect(endpoint, pluginregistry.WithBackOff(maxReconnectDelay, maxReconnectDelay), pluginregistry.WithObserver(name, m.cfg.Hooks.RPCEnded))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", endpoint, err)
	}
	c := &client{name: name, endpoint: endpoint, timeout: m.cfg.CallTimeout, conn: conn, node: spec.NewNodeClient(conn), can: map[capability]bool{}}
	if err := c.query(ctx, spec.NewIdentityClient(conn)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return c, nil
}

func (c *client) query(ctx context.Context, identity spec.IdentityClient) error {
	plugin, err := call(ctx, c, "GetPluginInfo", nil, identity.GetPluginInfo, &spec.GetPluginInfoRequest{})
	if err != nil {
		return err
	}
	if plugin.GetName() != c.name {
		return fmt.Errorf("the driver at %s calls itself %q, but was registered as %q", c.endpoint, plugin.GetName(), c.name)
	}
	capabilities, err := call(ctx, c, "NodeGetCapabilities", nil, c.node.NodeGetCapabilities, &spec.NodeGetCapabilitiesRequest{})
	if err != nil {
		return err
	}
	for _, entry := range capabilities.GetCapabilities() {
		c.can[entry.GetRpc().GetType()] = true
	}
	if c.info, err = call(ctx, c, "NodeGetInfo", nil, c.node.NodeGetInfo, &spec.NodeGetInfoRequest{}); err != nil {
		return err
	}
	if c.info.GetNodeId() == "" {
		return fmt.Errorf("CSI driver %s: NodeGetInfo returned no node id", c.name)
	}
	c.maxVolumes = c.info.GetMaxVolumesPerNode()
	return nil
}

// callError is a failed call.
type callError struct {
	driver, method, message string
	code                    codes.Code
}

// Error names the driver and the method.
func (e *callError) Error() string {
	return fmt.Sprintf("CSI driver %s: %s: %s", e.driver, e.method, e.message)
}

// isCode reports whether the driver has answered with one of the codes.
func isCode(err error, of ...codes.Code) bool {
	var e *callError
	return errors.As(err, &e) && slices.Contains(of, e.code)
}

// call calls a method of a driver with the timeout of a call. Values of secrets are removed
// from the error.
func call[Req, Resp any](ctx context.Context, c *client, method string, secrets map[string]string,
	f func(context.Context, *Req, ...grpc.CallOption) (*Resp, error), req *Req,
) (*Resp, error) {
	limited, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	startTime := time.Now()
	resp, err := f(limited, req)
	if err == nil {
		return resp, nil
	}
	if ctx.Err() != nil { // the pod or the agent ends
		return nil, fmt.Errorf("CSI driver %s: %s: %w", c.name, method, ctx.Err())
	}
	e := &callError{driver: c.name, method: method, code: status.Code(err), message: status.Convert(err).Message()}
	// The deadline is passed on, so the driver may give up a moment earlier.
	if cut := e.code == codes.Canceled || e.code == codes.DeadlineExceeded; limited.Err() != nil || cut && time.Since(startTime) > c.timeout/2 {
		e.code, e.message = codes.DeadlineExceeded, fmt.Sprintf("no answer in %s", c.timeout)
	}
	e.message = withoutSecrets(e.message, secrets)
	return nil, e
}

// withoutSecrets returns a message of a driver without the values of secrets, nor their
// trimmed and quoted forms, and not longer than maxMessageLength.
func withoutSecrets(message string, secrets map[string]string) string {
	var hidden []string
	for _, value := range secrets {
		for _, form := range []string{value, strings.TrimSpace(value)} {
			quoted := strconv.Quote(form)
			hidden = append(hidden, form, quoted[1:len(quoted)-1])
		}
	}
	// Longest first: a value may contain another one.
	slices.SortFunc(hidden, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	for _, form := range hidden {
		if form != "" {
			message = strings.ReplaceAll(message, form, "***")
		}
	}
	if len(message) > maxMessageLength {
		message = strings.ToValidUTF8(message[:maxMessageLength], "") + "…"
	}
	return message
}
