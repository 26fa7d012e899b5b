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

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// Runtime carries out what was decided. Its errors tell which call failed. It may
// have the capability runtime.PodUpdater.
type Runtime interface {
	// Apply carries out plan in order. It keeps on where one container fails.
	Apply(ctx context.Context, pod *corev1.Pod, plan []runtime.Action, m runtime.RunOptions) runtime.ApplyResult
	// Kill ends every container of seen within e.Grace, then its sandboxes. It
	// returns nil only when nothing of them runs.
	Kill(ctx context.Context, pod *corev1.Pod, seen runtime.Pod, e runtime.Termination) error
	// Remove removes the dead containers and stopped sandboxes of seen.
	Remove(ctx context.Context, seen runtime.Pod) error
}

// Inspector inspects a pod.
type Inspector interface {
	// GetNewerThan returns the pod as observed by an inspection that began after at.
	// It blocks until there is one or ctx is done.
	GetNewerThan(ctx context.Context, uid types.UID, at time.Time) (runtime.Pod, error)
	// RequestInspection asks for an inspection that begins after the call, however
	// coarse the clock. It does not block.
	RequestInspection(uid types.UID)
}

// Statuses works out a pod's status from a report, records and sends it. It does
// not block on whoever the status is sent to.
type Statuses interface {
	Observe(pod *corev1.Pod, r runtime.Report) corev1.PodStatus
	// Get returns the pod's newest status, also that which a former process told.
	Get(uid types.UID) (corev1.PodStatus, bool)
}

// Volumes puts a pod's volumes in place and takes them away.
type Volumes interface {
	Mount(ctx context.Context, pod *corev1.Pod, objects podspec.Objects) (map[string]runtime.Volume, error)
	Unmount(ctx context.Context, uid types.UID) error
	// SubPath returns where a path inside a volume is on the node, made if it was
	// not there and safe from links that lead out of the volume.
	SubPath(ctx context.Context, uid types.UID, container string, v runtime.Volume, subPath string) (string, error)
}

// Cgroups makes the cgroup that a pod's containers are put below, and removes it.
type Cgroups interface {
	Ensure(ctx context.Context, pod *corev1.Pod) (parent string, err error)
	Remove(ctx context.Context, uid types.UID) error
}

// UserNamespaces sets aside the ids of pods' user namespaces.
type UserNamespaces interface {
	// Ensure returns the ids of a pod, whose folder exists; the same ones until
	// they are given back.
	Ensure(uid types.UID) (users, groups []runtime.IDMapping, err error)
	// Release gives them back, once the pod's folder is gone.
	Release(uid types.UID)
}

// Probes runs the probes of a pod's containers.
type Probes interface {
	AddPod(pod *corev1.Pod)
	StopLivenessAndStartup(uid types.UID)
	RemovePod(uid types.UID)
	Results(uid types.UID) runtime.PodProbeResults
}

// SoftAdmitter is a slow check, run in the pod's own turn with a deadline: it may
// ask others. A pod that it refuses, or about which it says nothing in time, is
// kept from running and asked about again; a pod that runs is stopped only by a
// refusal, never by silence. One that is refused waits: it is Pending with reason
// Blocked whatever ran of it, and starts over, with all its containers, when it is
// admitted.
type SoftAdmitter interface {
	Admit(ctx context.Context, pod *corev1.Pod) (podspec.AdmitResult, error)
}

// PodKiller asks for the end of a pod. It does not block.
type PodKiller interface {
	RequestKill(uid types.UID, e runtime.Termination)
}

// Recorder takes Kubernetes events. It does not block.
type Recorder interface {
	Record(event *corev1.Event)
}

// Config describes a Syncer.
type Config struct {
	Runtime  Runtime   // required
	PodCache Inspector // required
	Statuses Statuses  // required

	PodsDir string // absolute; a folder a pod is made in it, 0700. Required
	LogsDir string // absolute; container logs by pod. Required

	// Owner returns the id that log directories are marked with when they are made.
	// One that bears another mark, or none though nothing of the pod is in the
	// runtime, is somebody else's and stays. It is called while Sync and Finish
	// run. Default: no marks, LogsDir is this Syncer's alone.
	Owner func() string

	PodKiller      PodKiller       // ends pods past their active deadline; default: they run on
	Volumes        Volumes         // default: none; a pod with volumes is an error
	Cgroups        Cgroups         // default: the runtime chooses
	UserNamespaces UserNamespaces  // default: none; the runtime refuses a pod with hostUsers false
	Probes         Probes          // default: every probe counts as passed
	Objects        podspec.Objects // default: there are none
	BackOff        runtime.BackOff // default: runtime's
	SoftAdmitters  []SoftAdmitter  // slow checks, all must agree; default: none
	NetworkReady   func() error    // nil error: the network is ready; default: always
	Recorder       Recorder        // default: events are dropped
	Logger         *slog.Logger    // default: discard
	Node           Node

	AdmitTimeout time.Duration // for all of Admit together; default 10 s
}

