package podspec

import "errors"

var (
	// ErrObjectNotFound is wrapped by the error of Objects for an unknown Ref.
	ErrObjectNotFound = errors.New("no such object")
	// ErrNoDocument is returned by Decode for input without any document: nothing,
	// blanks and comments only. A file that is being written looks like this.
	ErrNoDocument = errors.New("holds no document")
	// ErrTooLarge is wrapped by errors of Decode about the size of its input.
	ErrTooLarge = errors.New("is too large")
)
