package runtime

import "errors"

// Errors that callers branch on. An adapter maps its wire errors to these and keeps
// the wire error reachable through errors.As.
var (
	ErrNotFound         = errors.New("not found")
	ErrUnavailable      = errors.New("runtime unavailable")
	ErrUnsupported      = errors.New("not supported by the runtime")
	ErrInvalid          = errors.New("invalid")
	ErrAlreadyExists    = errors.New("already exists")
	ErrDeadlineExceeded = errors.New("deadline exceeded")
	ErrNotReady         = errors.New("not ready")
	ErrBackOff          = errors.New("waiting for a back-off to end")
	ErrUnauthorized     = errors.New("unauthorized")
	ErrNotOwner         = errors.New("belongs to another owner")
)
