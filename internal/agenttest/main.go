package agenttest

import (
	"os"
	"runtime"
	"testing"
)

// Main runs the tests of a package whose tests use bubbles, and ends the process. It is
// called by TestMain.
//
// With the race detector, tests run on one thread: all timers of a bubble share one
// context of the detector, which crashes when two threads use it at once (observed with
// Go 1.26). Its findings follow from the order of synchronization and not from the number
// of threads.
func Main(m *testing.M) {
	if raceDetector {
		runtime.GOMAXPROCS(1)
	}
	os.Exit(m.Run())
}
