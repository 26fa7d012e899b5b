package oomwatch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/internal/sleep"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// Reasons of events.
const (
	ReasonSystem    = "SystemOOM" // of the node, as a kubelet's
	ReasonContainer = "OOMKilling"
)

// Limits of events: a container can have its processes killed as fast as it starts them.
const (
	eventPeriod = 10 * time.Second
	eventBurst  = 5
	maxLimiters = 1000
	retryPeriod = 30 * time.Second
	// nodeKey is the key of the limit of events about the node, and "" that of processes in no pod.
	nodeKey = types.UID("node")
	// maxRecordBytes is more than the kernel gives for one record.
	maxRecordBytes = 8 << 10
)

// Config configures a Watcher. All fields but Open and Logger are required.
type Config struct {
	NodeName string
	Pods     Pods
	Runtime  Runtime
	Recorder Recorder
	// Open opens the kernel's log: each Read returns one record, and blocks until there is one or the log is closed. Records
	// from before are not returned. Default: OpenKernelLog.
	Open   func() (io.ReadCloser, error)
	Logger *slog.Logger // default: nothing is logged
}

// Pods returns the pods of the node. A status manager is one.
type Pods interface{ Pods() []*corev1.Pod }

// Runtime returns the pods in the runtime. A podcache.Lister is one.
type Runtime interface {
	Pods(ctx context.Context) ([]runtime.Pod, error)
}

// Recorder records Kubernetes events. Record must not block.
type Recorder interface{ Record(event *corev1.Event) }

// Watcher reports kills for want of memory.
type Watcher struct {
	cfg      Config
	limiters map[types.UID]*rate.Limiter // of Run alone
}

// New returns a Watcher. It does no I/O.
func New(cfg Config) (*Watcher, error) {
	if cfg.NodeName == "" || cfg.Pods == nil || cfg.Runtime == nil || cfg.Recorder == nil {
		return nil, errors.New("oomwatch: Config.NodeName, Pods, Runtime and Recorder required")
	}
	if cfg.Open == nil {
		cfg.Open = OpenKernelLog
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Watcher{cfg: cfg, limiters: map[types.UID]*rate.Limiter{}}, nil
}

// Run reports kills until ctx is done. A log that cannot be opened or read is opened again later.
func (w *Watcher) Run(ctx context.Context) error {
	failed := false
	for {
		err := w.watch(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // a clean stop
		}
		if !failed {
			w.cfg.Logger.Warn("kernel log unavailable, kills for want of memory are not reported", logattr.Err(err))
		}
		failed = true
		if sleep.For(ctx, retryPeriod) != nil {
			return nil //nolint:nilerr // the same
		}
	}
}

func (w *Watcher) watch(ctx context.Context) error {
	log, err := w.cfg.Open()
	if err != nil {
		return err
	}
	closed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(closed)
		_ = log.Close() // ends Read
	})
	defer func() {
		if stop() {
			_ = log.Close()
		} else {
			<-closed
		}
	}()
	record := make([]byte, maxRecordBytes)
	for {
		n, err := log.Read(record)
		if err != nil {
			return fmt.Errorf("read kernel log: %w", err)
		}
		if kill, ok := Parse(string(record[:n])); ok {
			w.report(ctx, kill, time.Now())
		}
	}
}

// report records the events of a kill.
func (w *Watcher) report(ctx context.Context, k Kill, now time.Time) {
	pod, container := w.find(ctx, k.Cgroup)
	attrs := []any{slog.String("process", k.Process), slog.Int("pid", k.PID), slog.Bool("global", k.Global), slog.String("cgroup", k.Cgroup)}
	var uid types.UID
	if pod != nil {
		uid = pod.UID
		attrs = append(attrs, logattr.Pod(pod), logattr.PodUID(uid), slog.String("containerName", container))
	}
	if k.Global && w.allow(nodeKey, now) {
		message := fmt.Sprintf("System OOM encountered, victim process: %s, pid: %d", k.Process, k.PID)
		w.record(podspec.NewNodeEvent(w.cfg.NodeName, corev1.EventTypeWarning, ReasonSystem, message, now))
	}
	if !w.allow(uid, now) {
		return
	}
	w.cfg.Logger.Warn("process killed for want of memory", attrs...)
	if pod == nil {
		return
	}
	message := fmt.Sprintf("Process %q of container %s was killed: the memory limit was reached", k.Process, container)
	if k.Global {
		message = fmt.Sprintf("Process %q of container %s was killed: the node ran out of memory", k.Process, container)
	}
	w.record(podspec.NewContainerEvent(pod, container, corev1.EventTypeWarning, ReasonContainer, message, now))
}

func (w *Watcher) record(event *corev1.Event) {
	safe.Do(w.cfg.Logger, "record a kill", func() { w.cfg.Recorder.Record(event) })
}

// allow bounds the events of a pod, and those of the node.
func (w *Watcher) allow(uid types.UID, now time.Time) bool {
	if w.limiters[uid] == nil {
		if len(w.limiters) >= maxLimiters {
			clear(w.limiters)
		}
		w.limiters[uid] = rate.NewLimiter(rate.Every(eventPeriod), eventBurst)
	}
	return w.limiters[uid].AllowN(now, 1)
}

// find returns the pod and the container of a cgroup, or nil. The name of a container's cgroup has its id. A container can name
// cgroups below its own at will: the first name counts.
func (w *Watcher) find(ctx context.Context, cgroup string) (*corev1.Pod, string) {
	if cgroup == "" {
		return nil, ""
	}
	running, err := w.cfg.Runtime.Pods(ctx)
	if err != nil {
		return nil, ""
	}
	for name := range strings.SplitSeq(cgroup, "/") {
		id := containerID(name)
		for i := range running {
			for j := range running[i].Containers {
				if c := &running[i].Containers[j]; id != "" && c.ID == id {
					return w.pod(running[i].UID), c.Name
				}
			}
		}
	}
	return nil, ""
}

// containerID returns the id in the name of a cgroup: the name itself or, with systemd, between a prefix and .scope.
func containerID(name string) string {
	if scope, ok := strings.CutSuffix(name, ".scope"); ok {
		return scope[strings.LastIndex(scope, "-")+1:]
	}
	return name
}

func (w *Watcher) pod(uid types.UID) *corev1.Pod {
	pods := w.cfg.Pods.Pods()
	if i := slices.IndexFunc(pods, func(p *corev1.Pod) bool { return p.UID == uid }); i >= 0 {
		return pods[i]
	}
	return nil
}
