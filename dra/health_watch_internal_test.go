package dra

import (
	"context"
	"errors"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	healthapi "k8s.io/kubelet/pkg/apis/dra-health/v1"

	"github.com/sublet-dev/agent/pluginregistry"
)

const gpuDriver = "gpu.vendor.example"

// fakeHealth is a driver that reports health. Each stream of it is sent to streams.
type fakeHealth struct{ streams chan *fakeStream }

func (f *fakeHealth) NodeWatchResources(ctx context.Context, _ *healthapi.NodeWatchResourcesRequest, opts ...grpc.CallOption) (healthapi.DRAResourceHealth_NodeWatchResourcesClient, error) {
	if !slices.Contains(opts, grpc.WaitForReady(true)) {
		return nil, errors.New("a driver that is away is called with a back-off that grows")
	}
	s := &fakeStream{ctx: ctx, reports: make(chan []*healthapi.DeviceHealth), end: make(chan error, 1)}
	select {
	case f.streams <- s:
		return s, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type fakeStream struct {
	grpc.ClientStream

	ctx     context.Context //nolint:containedctx // of the call
	reports chan []*healthapi.DeviceHealth
	end     chan error
}

func (s *fakeStream) Recv() (*healthapi.NodeWatchResourcesResponse, error) {
	select {
	case list := <-s.reports:
		return &healthapi.NodeWatchResourcesResponse{Devices: list}, nil
	case err := <-s.end:
		return nil, err
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
}

// report sends a report and waits until it was handled.
func (s *fakeStream) report(list ...*healthapi.DeviceHealth) {
	s.reports <- list
	synctest.Wait()
}

func healthOf(name string, health healthapi.HealthStatus, seconds int64) *healthapi.DeviceHealth {
	return &healthapi.DeviceHealth{Device: &healthapi.DeviceIdentifier{PoolName: "node", DeviceName: name}, Health: health, HealthCheckTimeoutSeconds: seconds}
}

func healthy(name string) *healthapi.DeviceHealth {
	return healthOf(name, healthapi.HealthStatus_HEALTHY, 0)
}

func unhealthy(name string) *healthapi.DeviceHealth {
	return healthOf(name, healthapi.HealthStatus_UNHEALTHY, 0)
}

// healthNode has a Manager with pods p0 and p1, whose claims have the devices gpu0 and gpu1.
type healthNode struct {
	t *testing.T
	m *Manager

	mu       sync.Mutex
	notified []types.UID
}

func newHealthNode(t *testing.T) *healthNode {
	t.Helper()
	m, err := New(Config{Claims: noClaims{}, StateFile: filepath.Join(t.TempDir(), "claims.json")})
	require.NoError(t, err)
	require.NoError(t, m.load())
	n := &healthNode{t: t, m: m}
	for _, i := range []string{"0", "1"} {
		m.claims[types.UID(i)] = &claimState{
			Namespace: "lab", Name: "c" + i, UID: types.UID(i), Pods: []types.UID{types.UID("p" + i)},
			Drivers: map[string]*[]device{gpuDriver: {{Pool: "node", Name: "gpu" + i}}, "other.vendor.example": nil},
		}
	}
	m.NotifyHealth(func(types.UID) { panic("listener") })
	m.NotifyHealth(func(uid types.UID) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.notified = append(n.notified, uid)
	})
	return n
}

// start registers a driver that reports health.
func (n *healthNode) start(ctx context.Context, socket string) (*fakeHealth, *driver) {
	n.t.Helper()
	conn, err := grpc.NewClient("passthrough:///", grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(n.t, err)
	f, d := &fakeHealth{make(chan *fakeStream)}, &driver{m: n.m, socket: socket, conn: conn}
	n.m.mu.Lock()
	n.m.drivers[gpuDriver] = append(n.m.drivers[gpuDriver], d)
	d.startHealth(ctx, gpuDriver, f)
	n.m.mu.Unlock()
	return f, d
}

func (n *healthNode) stop(d *driver) {
	n.m.Deregister(n.t.Context(), pluginregistry.Plugin{Name: gpuDriver, Socket: d.socket})
}

// require requires the health of gpu0 and gpu1, and which pods were notified since the last time.
func (n *healthNode) require(gpu0, gpu1 corev1.ResourceHealthStatus, notified ...types.UID) {
	n.t.Helper()
	synctest.Wait()
	n.m.mu.Lock()
	var got []corev1.ResourceHealthStatus
	for _, name := range []string{"gpu0", "gpu1"} {
		c := n.m.condition(gpuDriver, deviceID{"node", name})
		if c.message != "" {
			c.status += corev1.ResourceHealthStatus(": " + c.message)
		}
		got = append(got, c.status)
	}
	n.m.mu.Unlock()
	require.Equal(n.t, []corev1.ResourceHealthStatus{gpu0, gpu1}, got)
	require.Equal(n.t, notified, n.taken())
}

// taken returns which pods were notified since the last time.
func (n *healthNode) taken() []types.UID {
	n.mu.Lock()
	defer n.mu.Unlock()
	notified := n.notified
	n.notified = nil
	return notified
}

const (
	isHealthy   = corev1.ResourceHealthStatusHealthy
	isUnhealthy = corev1.ResourceHealthStatusUnhealthy
	isUnknown   = corev1.ResourceHealthStatusUnknown
)

// Only pods whose devices have changed are notified, and of what is reported alone.
func TestManager_NotifiesHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newHealthNode(t)
		f, d := n.start(t.Context(), "a")
		s := <-f.streams
		n.require(isUnknown, isUnknown)
		s.report(healthy("gpu0"), healthy("gpu1"), healthy("gpu2"))
		n.require(isHealthy, isHealthy, "p0", "p1")
		time.Sleep(time.Second)
		broken := unhealthy("gpu1")
		broken.Message, broken.LastUpdatedTime = "too hot", 1 // the clock of the driver does not count
		s.report(healthOf("gpu0", healthapi.HealthStatus_HEALTHY, 60), broken, unhealthy("gpu2"))
		n.require(isHealthy, isUnhealthy+": too hot", "p1")
		time.Sleep(time.Second)
		broken.Message = "on fire"
		s.report(healthy("gpu0"), broken)
		n.require(isHealthy, isUnhealthy+": on fire", "p1")
		time.Sleep(time.Second)
		s.report(healthOf("gpu0", healthapi.HealthStatus_UNKNOWN, 0), healthOf("gpu1", 7, 0))
		n.require(isUnknown, isUnknown, "p0", "p1")
		time.Sleep(time.Second)
		s.report(healthy("gpu0"), healthy("gpu0"))
		n.require(isHealthy, isUnknown, "p0")
		n.stop(d)
		n.require(isUnknown, isUnknown, "p0")
	})
}

