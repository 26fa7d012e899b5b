// Package sample has code whose tests notice some defects and not others.
package sample

import "errors"

// ErrNegative is returned for a negative number.
var ErrNegative = errors.New("negative")

// Clamp returns n, but at most limit.
func Clamp(n, limit int) (int, error) {
	if n < 0 {
		return 0, ErrNegative
	}
	if n > limit && limit != 0 {
		n = limit
	}
	return n, nil
}

// Unreached is called by no test.
func Unreached(n int) bool { return n == 1 }
