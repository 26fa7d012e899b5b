//go:build !linux

package logrotate

import (
	"errors"
	"fmt"
	"sync"
)

// logWatch needs inotify: elsewhere logs are polled.
type logWatch struct{}

func newLogWatch() (*logWatch, error) {
	return nil, fmt.Errorf("watch logs by inotify: %w", errors.ErrUnsupported)
}

func (*logWatch) close()                                    {}
func (*logWatch) notify(*sync.WaitGroup) <-chan struct{}    { return nil }
func (*logWatch) awaitNext()                                {}
func (*logWatch) watch(string, *logState) bool              { return false }
func (*logWatch) forget(*logState)                          {}
func (*logWatch) drainEvents(func(*logState)) (missed bool) { return false }
