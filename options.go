package agent

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sublet-dev/agent/admission"
	"github.com/sublet-dev/agent/cgroup"
	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/internal/lazycri"
	"github.com/sublet-dev/agent/internal/settings"
	"github.com/sublet-dev/agent/logrotate"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/pleg"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/probe"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/stats"
	"github.com/sublet-dev/agent/status"
	"github.com/sublet-dev/agent/syncloop"
	"github.com/sublet-dev/agent/userns"
	"github.com/sublet-dev/agent/volume"
)

// Option configures an Agent. Sources, sinks, admitters, objects and hooks add to those given before. Any other option that is
// given twice, contradicts another or has no effect, is an error of New.
type Option func(*options) error

// options are what the options give: values by their types, which are Configs of components and the types below, constructors
// by component, and observers.
type options struct {
	settings.Store
	constructors map[string]any // Constructor[T]
	observers    []Hooks
	runners      []namedRunner
}

type (
	place        struct{ NodeName, RootDir string }
	logging      struct{ Logger *slog.Logger }
	eventSink    struct{ Recorder Recorder }
	objectPlaces struct{ Places []podspec.Objects }
	namedRunner  struct {
		name      string
		construct Constructor[Runner]
	}
)

// WithNodeName sets the node's name, which is part of the name and UID of static pods. Default: the host's, in lower case.
func WithNodeName(name string) Option { return add("WithNodeName", place{NodeName: name}) }

// WithNode describes the node.
func WithNode(n node.Config) Option { return once("WithNode", n) }

// WithNodeLabels matches node selectors and node affinity, also of local volumes, with labels that may change, such as those of a
// Node object, in place of node.Config.Labels. It must not block and is called for each new pod; the result is read-only.
func WithNodeLabels(labels func() map[string]string) Option {
	return add("WithNodeLabels", admission.Config{LabelsFunc: labels})
}

// WithRootDir sets the agent's own directory, an absolute path. Run creates and locks it. The file owner-id in it has the id
// that marks everything the agent creates in the runtime: if it is lost, running pods belong to no agent. Default: a temporary
// directory that is removed when Run returns, for pods that end with the process.
func WithRootDir(dir string) Option {
	return add("WithRootDir", place{RootDir: filepath.Clean(dir)})
}

// Check implements the check of settings.Add.
func (p place) Check() error {
	if p.RootDir != "" && !filepath.IsAbs(p.RootDir) {
		return fmt.Errorf("root dir %q: not an absolute path", p.RootDir)
	}
	return nil
}

// WithSimulatedRuntime runs pods in a runtime inside the process that simulates them: no process is started, and containers
// behave as the annotations of their pods say (see simulated.ScriptPrefix). It needs neither root nor a daemon, and is for
// tests and trials. Exec with streams, attach and port-forward are not served: they need an embedded runtime with a server
// of package runtime/embedded/stream. It excludes WithRuntime and WithRuntimeEndpoint.
func WithSimulatedRuntime() Option {
	return once("WithSimulatedRuntime", lazycri.Choice{Simulated: true})
}

// WithRuntime sets the container runtime. It excludes WithRuntimeEndpoint and WithSimulatedRuntime. A client from cri.New keeps
// its own configuration: it does not get the agent's recorder and hooks, and without cri.Config.Recorder the events Pulling,
// Pulled, Created, Started and Killing are missing. cri.DetectNode finds the settings that WithRuntimeEndpoint detects. The
// runtimes of package embedded, host processes for instance, are set with this option.
//
// runtime.Capability finds what rt can do besides its methods. An option that needs a missing capability is an error of New;
// Run logs once what else is unavailable.
//
// The agent takes all pods that rt lists for its own and terminates those that no source contains. A runtime that has pods of
// others too must distinguish them: if it is a runtime.OwnerSetter, as *cri.Client is, it is given the agent's id.
func WithRuntime(rt Runtime) Option { return add("WithRuntime", lazycri.Choice{Given: rt}) }