// Node is what pods are told about the node they run on.
type Node struct {
	Name          string
	IPs           []string            // primary first
	Allocatable   corev1.ResourceList // what resourceFieldRef means without a limit
	ResolvConf    string              // default /etc/resolv.conf
	ClusterDNS    []string            // servers for dnsPolicy ClusterFirst; default: as Default
	ClusterDomain string              // cluster domain; default none
}

const (
	defaultAdmitTimeout = 10 * time.Second
	defaultResolvConf   = "/etc/resolv.conf"
)

func (c *Config) fill() error {
	var errs []error
	require := func(ok bool, what string) {
		if !ok {
			errs = append(errs, errors.New("podsync: "+what))
		}
	}
	require(c.Runtime != nil, "nil Runtime")
	require(c.PodCache != nil, "nil Seen")
	require(c.Statuses != nil, "nil Statuses")
	require(filepath.IsAbs(c.PodsDir), "PodsDir is not an absolute path")
	require(filepath.IsAbs(c.LogsDir), "LogsDir is not an absolute path")
	require(c.AdmitTimeout >= 0, "negative AdmitTimeout")
	if c.AdmitTimeout == 0 {
		c.AdmitTimeout = defaultAdmitTimeout
	}
	if c.Node.ResolvConf == "" {
		c.Node.ResolvConf = defaultResolvConf
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Recorder = safe.Events(c.Logger, c.Recorder)
	return errors.Join(errs...)
}

// Syncer carries out the transactions of pods. It is a podworkers.Syncer.
type Syncer struct {
	cfg Config

	mu   sync.Mutex // guards pods, held over memory only
	pods map[types.UID]*podState
}

// podState is what one turn leaves to the next. Only the pod's own turn uses it.
type podState struct {
	synced         bool                       // it had a turn in this process
	blocked        *runtime.Failure           // why it waits to be admitted; nil: it does not
	attempts       map[string]uint32          // of containers that were removed while it waited
	failures       map[string]runtime.Failure // of the last Apply
	previousErrors map[string]string          // faults of the turn before by reason: each was an event
	currentErrors  map[string]string          // faults of this turn
	restarts       map[string]uint32          // attempts of containers as last told
	handed         *corev1.Pod                // whose labels and annotations the runtime has; nil if that is not known
	final          *runtime.Pod               // last view, taken after the containers ended
	asked          map[int]chan struct{}      // slow checks that did not answer in time; closed when they have
	dirsCheckedAt  time.Time                  // when its folders were there
	start          time.Time                  // of the pod by its status, which active is
	active         time.Time                  // by the monotonic clock
	ends           map[string]time.Time       // of its dead containers by id, by the monotonic clock

	inRuntime bool // the last turn saw a sandbox
}

// New returns a Syncer. It does no I/O.
func New(cfg Config) (*Syncer, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	return &Syncer{cfg: cfg, pods: map[types.UID]*podState{}}, nil
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

// begin starts a turn of telling faults; its result ends it.
func (st *podState) begin() (end func()) {
	st.currentErrors = map[string]string{}
	return func() { st.previousErrors = st.currentErrors }
}

// emitOnce reports a fault as an event, once as long as every turn meets it. What
// follows from the end of ctx is none: the agent cut the turn short itself, to end
// the pod for one.
func (s *Syncer) emitOnce(ctx context.Context, pod *corev1.Pod, st *podState, reason string, err error) {
	if ctx.Err() != nil {
		return
	}
	text := err.Error()
	st.currentErrors[reason] = text
	if st.previousErrors[reason] != text {
		s.event(pod, corev1.EventTypeWarning, reason, text)
	}
}

func (s *Syncer) event(pod *corev1.Pod, kind, reason, message string) {
	if s.cfg.Recorder != nil {
		s.cfg.Recorder.Record(podspec.NewEvent(pod, kind, reason, message, time.Now()))
	}
}

func (s *Syncer) probeResults(uid types.UID) runtime.PodProbeResults {
	if s.cfg.Probes == nil {
		return nil
	}
	return s.cfg.Probes.Results(uid)
}
