package podworkers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// DrainConfig says which pods DrainPods drains. Workers and Runtime are required.
type DrainConfig struct {
	Workers DrainWorkers
	Runtime DrainRuntime
	// Pods returns the desired and the restored pods, the latter first. Default: none.
	Pods func() []*corev1.Pod
	// Sources are the names of the configured sources. Pods of others are not drained
	// unless Workers know them.
	Sources []string
	// Timeout bounds the drain. Default: 0, unbounded.
	Timeout time.Duration
}

// Check returns an error if Timeout is negative.
func (c DrainConfig) Check() error {
	if c.Timeout < 0 {
		return fmt.Errorf("podworkers: DrainConfig.Timeout: must not be negative: %v", c.Timeout)
	}
	return nil
}

// DrainWorkers are the workers of the pods that are drained. See Workers.
type DrainWorkers interface {
	IsKnown(uid types.UID) bool
	Update(u Update)
	Drain(ctx context.Context, k KillOptions) error
}

// DrainRuntime lists the pods in the runtime.
type DrainRuntime interface {
	Pods(ctx context.Context) ([]runtime.Pod, error)
}

// DrainPods terminates the containers of all pods that Workers know, and of the running
// pods of the sources that were not adopted yet. The pods stay desired: the next process
// starts them again. DrainPods blocks until they have finished, ctx is done or Timeout is over; its error
// names those that have not. The sync loop must have stopped, and Workers must run.
func DrainPods(ctx context.Context, cfg DrainConfig) error {
	if cfg.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, cfg.Timeout)
		defer cancel()
	}
	err := errors.Join(drainUnadopted(ctx, &cfg), cfg.Workers.Drain(ctx, KillOptions{Termination: runtime.Termination{Drained: true}}))
	if err != nil {
		return fmt.Errorf("drain pods: %w", err)
	}
	return nil
}

// Drainer drains pods when an agent stops.
type Drainer struct{ cfg DrainConfig }

// NewDrainer returns a Drainer. It does no I/O.
func NewDrainer(cfg DrainConfig) (*Drainer, error) {
	var errs []error
	if cfg.Workers == nil || cfg.Runtime == nil {
		errs = append(errs, errors.New("podworkers: DrainConfig.Workers and Runtime required"))
	}
	if err := errors.Join(append(errs, cfg.Check())...); err != nil {
		return nil, err
	}
	return &Drainer{cfg: cfg}, nil
}

// Run waits until ctx is done, and calls DrainPods then.
func (d *Drainer) Run(ctx context.Context) error {
	<-ctx.Done()
	return DrainPods(context.WithoutCancel(ctx), d.cfg)
}

// drainUnadopted passes the running pods that no worker knows to the workers, to be
// terminated.
func drainUnadopted(ctx context.Context, cfg *DrainConfig) error {
	pods, err := cfg.Runtime.Pods(ctx)
	if err != nil {
		return fmt.Errorf("list pods that are not adopted yet: %w", err)
	}
	specs := map[types.UID]*corev1.Pod{}
	if cfg.Pods != nil {
		for _, pod := range cfg.Pods() {
			specs[pod.UID] = pod
		}
	}
	for i := range pods {
		p := &pods[i]
		if p.IsEmpty() || !slices.Contains(cfg.Sources, p.Source()) || cfg.Workers.IsKnown(p.UID) {
			continue
		}
		if pod := specs[p.UID]; pod != nil {
			cfg.Workers.Update(Update{Type: PodCreate, Pod: pod, Kill: &KillOptions{Termination: runtime.Termination{Drained: true}}})
			continue
		}
		// Its spec is unknown: it can only be started again as a new pod.
		cfg.Workers.Update(Update{Orphan: p})
	}
	return nil
}
