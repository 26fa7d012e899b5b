package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/podstream"
)

// rawTerminal makes the terminal of this process, if in is one, pass all keys on, and
// returns its sizes.
func rawTerminal(ctx context.Context, in io.Reader) (sizes <-chan podstream.TerminalSize, restore func()) {
	f, ok := in.(*os.File)
	if !ok {
		return nil, func() {}
	}
	fd := int(f.Fd())
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, func() {} // no terminal
	}
	raw := *before
	raw.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	raw.Oflag &^= unix.OPOST
	raw.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	_ = unix.IoctlSetTermios(fd, unix.TCSETS, &raw) // it then is as before
	ctx, cancel := context.WithCancel(ctx)
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	out := make(chan podstream.TerminalSize, 1)
	go func() {
		for {
			if size, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ); err == nil {
				select {
				case out <- podstream.TerminalSize{Width: size.Col, Height: size.Row}:
				case <-ctx.Done():
					return
				}
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, func() {
		cancel()
		signal.Stop(changed)
		_ = unix.IoctlSetTermios(fd, unix.TCSETS, before)
	}
}
