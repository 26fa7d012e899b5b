//go:build linux

package cri

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sublet-dev/agent/runtime"
)

// Who reads that runc wants slices learns which setting that is about.
func TestError_NamesTheCgroupDriver(t *testing.T) {
	err := newError(t.Context(), t.Context(), "RunPodSandbox", "ns/web", time.Second, status.Error(codes.Unknown,
		`runc create failed: expected cgroupsPath to be of format "slice:prefix:name" for systemd cgroups, got "/kubepods/x" instead`))
	assert.ErrorContains(t, err, "Node.CgroupDriver")
}

// Who has no runtime, another socket or no rights learns it from the first error.
func TestError_SaysWhyTheSocketCannotBeOpened(t *testing.T) {
	for _, tt := range []struct{ cause, remedy string }{
		{"no such file or directory", " (Unavailable); start the runtime, or give the path of its socket"},
		{"connection refused", " (Unavailable); start the runtime, or give the path of its socket"},
		{"permission denied", " (Unavailable); run as root, or as a user who may open the socket"},
		{"operation was canceled", " (Unavailable)"},
	} {
		message := "connection error: desc = \"transport: Error while dialing: dial unix /run/x.sock: connect: " + tt.cause + "\""
		err := newError(t.Context(), t.Context(), "Version", "", time.Second, status.Error(codes.Unavailable, message))
		require.EqualError(t, err, "Version: "+message+tt.remedy)
	}
	for _, message := range []string{"exec: permission denied", "connect to the shim: dial unix /run/s: connect: connection refused"} {
		err := newError(t.Context(), t.Context(), "StartContainer", "ct-1", time.Second, status.Error(codes.Unknown, message))
		require.EqualError(t, err, "StartContainer ct-1: "+message+" (Unknown)")
	}
}

// late is a context past its deadline whose timer has not run.
type late struct{ context.Context }

func (late) Deadline() (time.Time, bool) { return time.Now().Add(-time.Millisecond), true }

// A runtime that ends a call at its deadline may be heard before the timer of
// the agent's own context: the error names the deadline all the same.
func TestError_NamesTheDeadline(t *testing.T) {
	ended := status.Error(codes.DeadlineExceeded, "stream terminated by RST_STREAM with error code: CANCEL")

	own := newError(t.Context(), late{t.Context()}, "StopContainer", "ct-2", time.Second, ended)
	require.EqualError(t, own, "StopContainer ct-2: no answer within 1s")
	require.ErrorIs(t, own, context.DeadlineExceeded)
	require.ErrorIs(t, own, runtime.ErrDeadlineExceeded)

	callers := newError(late{t.Context()}, late{t.Context()}, "StopContainer", "ct-2", time.Second, ended)
	assert.Zero(t, callers.Timeout, "the caller's deadline was shorter than that of the call")
	require.ErrorIs(t, callers, context.DeadlineExceeded)
	require.ErrorIs(t, callers, runtime.ErrDeadlineExceeded)
}
