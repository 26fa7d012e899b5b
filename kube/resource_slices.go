package kube

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/notify"
)

// absentDriverDelay is how long a driver may be away, as with a kubelet: its plugin may be restarted.
const absentDriverDelay = 30 * time.Second

// sliceRetry is the wait after ResourceSlices could not be removed.
const sliceRetry = 10 * time.Second

// ResourceSlices removes the ResourceSlices that DRA drivers have published for this node, after
// a driver was away for 30 seconds, or has not come back 30 seconds after the start of the
// agent: no pod is to be scheduled for devices that nothing prepares. A driver that returns
// publishes them again. It implements dra.Node.
type ResourceSlices struct {
	k       *Kube
	changed chan struct{}

	mu      sync.Mutex
	present []string
	absent  map[string]time.Time // drivers that went away, and when their slices are removed
}

// ResourceSlices returns what removes the ResourceSlices of drivers that are gone. There must be one for
// each node.
func (k *Kube) ResourceSlices() *ResourceSlices {
	return &ResourceSlices{k: k, changed: make(chan struct{}, 1), absent: map[string]time.Time{}}
}

// SetDrivers implements dra.Node.
func (r *ResourceSlices) SetDrivers(names []string) {
	r.mu.Lock()
	for _, name := range r.present {
		if _, ok := r.absent[name]; !ok && !slices.Contains(names, name) {
			r.absent[name] = time.Now().Add(absentDriverDelay)
		}
	}
	for _, name := range names {
		delete(r.absent, name)
	}
	r.present = slices.Clone(names)
	r.mu.Unlock()
	notify.Send(r.changed)
}

// allDrivers stands for the drivers of a previous process, whose names are not known yet.
const allDrivers = ""

// Run removes ResourceSlices until ctx is done. It returns nil then.
func (r *ResourceSlices) Run(ctx context.Context) error {
	r.mu.Lock()
	r.absent[allDrivers] = time.Now().Add(absentDriverDelay)
	r.mu.Unlock()
	timer := time.NewTimer(absentDriverDelay)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.changed:
		case <-timer.C:
		}
		for _, name := range r.due() {
			r.settle(name, r.remove(ctx, name))
		}
		if next := r.next(); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
}

// due returns the drivers that were away for long enough.
func (r *ResourceSlices) due() (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for name, at := range r.absent {
		if !at.After(now) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// next returns when the next ResourceSlices are to be removed, zero if none are.
func (r *ResourceSlices) next() (next time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, at := range r.absent {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next
}

// settle notes that ResourceSlices were removed, or that it has to be tried again.
func (r *ResourceSlices) settle(name string, err error) {
	r.mu.Lock()
	_, isAbsent := r.absent[name] // else it came back meanwhile, and publishes again
	switch {
	case isAbsent && err != nil:
		r.absent[name] = time.Now().Add(sliceRetry)
	case isAbsent:
		delete(r.absent, name)
	}
	r.mu.Unlock()
	switch {
	case err != nil && !errors.Is(err, context.Canceled):
		r.k.cfg.Logger.Warn("resource slices not removed", slog.String("driver", name), logattr.Err(err))
	case err == nil && name != allDrivers:
		r.k.cfg.Logger.Info("resource slices removed", slog.String("driver", name))
	}
}

// remove removes what a driver has published for this node, or finds drivers that have and are
// not there.
func (r *ResourceSlices) remove(ctx context.Context, driver string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	client, selected := r.k.cfg.Client.ResourceV1().ResourceSlices(), metav1.ListOptions{FieldSelector: r.selector(driver)}
	if driver != allDrivers {
		return client.DeleteCollection(ctx, metav1.DeleteOptions{}, selected)
	}
	list, err := client.List(ctx, selected)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range list.Items {
		name := list.Items[i].Spec.Driver
		if _, ok := r.absent[name]; !ok && name != "" && !slices.Contains(r.present, name) {
			r.absent[name] = time.Now()
		}
	}
	return nil
}

// selector selects the ResourceSlices of this node, or those of one driver: a node may touch no others.
func (r *ResourceSlices) selector(driver string) string {
	set := fields.Set{resourcev1.ResourceSliceSelectorNodeName: r.k.cfg.NodeName}
	if driver != allDrivers {
		set[resourcev1.ResourceSliceSelectorDriver] = driver
	}
	return set.String()
}
