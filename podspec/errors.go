package podspec

import "errors"

var (
	// ErrObjectNotFound is wrapped by the error of Objects for an unknown Ref.
	ErrObjectNotFound = errors.New("object not found")
	// ErrNoDocument is returned by Decode for input without a document: empty input, or
	// blanks and comments only. A partially written file can look like this.
	ErrNoDocument = errors.New("input contains no document")
	// ErrTooLarge is wrapped by errors of Decode about the size of its input.
	ErrTooLarge = errors.New("input too large")
)
