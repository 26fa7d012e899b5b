//go:build !linux

package embedded

import (
	"context"
	"errors"
)

// HostProcess runs containers as processes, on Linux only.
type HostProcess struct{ cfg HostConfig }

// NewHostProcess returns an executor that refuses every container here.
func NewHostProcess(cfg HostConfig) *HostProcess { return &HostProcess{cfg: cfg} }

// Create implements Executor.
func (h *HostProcess) Create(context.Context, *Container) error {
	return errors.New("host processes need Linux")
}

// Start implements Executor.
func (h *HostProcess) Start(context.Context, *Container, IO, func(Exit)) (Process, error) {
	return nil, errors.New("host processes need Linux")
}

// Remove implements Executor.
func (h *HostProcess) Remove(*Container) {}
