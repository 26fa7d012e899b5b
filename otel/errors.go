package otel

import (
	"errors"
	"strings"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

// maxDescription bounds the text of an error in a span, in bytes.
const maxDescription = 512

// errorType returns the value of error.type, which has few different ones.
func errorType(err error) string {
	for _, class := range []struct {
		err  error
		name string
	}{
		{podworkers.ErrSyncerPanicked, "panic"},
		{runtime.ErrDeadlineExceeded, "deadline_exceeded"},
		{runtime.ErrUnavailable, "unavailable"},
		{runtime.ErrUnauthorized, "unauthorized"},
		{runtime.ErrNotFound, "not_found"},
		{runtime.ErrAlreadyExists, "already_exists"},
		{runtime.ErrNotOwner, "not_owner"},
		{runtime.ErrNotReady, "not_ready"},
		{runtime.ErrBackOff, "back_off"},
		{runtime.ErrUnsupported, "unsupported"},
		{runtime.ErrInvalid, "invalid"},
	} {
		if errors.Is(err, class.err) {
			return class.name
		}
	}
	return errorTypeFallback
}

// describe returns the text of err without what must not leave the node, cut to
// maxDescription.
func describe(err error) string {
	text := logattr.Redact(err)
	if len(text) > maxDescription {
		text = text[:maxDescription] + "..."
	}
	return strings.ToValidUTF8(text, "")
}
