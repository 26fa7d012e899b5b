package imagegc

import (
	"context"

	"github.com/sublet-dev/agent/runtime"
)

// capabilities are the parts of a runtime that make an ImageStore.
type capabilities struct {
	runtime.ImageStore
	runtime.ImageUser
	runtime.ImageFSReporter
}

// ImagesOf returns the images of a runtime that has the capabilities that Config.Needs
// names, whatever decorates it. Calls of one that is missing panic.
func ImagesOf(rt any) ImageStore {
	var c capabilities
	c.ImageStore, _ = runtime.Capability[runtime.ImageStore](rt)
	c.ImageUser, _ = runtime.Capability[runtime.ImageUser](rt)
	c.ImageFSReporter, _ = runtime.Capability[runtime.ImageFSReporter](rt)
	return c
}

// SandboxImageOf returns the function for Config.SandboxImage: that of the runtime, or nil
// if it cannot report the image of its sandboxes.
func SandboxImageOf(rt any) func(ctx context.Context) (string, error) {
	if s, ok := runtime.Capability[runtime.SandboxImageReporter](rt); ok {
		return s.SandboxImage
	}
	return nil
}

// Needs returns what the collection of images depends on.
func (Config) Needs() []runtime.Need {
	sandbox := runtime.NeedFor[runtime.SandboxImageReporter]("asking for the image of sandboxes")
	sandbox.Optional = true
	return []runtime.Need{
		runtime.NeedFor[runtime.ImageStore]("image collection"),
		runtime.NeedFor[runtime.ImageUser]("image collection"),
		runtime.NeedFor[runtime.ImageFSReporter]("figures of the image file system"),
		sandbox,
	}
}
