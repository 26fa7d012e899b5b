//go:build !linux

package csitest

import "errors"

func mountBind(_, _ string, _ bool) error { return errors.ErrUnsupported }

func unbind(string) error { return nil }

func loopDevice(string) (string, error) { return "", errors.ErrUnsupported }

func detachLoop(string) error { return errors.ErrUnsupported }
