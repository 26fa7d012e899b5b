package cri

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sublet-dev/agent/runtime"
)

// Error is a call that the runtime refused or did not answer. It matches the
// sentinels of package runtime through errors.Is, and its gRPC status is
// reachable through errors.As with interface{ GRPCStatus() *status.Status }.
type Error struct {
	RPC     string        // name of the call: RunPodSandbox, ...
	Subject string        // what it was about, may be empty
	Timeout time.Duration // the call's own deadline if that ended it, else 0
	status  *status.Status
	kind    error // sentinel of package runtime, or nil
	cause   error // of the context, or nil
}

// Error names the call, its subject and what the runtime said.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.RPC)
	if e.Subject != "" {
		b.WriteString(" " + e.Subject)
	}
	if e.Timeout > 0 {
		fmt.Fprintf(&b, ": no answer within %v", e.Timeout)
		return b.String()
	}
	fmt.Fprintf(&b, ": %s (%v)", e.status.Message(), e.status.Code())
	b.WriteString(remedy(e.status.Message()))
	return b.String()
}

// remedy returns what to do about an error that is met at the first start, or "".
func remedy(message string) string {
	// At the beginning: the runtime itself may not have reached a shim.
	dial := strings.HasPrefix(message, `connection error: desc = "transport: Error while dialing: dial unix`)
	switch {
	case strings.Contains(message, "expected cgroupsPath to be of format"):
		return "; the runtime has the cgroup driver systemd: set the agent's to systemd too (Node.CgroupDriver)"
	case dial && strings.Contains(message, "permission denied"):
		return "; run as root, or as a user who may open the socket"
	case dial && (strings.Contains(message, "no such file or directory") || strings.Contains(message, "connection refused")):
		return "; start the runtime, or give the path of its socket"
	default:
		return ""
	}
}

// GRPCStatus returns what the runtime answered.
func (e *Error) GRPCStatus() *status.Status { return e.status }

// Unwrap returns the errors that e also is.
func (e *Error) Unwrap() []error {
	var all []error
	if e.kind != nil {
		all = append(all, e.kind)
	}
	if e.cause != nil {
		all = append(all, e.cause)
	}
	return all
}

// kindOf maps gRPC codes to the errors of package runtime. This is the only
// place that does.
func kindOf(code codes.Code) error {
	switch code {
	case codes.NotFound:
		return runtime.ErrNotFound
	case codes.Unavailable:
		return runtime.ErrUnavailable
	case codes.Unimplemented:
		return runtime.ErrUnsupported
	case codes.InvalidArgument, codes.OutOfRange:
		return runtime.ErrInvalid
	case codes.AlreadyExists:
		return runtime.ErrAlreadyExists
	case codes.DeadlineExceeded:
		return runtime.ErrDeadlineExceeded
	case codes.Unauthenticated, codes.PermissionDenied:
		return runtime.ErrUnauthorized
	default:
		return nil
	}
}

// newError tells what became of a call. call is the context the call was made
// with, parent the one it was derived from.
func newError(parent, call context.Context, rpc, subject string, limit time.Duration, err error) *Error {
	st := status.Convert(err)
	e := &Error{RPC: rpc, Subject: subject, status: st, kind: kindOf(st.Code())}
	ended := contextError(parent)
	switch {
	case ended != nil:
		e.cause = ended
	case errors.Is(contextError(call), context.DeadlineExceeded):
		e.cause, e.Timeout = context.DeadlineExceeded, limit
	case st.Code() == codes.Canceled:
		e.cause = context.Canceled
	}
	if errors.Is(e.cause, context.DeadlineExceeded) {
		e.kind = runtime.ErrDeadlineExceeded
	}
	return e
}

// contextError returns ctx.Err, and context.DeadlineExceeded as soon as the
// deadline of ctx has passed: the runtime knows it too, and may end the call
// before the timer of ctx has run.
func contextError(ctx context.Context) error {
	if deadline, ok := ctx.Deadline(); ok && ctx.Err() == nil && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// do makes one unary call within limit and names it in the error.
func do[Req, Resp any](ctx context.Context, c *Client, rpc, subject string, limit time.Duration,
	call func(context.Context, Req, ...grpc.CallOption) (Resp, error), req Req,
) (Resp, error) {
	if c.cfg.Observer && changes(rpc) {
		var none Resp
		return none, fmt.Errorf("%s %s by an observer: %w", rpc, subject, runtime.ErrNotOwner)
	}
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	began := time.Now()
	resp, err := call(within, req)
	if err != nil {
		err = newError(ctx, within, rpc, subject, limit, err)
	}
	if c.cfg.Hooks.Call != nil {
		c.cfg.Hooks.Call(rpc, time.Since(began), err)
	}
	return resp, err
}
