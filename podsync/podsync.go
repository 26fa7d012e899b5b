package podsync

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/podinput"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// Runtime executes plans. Its errors name the call that failed. It can have the
// capabilities runtime.PodUpdater, runtime.PodResourcesUpdater and runtime.PodSyncer.
type Runtime interface {
	// Apply executes plan in order. The failure of one container does not stop the
	// others.
	Apply(ctx context.Context, pod *corev1.Pod, plan []runtime.Action, opts runtime.RunOptions) runtime.ApplyResult
	// Kill stops all containers of observed within the grace period of t, then the
	// sandboxes. It returns nil only if nothing of them runs.
	Kill(ctx context.Context, pod *corev1.Pod, observed runtime.Pod, t runtime.Termination) error
	// Remove removes the exited containers and stopped sandboxes of observed. An error that
	// wraps runtime.ErrNotRemoved does not keep the pod; all others are retried.
	Remove(ctx context.Context, observed runtime.Pod) error
}

// Inspector inspects pods.
type Inspector interface {
	// GetNewerThan returns the pod as observed by an inspection that began after at.
	// It blocks until there is one or ctx is done.
	GetNewerThan(ctx context.Context, uid types.UID, at time.Time) (runtime.Pod, error)
	// RequestInspection requests an inspection that begins after the call, however
	// coarse the clock is. It does not block.
	RequestInspection(uid types.UID)
}

// Statuses generates the status of a pod from a report, stores and sends it. Observe
// does not wait for the receivers of the status.
type Statuses interface {
	Observe(pod *corev1.Pod, r runtime.Report) corev1.PodStatus
	// Get returns the latest status of a pod, including one that a previous process
	// has saved.
	Get(uid types.UID) (corev1.PodStatus, bool)
}

// Volumes mounts and unmounts the volumes of pods.
type Volumes interface {
	// Mount mounts the volumes of a pod, or updates their content. An error with volumes that wraps
	// runtime.ErrNotUpdated says that some have the content that they had: the pod runs on with it,
	// and its containers are started again when they have to. One that wraps runtime.ErrVolumeLimit
	// makes the pod fail, unless it runs or is static.
	Mount(ctx context.Context, pod *corev1.Pod, objects podspec.Objects) (map[string]runtime.Volume, error)
	Unmount(ctx context.Context, uid types.UID) error
	// SubPath returns the path on the node of subPath inside a volume. It creates
	// what is missing, and does not follow links that lead out of the volume.
	SubPath(ctx context.Context, uid types.UID, container string, v runtime.Volume, subPath string) (string, error)
}

// Cgroups creates and removes the parent cgroups of containers, one per pod.
type Cgroups interface {
	// Ensure creates the cgroup of a pod, or updates its limits. An error with a parent says
	// that its memory limit is not lowered yet, because more is in use: the pod runs on,
	// and containers are not resized before.
	Ensure(ctx context.Context, pod *corev1.Pod) (parent string, err error)
	// Raise is called instead while containers of the pod are to be resized. It lowers no
	// limit: Ensure does, after that. Its error with a parent is the same.
	Raise(ctx context.Context, pod *corev1.Pod) (parent string, err error)
	Remove(ctx context.Context, uid types.UID) error
}

// UserNamespaces reserves id ranges for the user namespaces of pods.
type UserNamespaces interface {
	// Ensure returns the id mappings of a pod whose directory exists. They stay the
	// same until Release.
	Ensure(uid types.UID) (users, groups []runtime.IDMapping, err error)
	// Release frees them. It is called after the directory of the pod was removed.
	Release(uid types.UID)
}

// Probes runs the probes of containers.
type Probes interface {
	AddPod(pod *corev1.Pod)
	StopLivenessAndStartup(uid types.UID)
	RemovePod(uid types.UID)
	Results(uid types.UID) runtime.PodProbeResults
}

