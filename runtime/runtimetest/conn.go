package runtimetest

import (
	"context"

	"google.golang.org/grpc"
)

// maxResponse is the size of responses that kubelets take. The default of gRPC is less, and would fail a runtime for its
// lists of many pods.
const maxResponse = 16 << 20

// kubeletConn takes responses as large as kubelets do, however the connection was made.
type kubeletConn struct{ grpc.ClientConnInterface }

func (c kubeletConn) Invoke(ctx context.Context, method string, req, resp any, opts ...grpc.CallOption) error {
	return c.ClientConnInterface.Invoke(ctx, method, req, resp, withMaxResponse(opts)...)
}

func (c kubeletConn) NewStream(ctx context.Context, d *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return c.ClientConnInterface.NewStream(ctx, d, method, withMaxResponse(opts)...)
}

// withMaxResponse puts the bound before the options of a call, which win.
func withMaxResponse(opts []grpc.CallOption) []grpc.CallOption {
	return append([]grpc.CallOption{grpc.MaxCallRecvMsgSize(maxResponse)}, opts...)
}