// The health of a device is unknown once its timeout has passed since the last report with it, whether others come or not.
func TestManager_ForgetsHealthAfterItsTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newHealthNode(t)
		f, d := n.start(t.Context(), "a")
		defer n.stop(d)
		s := <-f.streams
		short := healthOf("gpu0", healthapi.HealthStatus_UNHEALTHY, 5)
		s.report(short, healthOf("gpu1", healthapi.HealthStatus_HEALTHY, -1))
		n.require(isUnhealthy, isHealthy, "p0", "p1")
		time.Sleep(4 * time.Second)
		s.report(short)
		time.Sleep(5*time.Second - 1)
		n.require(isUnhealthy, isHealthy)
		time.Sleep(time.Nanosecond)
		n.require(isUnknown, isHealthy, "p0")
		time.Sleep(20 * time.Second)
		s.report(short)
		n.require(isUnhealthy, isHealthy, "p0")
		time.Sleep(time.Second - 1)
		n.require(isUnhealthy, isHealthy)
		time.Sleep(time.Nanosecond) // 30 seconds after the first report
		n.require(isUnhealthy, isUnknown, "p1")
		time.Sleep(4 * time.Second)
		n.require(isUnknown, isUnknown, "p0")
		time.Sleep(time.Second)
		s.report(healthOf("gpu0", healthapi.HealthStatus_HEALTHY, 1<<62))
		n.require(isHealthy, isUnknown, "p0")
		time.Sleep(maxHealthTimeout - 1)
		n.require(isHealthy, isUnknown)
		time.Sleep(time.Nanosecond)
		n.require(isUnknown, isUnknown, "p0")
	})
}