// SoftAdmitter is an admission check that may do I/O. It is called during the sync of
// the pod, with a deadline. A pod that it rejects waits: it is Pending with the reason
// Blocked, its containers are stopped and removed, and it starts from the beginning
// after it was admitted. An error or a missed deadline keeps a pod from starting, but
// does not stop one that runs.
type SoftAdmitter interface {
	Admit(ctx context.Context, pod *corev1.Pod) (podspec.AdmitResult, error)
}

// Injector decides what a container gets in addition to its spec: devices, mounts,
// variables. An Injector can also be a PreStarter and a Releaser.
type Injector interface {
	// Inject returns what the container gets. It is called before the container is
	// created, and may block then: only the pod waits. After an error the container is
	// tried again with back-off.
	//
	// It is also called at each sync of a container that runs, and must not block then. A
	// container that runs with something else is replaced; after an error it is kept.
	Inject(ctx context.Context, pod *corev1.Pod, container *corev1.Container, running bool) (runtime.Injection, error)
}

// PreStarter is an Injector that prepares each start of a container. It may block: only
// the pod waits. The container is not started after an error.
type PreStarter interface {
	PreStart(ctx context.Context, pod *corev1.Pod, container string) error
}

// Releaser is an Injector that sets something aside for a pod. Release is called after all
// containers of the pod have ended, also more than once, and again after an error. It may block,
// but ends when ctx is done, as when the agent stops: the next call releases what is left.
type Releaser interface {
	Release(ctx context.Context, uid types.UID) error
}

// EarlyReleaser is a Releaser of something that others get once the pod has ended, such as devices that
// the cluster allocates. The pod is not reported as ended before it is released.
type EarlyReleaser interface {
	Releaser
	// HasUnreleased reports whether the pod has something that is not released. It is called at each
	// sync and must not block.
	HasUnreleased(pod *corev1.Pod) bool
}

// StoredReleaser is a Releaser of something that outlives the agent. Housekeeping releases what is left of
// pods that do not exist any more.
type StoredReleaser interface {
	Releaser
	// PodUIDs returns the pods that have something. It is called often. After an error there may be more.
	PodUIDs() ([]types.UID, error)
}

// CPUAssigner is an Injector that gives containers CPUs for themselves. The CPU limits of these
// are not enforced, because a quota would stop them while their CPUs are idle. Its methods are
// called often and must not block.
type CPUAssigner interface {
	// HasExclusiveCPUs reports whether a container has CPUs for itself now.
	HasExclusiveCPUs(pod *corev1.Pod, container *corev1.Container) bool
	// PodHasExclusiveCPUs reports whether a container of the pod has CPUs for itself, or will
	// when it is created. Then the pod has no CPU quota: those of its other containers count.
	PodHasExclusiveCPUs(pod *corev1.Pod) bool
}

// ResourceProvider is an Injector of resources that the node has, such as devices. Its
// methods are called often and must not block.
type ResourceProvider interface {
	// Capacity returns all resources that it provides, 0 for those that are gone.
	Capacity() corev1.ResourceList
	// Allocatable returns what pods can have at present. Pods that request a resource
	// that is not in it are admitted, and wait for it.
	Allocatable() corev1.ResourceList
	// ResourceStatuses returns the health of what a container has, as it is reported in
	// the status of the pod.
	ResourceStatuses(uid types.UID, container string) []corev1.ResourceStatus
	// NotifyHealth adds a function that is called after the health of what a pod has
	// has changed. The function does not block.
	NotifyHealth(f func(uid types.UID))
}

// HealthReporter is an Injector of what is no resource of the node, such as the devices of
// ResourceClaims, and has a health. Its methods are called often and must not block.
type HealthReporter interface {
	// ResourceHealth returns the health of what a container has, as it is reported in
	// the status of the pod. Neither argument is changed.
	ResourceHealth(pod *corev1.Pod, container *corev1.Container) []corev1.ResourceStatus
	// NotifyHealth is that of a ResourceProvider.
	NotifyHealth(f func(uid types.UID))
}

// FieldSupporter is an Injector that implements fields of pods that the node would reject
// without it.
type FieldSupporter interface {
	// SupportsField reports whether it implements a field, such as
	// spec.containers[0].resources.claims.
	SupportsField(field string) bool
}

