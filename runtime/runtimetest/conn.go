package runtimetest

import (
	"context"
	"path"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// maxResponse is the size of responses that kubelets take. The default of gRPC is less, and would fail a runtime for its
// lists of many pods.
const maxResponse = 16 << 20

// kubeletConn takes responses as large as kubelets do, however the connection was made. The error of a call without a
// response says how long was waited, which that of gRPC does not.
type kubeletConn struct{ grpc.ClientConnInterface }

func (c kubeletConn) Invoke(ctx context.Context, method string, req, resp any, opts ...grpc.CallOption) error {
	began := time.Now()
	err := c.ClientConnInterface.Invoke(ctx, method, req, resp, withMaxResponse(opts)...)
	if ctx.Err() != nil && status.Code(err) == codes.DeadlineExceeded {
		return status.Errorf(codes.DeadlineExceeded, "%s: no response within %s", path.Base(method), time.Since(began).Round(time.Millisecond))
	}
	return err
}

func (c kubeletConn) NewStream(ctx context.Context, d *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return c.ClientConnInterface.NewStream(ctx, d, method, withMaxResponse(opts)...)
}

// withMaxResponse puts the bound before the options of a call, which win.
func withMaxResponse(opts []grpc.CallOption) []grpc.CallOption {
	return append([]grpc.CallOption{grpc.MaxCallRecvMsgSize(maxResponse)}, opts...)
}