// WithRuntimeEndpoint sets the CRI socket of the container runtime, as unix:///path. An optional second socket is that of the
// image service. Run connects; the client gets the agent's recorder, hooks and logger.
func WithRuntimeEndpoint(endpoint string, image ...string) Option {
	if len(image) > 1 {
		return func(*options) error {
			return fmt.Errorf("WithRuntimeEndpoint: want one socket and at most one image socket, got %q and %q", endpoint, image)
		}
	}
	return add("WithRuntimeEndpoint", lazycri.Choice{Endpoint: endpoint, Image: slices.Concat(image, []string{""})[0]})
}

// WithAdoption has the agent take over pods that bear no owner's id, as those of a kubelet, if they come from one of these
// sources: "file", "http" or "api" by the kubelet's words in the annotation kubernetes.io/config.source. Such a pod is the
// agent's own from then on. One that a source of the agent wants, with the same UID, runs on without a restart; one that none
// wants is ended as soon as all sources have synced. Stop the kubelet first: it would start them again.
//
// Labels of what runs cannot be changed, so that the option has to stay for as long as one of these sandboxes does: without it
// the agent does not see them any more. Pods of another agent have its id, and are never adopted.
func WithAdoption(sources ...string) Option {
	return add("WithAdoption", lazycri.Adoption{Sources: sources})
}

// WithSource adds a source of pods. Its name must be unique; it is the value of the annotation kubernetes.io/config.source of its pods, and assigns
// pods of an earlier process to their source. Pods of files and of HTTP get names that end in the node's and UIDs derived from their content. The
// pods of a source are static (see podsource.StaticSource) unless the source reports otherwise, as podsource.NotStatic does.
func WithSource(name string, src podsource.Source) Option {
	return add("WithSource", podsource.Config{Sources: []podsource.NamedSource{{Name: name, Source: src}}})
}

// WithStatusSink adds a sink to which pod statuses are sent. A slow sink does not delay others.
func WithStatusSink(sink status.Sink) Option {
	return add("WithStatusSink", status.Config{Sinks: []status.Sink{sink}})
}

// WithAdmitter adds a check that every new pod must pass. It is called from the sync loop and must be pure and fast; a check that does I/O belongs
// in WithSoftAdmitter. A rejected static pod is checked again, with back-off and when other pods change or end; any other pod stays Failed.
func WithAdmitter(a syncloop.Admitter) Option {
	return add("WithAdmitter", syncloop.PodManagerConfig{Admitters: []syncloop.Admitter{a}})
}

// WithSoftAdmitter adds a check that runs in the pod's worker with a deadline of 10 s. A rejected pod waits with phase Pending and reason Blocked; a
// running pod is stopped first. Once admitted, all its containers start again, whatever its restart policy.
func WithSoftAdmitter(a podsync.SoftAdmitter) Option {
	return add("WithSoftAdmitter", podsync.Config{SoftAdmitters: []podsync.SoftAdmitter{a}})
}

// WithInjector adds an injector: it decides what containers get in addition to their specs, such as devices. *devices.Manager is
// one. Two that contradict each other keep the container from being created. What a podsync.ResourceProvider provides counts for
// admission and in the status of the node.
func WithInjector(i podsync.Injector) Option {
	return add("WithInjector", podsync.Config{Injectors: []podsync.Injector{i}})
}

// WithObjects adds a place where ConfigMaps and Secrets of pods are found, such as an API server. Those that came with the
// sources take precedence, then each place is asked in the order of the options. It is called from the workers of pods, for
// several pods at once, and must return when ctx is done. podspec.ErrObjectNotFound is wrapped for an object that does not
// exist; any other error ends the search, and the pod waits and tries again.
func WithObjects(o podspec.Objects) Option {
	return add("WithObjects", objectPlaces{[]podspec.Objects{o}})
}