// A driver whose devices change all the time has their pods synced once a second.
func TestManager_BoundsNotificationsOfHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newHealthNode(t)
		f, d := n.start(t.Context(), "a")
		s := <-f.streams
		s.report(healthy("gpu0"))
		n.require(isHealthy, isUnknown, "p0")
		for range 100 {
			time.Sleep(time.Millisecond)
			s.report(unhealthy("gpu0"), unhealthy("gpu1"))
			s.report(healthy("gpu0"), unhealthy("gpu1"))
		}
		n.require(isHealthy, isUnhealthy)
		time.Sleep(900*time.Millisecond - 1)
		n.require(isHealthy, isUnhealthy)
		time.Sleep(time.Nanosecond)
		n.require(isHealthy, isUnhealthy, "p0", "p1")
		s.report(unhealthy("gpu0"))
		n.require(isUnhealthy, isUnhealthy)
		n.m.mu.Lock()
		n.m.claims["0"].Drivers[gpuDriver] = nil // it is being released, and what was to be notified still is
		n.m.mu.Unlock()
		n.stop(d)
		n.require(isUnknown, isUnknown, "p1", "p0")
	})
}

// While a driver reports nothing, the health of its devices is unknown. A stream that ends is opened again, after a wait that
// doubles if this happens soon.
func TestManager_WatchesHealthWithBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newHealthNode(t)
		f, d := n.start(t.Context(), "a")
		defer n.stop(d)
		end := func(s *fakeStream, err error) (next *fakeStream, waited time.Duration) {
			start := time.Now()
			s.end <- err
			return <-f.streams, time.Since(start)
		}
		s := <-f.streams
		s.report(healthy("gpu0"))
		n.require(isHealthy, isUnknown, "p0")
		s.end <- io.EOF
		n.require(isUnknown, isUnknown, "p0")
		s = <-f.streams
		var waits []time.Duration
		for range 6 {
			s.report(healthy("gpu0"))
			var waited time.Duration
			s, waited = end(s, errors.New("broken"))
			waits = append(waits, waited/time.Second)
		}
		require.Equal(t, []time.Duration{2, 4, 8, 16, 30, 30}, waits)
		time.Sleep(30 * time.Second)
		s, waited := end(s, status.Error(codes.Unavailable, "killed"))
		require.Equal(t, time.Second, waited)
		s.report(healthy("gpu0"))
		s.end <- status.Error(codes.Unimplemented, "no health")
		<-d.healthEnded
		n.taken()
		n.require(isUnknown, isUnknown)
	})
}

// During an upgrade there are two drivers of one name. What the new one says counts, as far as it knows, and the end of the old one
// changes nothing.
func TestManager_KeepsHealthDuringUpgrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newHealthNode(t)
		f, first := n.start(t.Context(), "a")
		s := <-f.streams
		s.report(healthy("gpu0"), healthy("gpu1"))
		n.require(isHealthy, isHealthy, "p0", "p1")
		f, next := n.start(t.Context(), "b")
		s = <-f.streams
		n.require(isHealthy, isHealthy)
		s.report(unhealthy("gpu0"))
		n.require(isUnhealthy, isHealthy, "p0")
		n.stop(first)
		n.require(isUnhealthy, isUnknown, "p1")
		n.stop(next)
		n.require(isUnknown, isUnknown, "p0")
		require.Empty(t, slices.Collect(maps.Keys(n.m.drivers)))
	})
}

// An agent that stops does not deregister its drivers. It watches their health no longer, and changes no status.
func TestManager_WatchesHealthWhileRegistered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newHealthNode(t)
		ctx, cancel := context.WithCancel(t.Context())
		f, d := n.start(ctx, "a")
		s := <-f.streams
		s.report(healthy("gpu0"))
		cancel()
		<-d.healthEnded
		require.ErrorIs(t, s.ctx.Err(), context.Canceled)
		n.require(isHealthy, isUnknown, "p0")
		n.stop(d)
		n.require(isUnknown, isUnknown, "p0")
	})
}