// PodKiller requests the termination of a pod. It does not block.
type PodKiller interface {
	RequestKill(uid types.UID, t runtime.Termination)
}

// Recorder receives Kubernetes events. It does not block.
type Recorder interface {
	Record(event *corev1.Event)
}

// Config describes a Syncer.
type Config struct {
	Runtime  Runtime   // required
	PodCache Inspector // required
	Statuses Statuses  // required

	PodsDir string // absolute; each pod gets a directory in it, mode 0700. Required
	LogsDir string // absolute; each pod gets a directory for container logs in it. Required

	// Owner returns the id that new log directories are marked with. A directory with
	// another mark, or with none although the runtime has nothing of the pod, belongs
	// to another agent and is not removed. Owner is called during Sync and Finish.
	// Default: no marks; LogsDir belongs to this Syncer alone.
	Owner func() string

	PodKiller      PodKiller       // terminates pods after their active deadline. Default: the deadline is ignored
	Volumes        Volumes         // Default: none; a pod with volumes is an error
	Cgroups        Cgroups         // Default: the runtime chooses
	UserNamespaces UserNamespaces  // Default: none; the runtime rejects a pod with hostUsers false
	Probes         Probes          // Default: all probes count as successful
	Objects        podspec.Objects // Default: there are none
	BackOff        runtime.BackOff // Default: runtime.DefaultBackOff
	SoftAdmitters  []SoftAdmitter  // a pod must be admitted by all. Default: none
	Injectors      []Injector      // what containers get from all of them together. Default: nothing
	NetworkReady   func() error    // returns nil if pods can get a network. Default: always nil
	Recorder       Recorder        // Default: events are dropped
	Logger         *slog.Logger    // Default: discard
	Node           Node

	AdmitTimeout time.Duration // of all SoftAdmitters of one sync together. Default: 10s
	Hooks        Hooks
}

// Node has the facts about the node that pods depend on.
type Node struct {
	Name          string
	IPs           func() []string     // at the time, primary first; it must not block. Default: none
	Allocatable   corev1.ResourceList // value of a resourceFieldRef to a limit that is not set
	ResolvConf    string              // Default: /etc/resolv.conf
	ClusterDNS    []string            // name servers for dnsPolicy ClusterFirst. Default: as for Default
	ClusterDomain string              // Default: none
}

const (
	defaultAdmitTimeout = 10 * time.Second
	defaultResolvConf   = "/etc/resolv.conf"
)

