//go:build !linux

package pageout

import "errors"

func pageOut() (int64, error) { return 0, errors.ErrUnsupported }
