// Package leaktest finds goroutines that the tests of a package leave behind.
package leaktest

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Main runs the tests of a package and expects that they leave no goroutine. goleak.VerifyTestMain gives
// the last ones less than half a second, which is not enough on a busy machine; this is a minute.
func Main(m *testing.M, options ...goleak.Option) {
	code := m.Run()
	if code == 0 {
		if err := await(func() error { return goleak.Find(options...) }); err != nil {
			fmt.Fprintf(os.Stderr, "goleak: Errors on successful test run: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}

// await returns nil as soon as find does, or its last error after a minute.
func await(find func() error) error {
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if err := find(); err == nil || time.Now().After(end) {
			return err
		}
	}
}
