package podspec

import "errors"

// ErrNoObject is wrapped by the error of Objects for an unknown Ref.
var ErrNoObject = errors.New("no such object")
