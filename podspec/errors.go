package podspec

import "errors"

var (
	// ErrNoObject is wrapped by the error of Objects for an unknown Ref.
	ErrNoObject = errors.New("no such object")
	// ErrEmpty is returned by Decode for input without any document: nothing,
	// blanks and comments only. A file that is being written looks like this.
	ErrEmpty = errors.New("holds no document")
	// ErrTooLarge is wrapped by errors of Decode about the size of its input.
	ErrTooLarge = errors.New("is too large")
)
