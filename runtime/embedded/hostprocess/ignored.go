//go:build linux || darwin

package hostprocess

import (
	"os"
	"os/signal"
	"syscall"
)

// catchIgnored catches and drops the signals that this process ignores, as one that a script or nohup
// has started in the background does. Programs inherit what is ignored but not what is caught: a
// container would not end by them, and a shell in it could not even trap them.
func catchIgnored() {
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGPIPE} {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig) // which is never read
		}
	}
}
