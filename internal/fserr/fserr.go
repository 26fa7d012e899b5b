// Package fserr has what several packages do with errors of file systems.
package fserr

import (
	"errors"
	"io/fs"
)

// IgnoreNotExist returns err, or nil if something does not exist: what is to be removed
// may have been removed by others.
func IgnoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
