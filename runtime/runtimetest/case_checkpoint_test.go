package runtimetest

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The case of checkpoints is skipped where a runtime says that it makes none, and fails for any other error.
func TestHasNoCheckpoints(t *testing.T) {
	for err, want := range map[error]bool{
		nil: false,
		status.Error(codes.Unimplemented, "method CheckpointContainer not implemented"):                                      true, // containerd 1.6
		status.Error(codes.Unknown, "CRIU binary not found or too old (<31600). Failed to checkpoint container \"1\""):       true, // containerd 2.0
		status.Error(codes.Unknown, `failed to checkpoint container "1": criu binary not found in shim path or system PATH`): true, // containerd 2.4
		status.Error(codes.Unknown, `failed to checkpoint container "1": criu support is disabled by configuration`):         true,
		status.Error(codes.Unknown, "checkpoint/restore requires at least CRIU 31600, current version is 31500"):             true,
		status.Error(codes.Unknown, "checkpoint/restore support not available"):                                              true, // CRI-O
		status.Error(codes.Unknown, `checkpointing container "1" failed: runc checkpoint: criu failed: type NOTIFY errno 0`): false,
		status.Error(codes.NotFound, "an error occurred when trying to find container"):                                      false,
		status.Error(codes.DeadlineExceeded, "context deadline exceeded"):                                                    false,
		errors.New("connection refused"): false,
	} {
		assert.Equal(t, want, hasNoCheckpoints(err), "%v", err)
	}
}
