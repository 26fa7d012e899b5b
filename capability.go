package agent

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/sublet-dev/agent/runtime"
)

// capability is one that a runtime may have.
type capability struct {
	name  string // of its interface in package runtime
	has   bool
	means string // what is off without it
	// option is the option that asks for what is off, if it was given.
	option string
}

func has[T any](c *Components) bool {
	_, ok := runtime.Capability[T](c.Runtime)
	return ok
}

// capabilities are those that the agent uses of its runtime.
func (c *Components) capabilities() []capability {
	given := func(option string, asks bool) string {
		if asks {
			return option
		}
		return ""
	}
	rotates := c.opts.given["log rotation"] && c.opts.rotation.MaxSize >= 0
	measures := c.opts.evict != nil && c.opts.evict.Usage == nil
	collects := c.opts.imagePolicy != nil
	return []capability{
		{"ContainerRemover", has[runtime.ContainerRemover](c), "container collection", given("WithContainerGCPolicy", c.opts.given["container collection"])},
		{"ContainerRemover", has[runtime.ContainerRemover](c), "removal of links to logs", given("node.Config.LogLinksDir", c.Node.LogLinksDir != "")},
		{"LogReopener", has[runtime.LogReopener](c), "log rotation", given("WithLogRotation", rotates)},
		{"ImageStore", has[runtime.ImageStore](c), "image collection", given("WithImageGCPolicy", collects)},
		{"ImageUser", has[runtime.ImageUser](c), "image collection", given("WithImageGCPolicy", collects)},
		{"ImageFSReporter", has[runtime.ImageFSReporter](c), "figures of the image file system", given("WithImageGCPolicy", collects)},
		{"ImageFSReporter", has[runtime.ImageFSReporter](c), "figures of the image file system", given("WithEvictionConfig", measures)},
		{"ContainerStatsReporter", has[runtime.ContainerStatsReporter](c), "figures of containers", given("WithEvictionConfig", measures)},
		{"CgroupDriverReporter", has[runtime.CgroupDriverReporter](c), "asking for the cgroup driver", ""},
		{"SandboxImageReporter", has[runtime.SandboxImageReporter](c), "asking for the image of sandboxes", ""},
		{"TimestampedWatcher", has[runtime.TimestampedWatcher](c), "times of runtime events", ""},
		{"OwnerSetter", has[runtime.OwnerSetter](c), "sharing the runtime with others", given("WithAdoption", len(c.opts.adopt) > 0)},
	}
}

// checkCapabilities returns an error for each option that asks for what the
// runtime cannot do.
func (c *Components) checkCapabilities() error {
	var errs []error
	for _, n := range c.capabilities() {
		if !n.has && n.option != "" {
			errs = append(errs, fmt.Errorf("%s: the runtime is no runtime.%s, without which there is no %s; a decorator needs a method Unwrap() any",
				n.option, n.name, n.means))
		}
	}
	return errors.Join(errs...)
}

// logCapabilities tells once what is off for want of a capability.
func (c *Components) logCapabilities() {
	var off, missing []string
	for _, n := range c.capabilities() {
		if !n.has {
			off, missing = append(off, n.means), append(missing, n.name)
		}
	}
	if len(off) > 0 {
		c.Logger.Info("runtime lacks capabilities", slog.Any("off", off), slog.Any("missing", missing))
	}
}
