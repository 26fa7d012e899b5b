//go:build !linux

package main

import (
	"context"
	"io"

	"github.com/sublet-dev/agent/podstream"
)

// rawTerminal leaves the terminal as it is.
func rawTerminal(context.Context, io.Reader) (sizes <-chan podstream.TerminalSize, restore func()) {
	return nil, func() {}
}
