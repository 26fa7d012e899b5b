package runtime

import "errors"

// Errors that callers branch on. A runtime wraps them. Package cri maps gRPC codes to them,
// and the gRPC status stays reachable through errors.As.
var (
	ErrNotFound         = errors.New("not found")                              // the container, sandbox or image does not exist
	ErrUnavailable      = errors.New("runtime unavailable")                    // the runtime cannot be reached
	ErrUnsupported      = errors.New("not supported by the runtime")           // a further attempt has the same result
	ErrInvalid          = errors.New("invalid")                                // the runtime rejects the request
	ErrAlreadyExists    = errors.New("already exists")                         // the name is in use
	ErrDeadlineExceeded = errors.New("deadline exceeded")                      // the call or the command took too long
	ErrNotReady         = errors.New("not ready")                              // something that the pod refers to is missing for now
	ErrBackOff          = errors.New("waiting for a back-off to end")          // no attempt was made
	ErrUnauthorized     = errors.New("unauthorized")                           // a registry rejects the credentials
	ErrNotOwner         = errors.New("belongs to another owner")               // see OwnerSetter
	ErrNotRemoved       = errors.New("left to garbage collection")             // nothing of a pod runs, and the runtime cannot remove all of it
	ErrNotUpdated       = errors.New("not updated, what is mounted stays")     // a volume has the content that it had
	ErrVolumeLimit      = errors.New("the node has as many volumes as it can") // a volume cannot be attached to it
)
