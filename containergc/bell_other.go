//go:build !linux

package containergc

import (
	"errors"
	"fmt"
)

// bell needs inotify: elsewhere logs are polled.
type bell struct{}

func newBell() (*bell, error) {
	return nil, fmt.Errorf("watch logs by inotify: %w", errors.ErrUnsupported)
}

func (*bell) close()                              {}
func (*bell) watch(string, *logState) bool        { return false }
func (*bell) forget(*logState)                    {}
func (*bell) heard(func(*logState)) (missed bool) { return false }
