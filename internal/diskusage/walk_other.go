//go:build !unix

package diskusage

import (
	"context"
	"errors"

	"github.com/sublet-dev/agent/runtime"
)

// Walk measures nothing on this system.
type Walk struct{}

// New returns a Walk that is done.
func New(string) *Walk { return &Walk{} }

// Run returns true.
func (*Walk) Run(context.Context) (done bool) { return true }

// Done returns true.
func (*Walk) Done() bool { return true }

// Step does nothing.
func (*Walk) Step() {}

// SoFar returns no usage.
func (*Walk) SoFar() runtime.DiskUsage { return runtime.DiskUsage{} }

// Close does nothing.
func (*Walk) Close() {}

// Err says that the usage is not known.
func (*Walk) Err() error { return errors.New("disk usage is not measured on this system") }