func (c *Config) fill() error {
	var errs []error
	require := func(ok bool, problem string) {
		if !ok {
			errs = append(errs, errors.New("podsync: Config."+problem))
		}
	}
	require(c.Runtime != nil, "Runtime required")
	require(c.PodCache != nil, "PodCache required")
	require(c.Statuses != nil, "Statuses required")
	require(filepath.IsAbs(c.PodsDir), "PodsDir must be an absolute path")
	require(filepath.IsAbs(c.LogsDir), "LogsDir must be an absolute path")
	require(c.AdmitTimeout >= 0, "AdmitTimeout must not be negative")
	if c.AdmitTimeout == 0 {
		c.AdmitTimeout = defaultAdmitTimeout
	}
	if c.Node.IPs == nil {
		c.Node.IPs = func() []string { return nil }
	}
	if c.Node.ResolvConf == "" {
		c.Node.ResolvConf = defaultResolvConf
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Recorder, c.Hooks = safe.Events(c.Logger, c.Recorder), c.Hooks.guarded(c.Logger)
	return errors.Join(errs...)
}

// Syncer executes the transactions of pods. It is a podworkers.Syncer.
type Syncer struct {
	cfg         Config
	resolvConfs resolvConfs
	setupSlots  *setupSlots
	podDirs     podDirs

	mu   sync.Mutex // guards pods; held over memory only
	pods map[types.UID]*podState
}

// podState is carried from one sync of a pod to the next. Only the sync that is under
// way uses it.
type podState struct {
	synced         bool                       // this process has synced the pod before
	blocked        *runtime.Failure           // why the pod waits for soft admission; nil: it does not
	attempts       map[string]uint32          // of containers that were removed while the pod waited
	failures       map[string]runtime.Failure // of the last Apply
	previousErrors map[string]time.Time       // errors of the previous sync with their reasons, and when each was emitted last
	currentErrors  map[string]time.Time       // errors of this sync
	settled        podinput.Input             // what there was nothing to do for
	updated        *corev1.Pod                // the pod whose labels and annotations the runtime has; nil: unknown
	final          *runtime.Pod               // the state observed after all containers had stopped
	unanswered     map[int]chan struct{}      // calls of SoftAdmitters that missed the deadline; closed when they return
	dirsCheckedAt  time.Time                  // when the directories of the pod existed
	start          time.Time                  // start time of the status from which active was computed
	active         time.Time                  // start time on the monotonic clock
	ends           map[string]time.Time       // ends of exited containers by id, on the monotonic clock
	logged         loggedState
	stops          map[string]time.Time // stopped containers by id, and until when they exit because of that; see recordStops
	resize         resizeState
	sandboxAttempt uint32 // of the newest sandbox whose creation an event says to replace another

	announced      announcedResources
	sandboxID      string // of the ready sandbox that the plan keeps; "": there is none
	inRuntime      bool   // the last sync observed a sandbox
	limitErr       error  // why the resources of the pod as a whole are not those of its spec yet
	rejected       bool   // the runtime has rejected them: limitErr says why
	resizes        bool   // the plan resizes containers
	volumesMounted bool   // the last sync mounted all volumes
	hasObject      bool   // an earlier sync observed an object; see runtime.PodSyncer
}

// New returns a Syncer. It does no I/O.
func New(cfg Config) (*Syncer, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	return &Syncer{cfg: cfg, setupSlots: newSetupSlots(), pods: map[types.UID]*podState{}}, nil
}

func (s *Syncer) state(uid types.UID) *podState {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.pods[uid]
	if st == nil {
		st = new(podState)
		s.pods[uid] = st
	}
	return st
}

func (s *Syncer) forget(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pods, uid)
}

// collectErrors starts the collection of the errors of one call. The result ends it.
func (st *podState) collectErrors() (end func()) {
	st.currentErrors = nil
	return func() { st.previousErrors = st.currentErrors }
}

// repeatErrorPeriod is the time after which an error that lasts is emitted once more: an API server
// forgets events, after an hour by default, and nothing else may say why a pod does not start.
const repeatErrorPeriod = 10 * time.Minute

// emitOnce emits an error as an event, and reports whether it did: an error that the
// previous call had too is emitted again only after repeatErrorPeriod. Errors after the end of ctx
// do not count, because then the agent itself has cancelled the call, to terminate the pod for
// example.
func (s *Syncer) emitOnce(ctx context.Context, pod *corev1.Pod, st *podState, reason string, err error) (emitted bool) {
	if ctx.Err() != nil {
		return false
	}
	now, key := time.Now(), reason+": "+err.Error()
	at, known := st.previousErrors[key]
	if known = known && now.Sub(at) < repeatErrorPeriod; !known {
		at = now
		s.record(pod, corev1.EventTypeWarning, reason, err.Error())
	}
	if st.currentErrors == nil {
		st.currentErrors = map[string]time.Time{}
	}
	st.currentErrors[key] = at
	return !known
}

func (s *Syncer) probeResults(uid types.UID, observed runtime.Pod) runtime.PodProbeResults {
	if s.cfg.Probes != nil {
		return s.cfg.Probes.Results(uid)
	}
	results := runtime.PodProbeResults{}
	for i := range observed.Containers {
		if c := &observed.Containers[i]; c.State == runtime.Running {
			results[c.ID] = runtime.ProbeResults{Startup: runtime.ProbeSuccess, Readiness: runtime.ProbeSuccess, Liveness: runtime.ProbeSuccess}
		}
	}
	return results
}
