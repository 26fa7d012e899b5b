package embedded

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/sublet-dev/agent/internal/capability"
)

// Config is the configuration of a Runtime. Only Executor is required.
type Config struct {
	// Executor runs the containers: see packages simulated and hostprocess, or write
	// one. Required. It must not be shared with another Runtime.
	Executor Executor
	// Images are the records of images. A reference without a record is pulled at once, and
	// its image has 1 MiB and no other properties.
	Images []Image
	// DefaultImage, if set, is the record of images without one; its Ref, Aliases and
	// ID are ignored.
	DefaultImage *Image
	// ImageKey returns the same key for names of the same image, for images without a
	// record. Default: each name is a separate image.
	ImageKey func(ref string) string
	// HostPorts serves the TCP host ports of pods on this machine: connections are
	// forwarded to the container's port, if the Executor is a Dialer. Of a port no more
	// than 512 connections are served at a time; others wait.
	HostPorts bool
	// Name is the name of the runtime in Version. Default: sublet-embedded.
	Name string
	// Handlers are the runtime handlers that pods can use in addition to "".
	Handlers []string
	// PodCIDR is the range of the addresses of pods, IPv4 or IPv6, unless the Executor
	// allocates them. Default: 10.88.0.0/16.
	PodCIDR netip.Prefix
	// ImageDir is reported as the mount point of the image file system. Nothing is written
	// to it. Default: "/".
	ImageDir string
	// EventBufferSize is the number of events that a reader of the event stream can lag
	// behind. The stream of a slower one ends with code ResourceExhausted, so that it lists
	// again; events are never dropped silently. Default: 4096.
	EventBufferSize int
	// Grace limits the grace period of containers in Close. Negative: they are killed at
	// once. Default: 30s.
	Grace time.Duration
	// Logger logs failures that cannot be returned to a caller. Default: discard.
	Logger *slog.Logger
}

// fill returns c with defaults, or all its errors.
func (c Config) fill() (Config, error) {
	var errs []error
	if c.Executor == nil {
		errs = append(errs, errors.New("Config.Executor required; use simulated.New or hostprocess.New"))
	} else if e, ok := capability.Of[Checker](c.Executor); ok {
		errs = append(errs, e.Check())
	}
	if c.Name == "" {
		c.Name = "sublet-embedded"
	}
	if !c.PodCIDR.IsValid() {
		c.PodCIDR = netip.MustParsePrefix("10.88.0.0/16")
	}
	if c.PodCIDR.Bits() > c.PodCIDR.Addr().BitLen()-2 {
		errs = append(errs, fmt.Errorf("Config.PodCIDR: %s has no addresses for pods", c.PodCIDR))
	}
	if c.ImageDir == "" {
		c.ImageDir = "/"
	}
	if c.EventBufferSize == 0 {
		c.EventBufferSize = 4096
	}
	if c.EventBufferSize < 0 {
		errs = append(errs, fmt.Errorf("Config.EventBufferSize: %d must not be negative", c.EventBufferSize))
	}
	if c.Grace == 0 {
		c.Grace = 30 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if slices.Contains(c.Handlers, "") {
		errs = append(errs, errors.New("Config.Handlers: the handler \"\" always exists; remove it"))
	}
	return c, errors.Join(errs...)
}
