package nodeshutdown

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// Config configures a Manager. Groups and Dial are required.
type Config struct {
	// Groups are the periods of pods by priority. See GracePeriods for those of a kubelet with two periods.
	Groups []Group
	// Dial connects to the service that shuts the machine down. It is called again, with back-off, when the
	// connection fails. See package logind.
	Dial func(ctx context.Context) (Login, error)
	// StateFile records when the last shutdown began and ended, unless it was cancelled. Its directory must exist when Run is called.
	// Default: none.
	StateFile string
	// NodeName is that of the events. Default: no events about the node.
	NodeName string
	Logger   *slog.Logger // default: nothing is logged
}

// Login is a connection to the service that shuts the machine down.
type Login interface {
	// Inhibit delays the next shutdown until the result is closed, for at most period: the service's own limit is raised
	// if it is lower. If that is not possible it returns an error with the lock, which delays as long as the limit allows.
	// It fails without one while a shutdown is in progress.
	Inhibit(ctx context.Context, period time.Duration) (io.Closer, error)
	// Shutdowns receives whether a shutdown is in progress, and then each change. It is closed when the connection fails.
	Shutdowns() <-chan bool
	// Close closes the connection. Locks of Inhibit last until they are closed themselves.
	Close() error
}

// Pods are the pods of the node. A podworkers.Evictor is one.
type Pods interface {
	// ActivePods returns the pods that may have containers. The pods are read-only.
	ActivePods() []*corev1.Pod
	// Evict terminates the pod and waits until it has finished or ctx is done.
	Evict(ctx context.Context, pod *corev1.Pod, t runtime.Termination) error
}

// Recorder records Kubernetes events. Record must not block.
type Recorder interface {
	Record(event *corev1.Event)
}

// Group is the time that pods from a priority on have to terminate, up to the next group's priority. Pods below
// the lowest group belong to it too.
type Group struct {
	Priority int32
	Period   time.Duration // whole seconds; also the longest grace period of its pods, of which the least is a second
}

// Check returns all that is wrong with the configuration, joined.
func (c Config) Check() error {
	var errs []error
	if c.Dial == nil {
		errs = append(errs, errors.New("nodeshutdown: Config.Dial required"))
	}
	errs = append(errs, checkSomeGroups(c.Groups))
	return errors.Join(errs...)
}

func checkSomeGroups(groups []Group) error {
	if len(groups) == 0 {
		return errors.New("nodeshutdown: Config.Groups required")
	}
	return CheckGroups(groups)
}

// CheckGroups returns an error for each priority that occurs twice and each period that is negative or not in seconds.
func CheckGroups(groups []Group) error {
	var errs []error
	known := map[int32]bool{}
	for _, g := range groups {
		if known[g.Priority] {
			errs = append(errs, fmt.Errorf("nodeshutdown: priority %d has two periods", g.Priority))
		}
		known[g.Priority] = true
		if g.Period < 0 || g.Period%time.Second != 0 {
			errs = append(errs, fmt.Errorf("nodeshutdown: period %v of priority %d must be in whole seconds from 0", g.Period, g.Priority))
		}
	}
	return errors.Join(errs...)
}
