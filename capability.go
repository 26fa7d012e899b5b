package agent

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/runtime"
)

// imageStore is what the collection of images takes of a runtime.
type imageStore struct {
	runtime.ImageStore
	runtime.ImageUser
	runtime.ImageFSReporter
}

var _ imagegc.ImageStore = imageStore{}

// capability is one that a runtime may have.
type capability struct {
	name  string // of its interface in package runtime
	has   bool
	means string // what is off without it
	// option is the option that asks for what is off, if it was given.
	option string
}

func has[T any](a *Agent) bool {
	_, ok := runtime.Capability[T](a.runtime)
	return ok
}

// capabilities are those that the agent uses of its runtime.
func (a *Agent) capabilities() []capability {
	given := func(option string, asks bool) string {
		if asks {
			return option
		}
		return ""
	}
	rotates := a.given["log rotation"] && a.rotation.MaxSize >= 0
	measures := a.evict != nil && a.evict.Usage == nil
	collects := a.imagePolicy != nil
	return []capability{
		{"ContainerRemover", has[runtime.ContainerRemover](a), "container collection", given("WithContainerGC", a.given["container collection"])},
		{"ContainerRemover", has[runtime.ContainerRemover](a), "removal of links to logs", given("NodeConfig.LogLinksDir", a.node.LogLinksDir != "")},
		{"LogReopener", has[runtime.LogReopener](a), "log rotation", given("WithLogRotation", rotates)},
		{"ImageStore", has[runtime.ImageStore](a), "image collection", given("WithImageGC", collects)},
		{"ImageUser", has[runtime.ImageUser](a), "image collection", given("WithImageGC", collects)},
		{"ImageFSReporter", has[runtime.ImageFSReporter](a), "figures of the image file system", given("WithImageGC", collects)},
		{"ImageFSReporter", has[runtime.ImageFSReporter](a), "figures of the image file system", given("WithEviction", measures)},
		{"ContainerStatsReporter", has[runtime.ContainerStatsReporter](a), "figures of containers", given("WithEviction", measures)},
		{"CgroupDriverReporter", has[runtime.CgroupDriverReporter](a), "asking for the cgroup driver", ""},
		{"SandboxImageReporter", has[runtime.SandboxImageReporter](a), "asking for the image of sandboxes", ""},
		{"TimestampedWatcher", has[runtime.TimestampedWatcher](a), "times of runtime events", ""},
		{"OwnerSetter", has[runtime.OwnerSetter](a), "sharing the runtime with others", given("WithAdoption", len(a.adopt) > 0)},
	}
}

// checkCapabilities returns an error for each option that asks for what the
// runtime cannot do.
func (a *Agent) checkCapabilities() error {
	var errs []error
	for _, c := range a.capabilities() {
		if !c.has && c.option != "" {
			errs = append(errs, fmt.Errorf("%s: the runtime is no runtime.%s, without which there is no %s; a decorator needs a method Unwrap() any",
				c.option, c.name, c.means))
		}
	}
	return errors.Join(errs...)
}

// logCapabilities tells once what is off for want of a capability.
func (a *Agent) logCapabilities() {
	var off, missing []string
	for _, c := range a.capabilities() {
		if !c.has {
			off, missing = append(off, c.means), append(missing, c.name)
		}
	}
	if len(off) > 0 {
		a.logger.Info("runtime lacks capabilities", slog.Any("off", off), slog.Any("missing", missing))
	}
}
