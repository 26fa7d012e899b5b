//go:build !linux && !darwin

package hostprocess

import (
	"context"
	"errors"

	"github.com/sublet-dev/agent/runtime/embedded"
)

// canDropPrivileges is whether processes can be kept from gaining privileges.
const canDropPrivileges = false

// Executor runs containers as processes, on Linux and macOS only.
type Executor struct{ cfg Config }

// New returns an executor that fails every call on this system.
func New(cfg Config) *Executor { return &Executor{cfg: cfg} }

// Create implements embedded.Executor.
func (h *Executor) Create(context.Context, *embedded.Container) error {
	return errors.New("host processes require Linux or macOS")
}

// Start implements embedded.Executor.
func (h *Executor) Start(context.Context, *embedded.Container, embedded.IO, func(embedded.Exit)) (embedded.Process, error) {
	return nil, errors.New("host processes require Linux or macOS")
}

// Remove implements embedded.Executor.
func (h *Executor) Remove(*embedded.Container) {}
