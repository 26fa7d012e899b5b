package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/cgroup"
	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/internal/lazycri"
	"github.com/sublet-dev/agent/internal/run"
	"github.com/sublet-dev/agent/internal/settings"
	"github.com/sublet-dev/agent/logrotate"
	"github.com/sublet-dev/agent/pleg"
	"github.com/sublet-dev/agent/podcache"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtimestate"
	"github.com/sublet-dev/agent/status"
	"github.com/sublet-dev/agent/volume"
)

// Names of the directories in the root directory.
const (
	podsDirName     = "pods"
	logsDirName     = "logs"
	statusesDirName = "statuses"
)

func (c *Components) path(name string) string { return filepath.Join(c.RootDir, name) }

// build builds the components in order.
func (c *Components) build() error {
	for _, step := range []func() error{
		c.detectNode,
		component(c, "Recorder", &c.Recorder, NewRecorder),
		component(c, "Runtime", &c.Runtime, NewRuntime),
		c.checkNeeds,
		c.buildState,
		component(c, "Objects", &c.Objects, NewObjects),
		component(c, "PLEG", &c.PLEG, NewPLEG),
		component(c, "StatusManager", &c.StatusManager, NewStatusManager),
		component(c, "Prober", &c.Prober, NewProber),
		component(c, "Volumes", &c.Volumes, NewVolumes),
		optional(c, "Cgroups", &c.Cgroups, NewCgroups),
		component(c, "UserNamespaces", &c.UserNamespaces, NewUserNamespaces),
		component(c, "Syncer", &c.Syncer, NewSyncer),
		optional(c, "ImageGC", &c.ImageGC, NewImageGC),
		component(c, "PodWorkers", &c.PodWorkers, NewPodWorkers),
		optional(c, "ContainerGC", &c.ContainerGC, NewContainerGC),
		optional(c, "LogRotator", &c.LogRotator, NewLogRotator),
		component(c, "Stats", &c.Stats, NewStats),
		optional(c, "Eviction", &c.Eviction, NewEviction),
		component(c, "PodManager", &c.PodManager, newPodManager),
		component(c, "SyncLoop", &c.SyncLoop, NewSyncLoop),
		component(c, "NodeStatus", &c.NodeStatus, newNodeStatus),
		component(c, "Operator", &c.Operator, newOperator),
		c.buildDrainer,
		c.buildRunners,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	if ignored := c.options.Unused(); len(ignored) > 0 {
		return fmt.Errorf("no effect of %s: another option replaces or disables what it configures", strings.Join(ignored, ", "))
	}
	return nil
}

// component is the step that builds one component: by the constructor of its option, or else by the default one.
func component[T any](c *Components, name string, into *T, def Constructor[T]) func() error {
	return func() error {
		if err := optional(c, name, into, def)(); err != nil {
			return err
		}
		if any(*into) == nil {
			return fmt.Errorf("option With%s: the constructor returned nil", name)
		}
		return nil
	}
}

// optional is the same for a component that may be nil.
func optional[T any](c *Components, name string, into *T, def Constructor[T]) func() error {
	return func() (err error) {
		if given, ok := c.options.constructors[name].(Constructor[T]); ok {
			def = given
		}
		*into, err = def(c)
		return err
	}
}

// configured builds a component from what the agent sets of its Config and what WithConfig has given.
func configured[C, T any](c *Components, construct func(C) (T, error), own C) (t T, err error) {
	cfg, err := settings.Complete(&c.options.Store, own)
	if err != nil {
		return t, err
	}
	return construct(cfg)
}

// checkNeeds returns an error for each option that needs what the runtime cannot do.
func (c *Components) checkNeeds() error {
	return c.options.Each(func(options []string, v any) error {
		if n, ok := v.(interface{ Needs() []runtime.Need }); ok {
			return runtime.CheckNeeds(c.Runtime, strings.Join(options, ", "), n.Needs()...)
		}
		return nil
	})
}

func (c *Components) buildState() (err error) {
	c.RuntimeState, c.PodCache = runtimestate.New(c.Runtime), new(podcache.Cache)
	if c.saved, err = status.NewFileSink(c.path(statusesDirName)); err != nil {
		return err
	}
	injectors, _ := settings.Peek[podsync.Config](&c.options.Store)
	c.Sources, err = configured(c, podsource.New, podsource.Config{
		NodeName: c.NodeName, Recorder: c.Recorder, Logger: c.Logger, Hooks: c.Hooks.Sources,
		Unsupported: podsync.Supported(injectors.Injectors, settings.Value[volume.Config](&c.options.Store).Supported(podspec.Unsupported)),
	})
	return err
}

func (c *Components) buildDrainer() (err error) {
	if settings.Has[podworkers.DrainConfig](&c.options.Store) {
		c.drain, err = configured(c, podworkers.NewDrainer, podworkers.DrainConfig{
			Workers: c.PodWorkers, Runtime: c.Runtime, Sources: c.Sources.Names(),
			Pods: func() []*corev1.Pod { return append(c.StatusManager.Pods(), c.Sources.Pods()...) },
		})
	}
	return err
}

// buildRunners calls the constructors of WithRunner.
func (c *Components) buildRunners() error {
	for _, r := range c.options.runners {
		runner, err := r.construct(c)
		if err == nil && runner == nil {
			err = errors.New("the constructor returned nil")
		}
		if err != nil {
			return fmt.Errorf("runner %q: %w", r.name, err)
		}
		c.runners = append(c.runners, run.Of(r.name, runner)...)
	}
	return nil
}

// detectNode sets what the configuration of the node leaves to the machine. A simulated runtime uses nothing of it.
func (c *Components) detectNode() (err error) {
	if choice, _ := settings.Peek[lazycri.Choice](&c.options.Store); choice.Simulated {
		return nil
	}
	var reserved func(capacity corev1.ResourceList) corev1.ResourceList
	if evict, on := settings.Peek[eviction.Config](&c.options.Store); on {
		reserved = evict.Reservation
	}
	c.Node, err = c.Node.Detected(os.DirFS("/"), c.RootDir, reserved)
	return err
}

// allNeeds are the capabilities that components use of a runtime.
func allNeeds() []runtime.Need {
	return slices.Concat(containergc.Config{}.Needs(), logrotate.Config{}.Needs(), imagegc.Config{}.Needs(), eviction.Config{}.Needs(),
		cgroup.Config{}.Needs(), pleg.Config{}.Needs(), lazycri.Adoption{}.Needs())
}
