package oomwatch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
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
	// findPeriod and findTimeout are for a container that is killed before the agent has observed its start.
	findPeriod  = 100 * time.Millisecond
	findTimeout = 5 * time.Second
	// maxSearches bounds the kills whose container is searched for; further ones are reported without.
	maxSearches = 10
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
	searches *semaphore.Weighted

	mu       sync.Mutex // guards limiters
	limiters map[types.UID]*rate.Limiter
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
	return &Watcher{cfg: cfg, searches: semaphore.NewWeighted(maxSearches), limiters: map[types.UID]*rate.Limiter{}}, nil
}

// Run reports kills until ctx is done. A log that cannot be opened or read is opened again later.
func (w *Watcher) Run(ctx context.Context) error {
	var searches sync.WaitGroup
	defer searches.Wait()
	failed := false
	for {
		err := w.watch(ctx, &searches)
		if ctx.Err() != nil {
			return nil // a clean stop
		}
		if !failed {
			w.cfg.Logger.Warn("kernel log unavailable, kills for want of memory are not reported", logattr.Err(err))
		}
		failed = true
		if sleep.For(ctx, retryPeriod) != nil {
			return nil
		}
	}
}

func (w *Watcher) watch(ctx context.Context, searches *sync.WaitGroup) error {
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
		kill, ok := Parse(string(record[:n]))
		if !ok {
			continue
		}
		at := time.Now()
		w.reportNode(kill, at)
		pod, container := w.find(ctx, kill.Cgroup)
		if pod != nil || !mayBeContainer(kill.Cgroup) || !w.searches.TryAcquire(1) {
			w.report(kill, pod, container, at)
			continue
		}
		searches.Go(func() {
			defer w.searches.Release(1)
			pod, container := w.search(ctx, kill.Cgroup)
			w.report(kill, pod, container, at)
		})
	}
}

// search is find for a container that may not be known yet. It blocks until it is, or for findTimeout.
func (w *Watcher) search(ctx context.Context, cgroup string) (pod *corev1.Pod, container string) {
	for end := time.Now().Add(findTimeout); pod == nil && time.Now().Before(end) && sleep.For(ctx, findPeriod) == nil; {
		pod, container = w.find(ctx, cgroup)
	}
	return pod, container
}

// reportNode records the event of the node, if that ran out of memory.
func (w *Watcher) reportNode(k Kill, now time.Time) {
	if k.Global && w.allow(nodeKey, now) {
		message := fmt.Sprintf("System OOM encountered, victim process: %s, pid: %d", k.Process, k.PID)
		w.record(podspec.NewNodeEvent(w.cfg.NodeName, corev1.EventTypeWarning, ReasonSystem, message, now))
	}
}

// report logs a kill and records the event of the container. pod is nil if the process was of none.
func (w *Watcher) report(k Kill, pod *corev1.Pod, container string, now time.Time) {
	attrs := []any{slog.String("process", k.Process), slog.Int("pid", k.PID), slog.Bool("global", k.Global), slog.String("cgroup", k.Cgroup)}
	var uid types.UID
	if pod != nil {
		uid = pod.UID
		attrs = append(attrs, logattr.Pod(pod), logattr.PodUID(uid), slog.String("containerName", container))
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
	w.mu.Lock()
	defer w.mu.Unlock()
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

// mayBeContainer reports whether a cgroup can be that of a container, or below one: a runtime's ids are long.
func mayBeContainer(cgroup string) bool {
	const idLength = 64
	for name := range strings.SplitSeq(cgroup, "/") {
		if len(containerID(name)) == idLength {
			return true
		}
	}
	return false
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
