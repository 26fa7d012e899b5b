//go:build !linux && !darwin

package embedded

import (
	"context"
	"errors"
)

// canDropPrivileges is whether processes can be kept from gaining privileges.
const canDropPrivileges = false

// HostProcess runs containers as processes, on Linux and macOS only.
type HostProcess struct{ cfg HostConfig }

// NewHostProcess returns an executor that fails every call on this system.
func NewHostProcess(cfg HostConfig) *HostProcess { return &HostProcess{cfg: cfg} }

// Create implements Executor.
func (h *HostProcess) Create(context.Context, *Container) error {
	return errors.New("host processes require Linux or macOS")
}

// Start implements Executor.
func (h *HostProcess) Start(context.Context, *Container, IO, func(Exit)) (Process, error) {
	return nil, errors.New("host processes require Linux or macOS")
}

// Remove implements Executor.
func (h *HostProcess) Remove(*Container) {}
