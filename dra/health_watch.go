package dra

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	healthapi "k8s.io/kubelet/pkg/apis/dra-health/v1"
	healthalpha "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/text"
)

const (
	// minHealthBackOff is the wait after a stream has ended. It doubles with each that ends soon, up to maxHealthBackOff.
	minHealthBackOff, maxHealthBackOff = time.Second, 30 * time.Second
	// minHealthNotifyPeriod bounds how often a driver can cause syncs of a pod.
	minHealthNotifyPeriod = time.Second
)

// healthClient returns a client of the newest API of health that a driver serves, or nil.
func healthClient(conn grpc.ClientConnInterface, versions []string) healthapi.DRAResourceHealthClient {
	switch {
	case slices.Contains(versions, healthapi.DRAResourceHealthService):
		return healthapi.NewDRAResourceHealthClient(conn)
	case slices.Contains(versions, healthalpha.DRAResourceHealthService): // of a driver that is older than Kubernetes 1.37
		return healthapi.V1Alpha1ClientWrapper{Client: healthalpha.NewDRAResourceHealthClient(conn)}
	}
	return nil
}

// healthWatch keeps the health of the devices of a driver. Its goroutine alone changes it.
type healthWatch struct {
	d      *driver
	name   string // of the driver
	client healthapi.DRAResourceHealthClient
	log    *slog.Logger

	timer      *time.Timer // for what is next: a device that expires, or pods to notify
	affected   map[types.UID]bool
	notifiedAt time.Time
	truncated  bool // the current stream has had devices that were ignored
}

// startHealth starts the healthWatch of a driver. It ends with ctx, or is stopped by Deregister.
func (d *driver) startHealth(ctx context.Context, name string, client healthapi.DRAResourceHealthClient) {
	ctx, d.stopHealth = context.WithCancel(ctx)
	d.healthEnded = make(chan struct{})
	w := &healthWatch{d: d, name: name, client: client, log: d.m.cfg.Logger.With(slog.String("driver", name)), affected: map[types.UID]bool{}}
	go w.run(ctx)
}

// run watches the health until ctx is done, or the driver says that it has none.
func (w *healthWatch) run(ctx context.Context) {
	defer close(w.d.healthEnded)
	defer w.notify() // of changes that were to wait
	w.timer = time.NewTimer(maxHealthTimeout)
	defer w.timer.Stop()
	for backOff := minHealthBackOff; ; backOff = min(2*backOff, maxHealthBackOff) {
		startTime := time.Now()
		err := w.stream(ctx)
		if ctx.Err() != nil {
			return // what is known stays, as the agent may stop; Deregister forgets it
		}
		w.set(nil)
		w.notify()
		if status.Code(err) == codes.Unimplemented {
			w.log.Info("health of devices not implemented")
			return
		}
		if time.Since(startTime) >= maxHealthBackOff {
			backOff = minHealthBackOff
		}
		w.log.Warn("watch of the health of devices ended", slog.Duration("backOff", backOff), logattr.Err(text.Error(err)))
		w.timer.Reset(backOff)
		select {
		case <-w.timer.C:
		case <-ctx.Done():
			return
		}
	}
}

// stream handles the reports of one stream until it ends. While the driver cannot be reached, it waits.
func (w *healthWatch) stream(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := w.client.NodeWatchResources(ctx, &healthapi.NodeWatchResourcesRequest{}, grpc.WaitForReady(true))
	if err != nil {
		cancel()
		return err
	}
	reports, ended := make(chan []*healthapi.DeviceHealth), make(chan error, 1)
	var wg sync.WaitGroup
	defer func() { cancel(); wg.Wait() }()
	wg.Go(func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			select {
			case reports <- r.GetDevices():
			case <-ctx.Done():
				return
			}
		}
	})
	w.truncated = false
	for {
		w.schedule(time.Now())
		select {
		case list := <-reports:
			w.update(list)
		case <-w.timer.C:
			w.update(nil)
		case err := <-ended:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// update merges a report, which is nil if only time has passed, and notifies pods if that is due.
func (w *healthWatch) update(report []*healthapi.DeviceHealth) {
	now := time.Now()
	next, ignored := w.d.health.merge(report, now) // read without Manager.mu: no other goroutine writes it while this one runs
	w.set(next)
	if ignored > 0 && !w.truncated {
		w.truncated = true
		w.log.Warn("health of devices ignored", slog.Int("ignored", ignored), slog.Int("limit", maxHealthDevices))
	}
	if now.Sub(w.notifiedAt) >= minHealthNotifyPeriod {
		w.notify()
	}
}

// set replaces the table.
func (w *healthWatch) set(next healthTable) {
	maps.Copy(w.affected, w.d.m.changeHealth(w.name, func() { w.d.health = next }))
}

// notify has the pods synced whose devices have changed since the last time.
func (w *healthWatch) notify() {
	if len(w.affected) == 0 {
		return
	}
	w.notifiedAt = time.Now()
	w.d.m.notifyHealth(w.affected)
	clear(w.affected)
}

// schedule sets the timer.
func (w *healthWatch) schedule(now time.Time) {
	next := w.d.health.expiresAt()
	if at := w.notifiedAt.Add(minHealthNotifyPeriod); len(w.affected) > 0 && (next.IsZero() || at.Before(next)) {
		next = at
	}
	if next.IsZero() {
		w.timer.Stop()
		return
	}
	w.timer.Reset(next.Sub(now))
}