// WithLogger sets the agent's logger. Default: nothing is logged.
func WithLogger(l *slog.Logger) Option { return add("WithLogger", logging{l}) }

// WithRecorder sets the recorder of Kubernetes events. Repeated events are aggregated before they reach it.
func WithRecorder(r Recorder) Option { return add("WithRecorder", eventSink{r}) }

// ComponentConfig is the Config of a component.
type ComponentConfig interface {
	admission.Config | cgroup.Config | containergc.Config | cri.Config | eviction.Config | imagegc.Config | logrotate.Config | pleg.Config |
		podsource.Config | podsync.Config | podworkers.Config | podworkers.DrainConfig | probe.Config | stats.Config | status.Config |
		syncloop.Config | syncloop.HousekeeperConfig | syncloop.PodManagerConfig | userns.Config | volume.Config
}

// WithConfig configures a component, once for each: policies, periods, limits. A field that the agent sets itself, such as the
// other components, must be zero; to lists it adds its own. Three components are off without their Config, and have usable
// defaults if it is zero:
//
//   - eviction.Config: pods are evicted when the node runs short of memory, disk or process ids. Without Usage the agent measures
//     the machine, or the NodeCgroup of WithNode, with the notifiers of the kernel.
//   - imagegc.Config: unused images are removed. Other clients of the runtime may need them.
//   - podworkers.DrainConfig: pods are drained when Run ends; otherwise they run on, and the next agent adopts them.
//
// cri.Config is that of the client that WithRuntimeEndpoint or WithSimulatedRuntime makes.
func WithConfig[C ComponentConfig](cfg C) Option {
	return once(fmt.Sprintf("WithConfig(%T)", cfg), cfg)
}

// WithHooks adds an observer. All observers are called, in the order of the options and side by side: a panic of one is logged
// and keeps neither the others nor the agent from their work. Hooks that derive a context get the one that the previous
// observer returned.
func WithHooks(h Hooks) Option {
	return func(o *options) error {
		o.observers = append(o.observers, h)
		return nil
	}
}

// The options below replace a component. See Constructor; the default of each has its name with New.

// WithPLEG replaces NewPLEG.
func WithPLEG(f Constructor[PLEG]) Option { return replace("PLEG", f) }

// WithStatusManager replaces NewStatusManager.
func WithStatusManager(f Constructor[StatusManager]) Option { return replace("StatusManager", f) }

// WithProber replaces NewProber.
func WithProber(f Constructor[Prober]) Option { return replace("Prober", f) }

// WithVolumes replaces NewVolumes.
func WithVolumes(f Constructor[Volumes]) Option { return replace("Volumes", f) }

// WithCgroups replaces NewCgroups.
func WithCgroups(f Constructor[Cgroups]) Option { return replace("Cgroups", f) }

// WithUserNamespaces replaces NewUserNamespaces.
func WithUserNamespaces(f Constructor[UserNamespaces]) Option { return replace("UserNamespaces", f) }

// WithSyncer replaces NewSyncer.
func WithSyncer(f Constructor[Syncer]) Option { return replace("Syncer", f) }

// WithImageGC replaces NewImageGC.
func WithImageGC(f Constructor[ImageGC]) Option { return replace("ImageGC", f) }

// WithPodWorkers replaces NewPodWorkers.
func WithPodWorkers(f Constructor[PodWorkers]) Option { return replace("PodWorkers", f) }

// WithContainerGC replaces NewContainerGC.
func WithContainerGC(f Constructor[ContainerGC]) Option { return replace("ContainerGC", f) }

// WithLogRotator replaces NewLogRotator.
func WithLogRotator(f Constructor[LogRotator]) Option { return replace("LogRotator", f) }

// WithStats replaces NewStats.
func WithStats(f Constructor[Stats]) Option { return replace("Stats", f) }

