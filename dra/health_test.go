package dra_test

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	healthapi "k8s.io/kubelet/pkg/apis/dra-health/v1"
	healthalpha "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	api "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/sublet-dev/agent/dra"
	"github.com/sublet-dev/agent/pluginregistry"
	"github.com/sublet-dev/agent/podsync"
)

var _ podsync.HealthReporter = (*dra.Manager)(nil)

// healthDriver is a driver that reports health: each stream sends what reports has, and is over when its context is.
type healthDriver struct {
	healthapi.UnimplementedDRAResourceHealthServer

	opened, ended chan struct{}
	reports       chan *healthapi.NodeWatchResourcesResponse
}

func newHealthDriver() *healthDriver {
	return &healthDriver{opened: make(chan struct{}, 1), ended: make(chan struct{}, 1), reports: make(chan *healthapi.NodeWatchResourcesResponse)}
}

func (d *healthDriver) NodeWatchResources(_ *healthapi.NodeWatchResourcesRequest, s healthapi.DRAResourceHealth_NodeWatchResourcesServer) error {
	d.opened <- struct{}{}
	defer func() { d.ended <- struct{}{} }()
	for {
		select {
		case r := <-d.reports:
			if err := s.Send(r); err != nil {
				return err
			}
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
}

func (d *healthDriver) report(device string, health healthapi.HealthStatus, message string) {
	d.reports <- &healthapi.NodeWatchResourcesResponse{Devices: []*healthapi.DeviceHealth{
		{Device: &healthapi.DeviceIdentifier{PoolName: "node", DeviceName: device}, Health: health, HealthCheckTimeoutSeconds: 1e6, Message: message},
	}}
}

// serveHealth serves a driver with both APIs of health, and has it register with these.
func serveHealth(t *testing.T, d *healthDriver, versions ...string) pluginregistry.Plugin {
	t.Helper()
	p := serveAs(t, func(s *grpc.Server) {
		api.RegisterDRAPluginServer(s, new(fakeDriver))
		healthapi.RegisterDRAResourceHealthServer(s, d)
		healthalpha.RegisterDRAResourceHealthServer(s, healthapi.V1ServerWrapper{Server: d})
	})
	p.Versions = append(p.Versions, versions...)
	return p
}

// notifications returns a channel of the pods that m notifies.
func notifications(m *dra.Manager) <-chan types.UID {
	notified := make(chan types.UID, 10)
	m.NotifyHealth(func(uid types.UID) { notified <- uid })
	return notified
}

func health(id string, status corev1.ResourceHealthStatus, message string) corev1.ResourceHealth {
	h := corev1.ResourceHealth{ResourceID: corev1.ResourceID(id), Health: status}
	if message != "" {
		h.Message = &message
	}
	return h
}

const (
	isHealthy   = corev1.ResourceHealthStatusHealthy
	isUnhealthy = corev1.ResourceHealthStatusUnhealthy
	isUnknown   = corev1.ResourceHealthStatusUnknown
)

// The health that a driver reports is in the status of the pods that have its devices, and is unknown before, and when the driver
// is deregistered, which ends its stream.
func TestManager_ReportsHealth(t *testing.T) {
	for _, versions := range [][]string{{"v1alpha1.DRAResourceHealth", "v1.DRAResourceHealth"}, {"v1alpha1.DRAResourceHealth"}, {"v1.DRAResourceHealth"}} {
		file := stateFile(t)
		m := newManager(t, file, fakeClaims{"a": claim("a", gpuDriver)})
		notified, d := notifications(m), newHealthDriver()
		p := serveHealth(t, d, versions...)
		require.NoError(t, m.Register(t.Context(), p))
		<-d.opened
		one := pod("p", "a")
		reported := func(m *dra.Manager) []corev1.ResourceStatus { return m.ResourceHealth(one, &one.Spec.Containers[0]) }
		require.Empty(t, reported(m), "nothing is prepared")
		inject(t, m, one, false)
		has := func(status corev1.ResourceHealthStatus, message string) []corev1.ResourceStatus {
			return []corev1.ResourceStatus{{Name: "claim:a", Resources: []corev1.ResourceHealth{
				health("vendor.example/gpu=a", status, message), health("vendor.example/link=0", isUnknown, ""),
			}}}
		}
		require.Equal(t, has(isUnknown, ""), reported(m))
		d.report("gpu0", healthapi.HealthStatus_UNHEALTHY, "too hot")
		require.Equal(t, one.UID, <-notified)
		require.Equal(t, has(isUnhealthy, "too hot"), reported(m))
		require.Equal(t, has(isUnknown, ""), reported(newManager(t, file, fakeClaims{})), "after a restart, until the driver reports")
		m.Deregister(t.Context(), p)
		<-d.ended
		require.Equal(t, one.UID, <-notified)
		require.Equal(t, has(isUnknown, ""), reported(m))
		require.Empty(t, notified)
	}
}

// A driver with the API of another version, or that does not implement it, has devices whose health is unknown.
func TestManager_ReportsUnknownHealth(t *testing.T) {
	for _, versions := range [][]string{nil, {"v2.DRAResourceHealth"}, {"v1.DRAResourceHealth"}} {
		m := newManager(t, stateFile(t), fakeClaims{"a": claim("a", gpuDriver)})
		p := serve(t, new(fakeDriver))
		p.Versions = append(p.Versions, versions...)
		register(t, m, p)
		one := pod("p", "a")
		inject(t, m, one, false)
		require.Equal(t, isUnknown, m.ResourceHealth(one, &one.Spec.Containers[0])[0].Resources[0].Health)
	}
}

// A stream of a driver ends with the registration, as when the agent stops.
func TestManager_EndsHealthWithRegistration(t *testing.T) {
	m, d := newManager(t, stateFile(t), fakeClaims{}), newHealthDriver()
	p := serveHealth(t, d, "v1.DRAResourceHealth")
	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, m.Register(ctx, p))
	<-d.opened
	cancel()
	<-d.ended
	m.Deregister(t.Context(), p)
}

// A driver that was killed and is started again reports to the agent that it registered with. One that does not serve yet, or no
// longer, is deregistered without delay.
func TestManager_WatchesHealthOfRestartedDriver(t *testing.T) {
	m := newManager(t, stateFile(t), fakeClaims{"a": claim("a", gpuDriver)})
	notified := notifications(m)
	register(t, m, serve(t, new(fakeDriver)))
	one := pod("p", "a")
	inject(t, m, one, false)
	p := pluginregistry.Plugin{Socket: "/reg", Name: gpuDriver, Endpoint: filepath.Join(t.TempDir(), "s"), Versions: []string{"v1.DRAPlugin", "v1.DRAResourceHealth"}}
	require.NoError(t, m.Register(t.Context(), p))
	for range 2 {
		d, s := newHealthDriver(), grpc.NewServer()
		healthapi.RegisterDRAResourceHealthServer(s, d)
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", p.Endpoint)
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() { done <- s.Serve(l) }()
		<-d.opened
		d.report("gpu0", healthapi.HealthStatus_HEALTHY, "")
		<-notified
		require.Equal(t, isHealthy, m.ResourceHealth(one, &one.Spec.Containers[0])[0].Resources[0].Health)
		s.Stop()
		require.NoError(t, <-done)
		<-notified
		require.Equal(t, isUnknown, m.ResourceHealth(one, &one.Spec.Containers[0])[0].Resources[0].Health)
	}
	m.Deregister(t.Context(), p)
}
