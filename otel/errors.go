package otel

import (
	"errors"
	"strings"

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
	text := redact(err.Error(), err)
	if len(text) > maxDescription {
		text = text[:maxDescription] + "..."
	}
	return strings.ToValidUTF8(text, "")
}

// redact replaces in text the texts of those errors in the tree of err that have a method
// Redacted() string with its result.
func redact(text string, err error) string {
	if e, ok := err.(interface{ Redacted() string }); ok && err.Error() != "" {
		return strings.ReplaceAll(text, err.Error(), e.Redacted())
	}
	switch e := err.(type) { //nolint:errorlint // the tree is walked here
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			text = redact(text, inner)
		}
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			if inner != nil {
				text = redact(text, inner)
			}
		}
	}
	return text
}