// WithEviction replaces NewEviction.
func WithEviction(f Constructor[Eviction]) Option { return replace("Eviction", f) }

// WithSyncLoop replaces NewSyncLoop.
func WithSyncLoop(f Constructor[SyncLoop]) Option { return replace("SyncLoop", f) }

// WithRuntimeFunc replaces NewRuntime, for example to decorate the client of WithRuntimeEndpoint. WithRuntime sets a runtime that exists.
func WithRuntimeFunc(f Constructor[Runtime]) Option { return replace("Runtime", f) }

// WithObjectsFunc replaces NewObjects. WithObjects adds places to it.
func WithObjectsFunc(f Constructor[Objects]) Option { return replace("Objects", f) }

// WithRecorderFunc replaces NewRecorder. WithRecorder sets where that sends events.
func WithRecorderFunc(f Constructor[Recorder]) Option { return replace("Recorder", f) }

// WithRunner adds a component of the program's own. It is constructed after all others and runs as long as any of them: it is
// stopped last, together with the StatusManager. As with them, any return of its Run before that ends the agent. The name is
// for errors and logs.
func WithRunner(name string, f Constructor[Runner]) Option {
	return func(o *options) error {
		if name == "" || f == nil {
			return fmt.Errorf("WithRunner: runner %q: name and constructor required", name)
		}
		o.runners = append(o.runners, namedRunner{name, f})
		return nil
	}
}

// add is an option that adds to what others have given for the type of v.
func add[T any](name string, v T) Option {
	return func(o *options) error { return settings.Add(&o.Store, name, v) }
}

// once is an option that can be given once, and whose value may be zero.
func once[T any](name string, v T) Option {
	return func(o *options) error { return settings.Set(&o.Store, name, v) }
}

// replace sets the constructor of a component.
func replace[T any](component string, f Constructor[T]) Option {
	return func(o *options) error {
		if o.constructors == nil {
			o.constructors = map[string]any{}
		}
		if f == nil || o.constructors[component] != nil {
			return fmt.Errorf("%s: nil constructor, or set twice", component)
		}
		o.constructors[component] = f
		return nil
	}
}

// complete checks options against each other, and returns the Components without any built.
func (o *options) complete() (*Components, error) {
	at, _ := settings.Get[place](&o.Store)
	log, _ := settings.Get[logging](&o.Store)
	described, _ := settings.Get[node.Config](&o.Store)
	adopt, _ := settings.Get[lazycri.Adoption](&o.Store)
	rt, given := settings.Peek[lazycri.Choice](&o.Store)
	c := &Components{NodeName: at.NodeName, RootDir: at.RootDir, Node: described, Logger: log.Logger, options: o, adopt: adopt.Sources}
	c.Owner = c.owner.String
	var errs []error
	host, err := os.Hostname()
	if err != nil && c.NodeName == "" {
		errs = append(errs, fmt.Errorf("cannot read the host name: %w; set WithNodeName", err))
	}
	c.NodeName = cmp.Or(c.NodeName, strings.ToLower(host))
	if !given && o.constructors["Runtime"] == nil {
		errs = append(errs, ErrNoRuntime)
	}
	if rt.IsAmbiguous() {
		errs = append(errs, errors.New("WithRuntime, WithRuntimeEndpoint and WithSimulatedRuntime exclude each other"))
	}
	if c.RootDir == "" && !rt.Simulated {
		errs = append(errs, errors.New("root dir: required with a container runtime, whose pods outlive the agent; set WithRootDir"))
	}
	if c.RootDir == "" {
		c.RootDir, c.ephemeralRoot = filepath.Join(os.TempDir(), "sublet-"+rand.Text()), true
	}
	c.Node.PodLogsDir = cmp.Or(c.Node.PodLogsDir, c.path(logsDirName))
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	for _, h := range o.observers {
		c.Hooks = c.Hooks.join(c.Logger, h)
	}
	return c, errors.Join(errs...)
}
