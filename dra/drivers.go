package dra

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/dra/v1"
	apibeta "k8s.io/kubelet/pkg/apis/dra/v1beta1"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/internal/text"
	"github.com/sublet-dev/agent/pluginregistry"
)

// maxMessageBytes bounds a message of a driver.
const maxMessageBytes = 4 << 20

// maxReconnectDelay bounds the time until a driver that was started again is noticed.
const maxReconnectDelay = 3 * time.Second

// driver is a registered driver. During an upgrade there may be two of one name.
type driver struct {
	m         *Manager
	socket    string // of the registration
	conn      *grpc.ClientConn
	client    api.DRAPluginClient
	connected bool          // guarded by Manager.mu; only kept for Config.Node
	watched   chan struct{} // closed when watch has ended; nil without Config.Node

	health      healthTable        // guarded by Manager.mu
	stopHealth  context.CancelFunc // ends its healthWatch; nil without one
	healthEnded chan struct{}      // closed when the healthWatch has ended
}

// watch keeps whether the driver can be reached, until ctx is done or its connection is closed: a
// driver that was killed leaves its sockets, so that only the connection says that it is gone.
func (d *driver) watch(ctx context.Context) {
	defer close(d.watched)
	state := connectivity.Idle
	for state != connectivity.Shutdown {
		if state == connectivity.Idle {
			d.conn.Connect() // also after a connection has ended: the driver may be started again
		}
		// Bounded, as a connection may have begun and ended before the wait begins.
		bounded, cancel := context.WithTimeout(ctx, maxReconnectDelay)
		d.conn.WaitForStateChange(bounded, state)
		cancel()
		if ctx.Err() != nil {
			return // the registration has ended, or the agent
		}
		state = d.conn.GetState()
		d.m.mu.Lock()
		changed := d.connected != (state == connectivity.Ready)
		d.connected = state == connectivity.Ready
		d.m.mu.Unlock()
		if changed {
			d.m.driversChanged()
		}
	}
}

// driversChanged tells the cluster which drivers there are.
func (m *Manager) driversChanged() {
	if m.cfg.Node == nil {
		return
	}
	m.notifying.Lock() // the last call has the last state
	defer m.notifying.Unlock()
	m.mu.Lock()
	var names []string
	for name, list := range m.drivers {
		if slices.ContainsFunc(list, func(d *driver) bool { return d.connected }) {
			names = append(names, name)
		}
	}
	m.mu.Unlock()
	slices.Sort(names)
	safe.Do(m.cfg.Logger, "set drivers", func() { m.cfg.Node.SetDrivers(names) })
}

var _ pluginregistry.Handler = (*Manager)(nil)

// Register implements pluginregistry.Handler for plugins of the type DRAPlugin.
func (m *Manager) Register(ctx context.Context, p pluginregistry.Plugin) error {
	isBeta := !slices.Contains(p.Versions, api.DRAPluginService)
	if isBeta && !slices.Contains(p.Versions, apibeta.DRAPluginService) {
		return fmt.Errorf("dra: driver %s supports %v, must support %s or %s", p.Name, p.Versions, api.DRAPluginService, apibeta.DRAPluginService)
	}
	if !filepath.IsAbs(p.Endpoint) {
		return fmt.Errorf("dra: driver %s: endpoint %q must be an absolute path", p.Name, p.Endpoint)
	}
	opts := []grpc.DialOption{
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes)),
		grpc.WithIdleTimeout(0), // a driver without calls is connected all the same
		pluginregistry.WithObserver(p.Name, m.cfg.Hooks.RPCEnded),
	}
	hasHealth := healthClient(nil, p.Versions) != nil
	if m.cfg.Node != nil || hasHealth {
		opts = append(opts, pluginregistry.WithBackOff(maxReconnectDelay, maxReconnectDelay))
	}
	conn, err := pluginregistry.Connect(p.Endpoint, opts...)
	if err != nil {
		return fmt.Errorf("dra: driver %s: %w", p.Name, err)
	}
	d := &driver{m: m, socket: p.Socket, conn: conn, client: api.NewDRAPluginClient(conn)}
	if isBeta { // of a driver that is older than Kubernetes 1.34
		d.client = apibeta.V1Beta1ClientWrapper{DRAPluginClient: apibeta.NewDRAPluginClient(conn)}
	}
	conn.Connect() // also without calls, for preferred
	m.mu.Lock()
	m.drivers[p.Name] = append(m.drivers[p.Name], d)
	if m.cfg.Node != nil {
		d.watched = make(chan struct{})
		go d.watch(ctx)
	}
	if hasHealth {
		d.startHealth(ctx, p.Name, healthClient(conn, p.Versions))
	}
	m.mu.Unlock()
	m.cfg.Logger.Info("dra driver registered", slog.String("driver", p.Name), slog.String("endpoint", p.Endpoint))
	return nil
}

// Deregister implements pluginregistry.Handler.
func (m *Manager) Deregister(_ context.Context, p pluginregistry.Plugin) {
	var removed []*driver
	affected := m.changeHealth(p.Name, func() {
		m.drivers[p.Name] = slices.DeleteFunc(m.drivers[p.Name], func(d *driver) bool {
			if d.socket == p.Socket {
				removed = append(removed, d)
			}
			return d.socket == p.Socket
		})
		if len(m.drivers[p.Name]) == 0 {
			delete(m.drivers, p.Name)
		}
	})
	m.driversChanged()
	m.notifyHealth(affected)
	for _, d := range removed {
		if d.stopHealth != nil {
			d.stopHealth()
			<-d.healthEnded
		}
		if err := d.conn.Close(); err != nil {
			m.cfg.Logger.Debug("close failed", logattr.Err(err))
		}
		if d.watched != nil {
			<-d.watched
		}
	}
	m.cfg.Logger.Info("dra driver deregistered", slog.String("driver", p.Name))
}

// preferred returns the driver of a list that registered last, of those that can be reached if there are any: during
// an upgrade the new one may end before the old one. It returns nil for an empty list. Manager.mu is locked.
func preferred(list []*driver) *driver {
	for _, d := range slices.Backward(list) {
		if state := d.conn.GetState(); state == connectivity.Ready || state == connectivity.Connecting {
			return d
		}
	}
	if len(list) == 0 {
		return nil
	}
	return list[len(list)-1]
}

// call calls the preferred driver of that name. The error names the driver.
func (m *Manager) call(ctx context.Context, name, method string, claim *claimState, f func(context.Context, api.DRAPluginClient) error) error {
	m.mu.Lock()
	d := preferred(m.drivers[name]) // here, as Deregister changes the list in place
	m.mu.Unlock()
	if d == nil {
		return noDriver(name)
	}
	start := time.Now()
	bounded, cancel := context.WithTimeout(ctx, m.cfg.CallTimeout)
	defer cancel()
	err := f(bounded, d.client)
	switch {
	case err != nil && ctx.Err() == nil && (errors.Is(bounded.Err(), context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded):
		err = fmt.Errorf("driver %s: %s: no answer within %v", name, method, m.cfg.CallTimeout)
	case err != nil:
		err = fmt.Errorf("driver %s: %s: %w", name, method, text.Error(err))
	}
	if m.cfg.Hooks.Called != nil {
		m.cfg.Hooks.Called(Call{name, method, claim.Namespace, claim.Name, time.Since(start), err})
	}
	return err
}

func noDriver(name string) error {
	return fmt.Errorf("%w: %s: is its plugin running?", ErrNoDriver, name)
}

// prepare has a driver prepare a claim.
func (m *Manager) prepare(ctx context.Context, name string, claim *claimState) ([]device, error) {
	var out []device
	err := m.call(ctx, name, "NodePrepareResources", claim, func(ctx context.Context, c api.DRAPluginClient) error {
		r, err := c.NodePrepareResources(ctx, &api.NodePrepareResourcesRequest{Claims: []*api.Claim{claim.api()}})
		if err != nil {
			return err
		}
		answer, ok := r.GetClaims()[string(claim.UID)]
		switch {
		case !ok || len(r.GetClaims()) != 1:
			return fmt.Errorf("it answered for %d claims, but not for the one that it was asked for", len(r.GetClaims()))
		case answer.GetError() != "":
			return errors.New(answer.GetError())
		}
		for _, d := range answer.GetDevices() {
			for _, id := range d.GetCdiDeviceIds() {
				if !isCDIName(id) {
					return fmt.Errorf("CDI device %q of its answer must have the form vendor.example/class=name", id)
				}
			}
			out = append(out, device{Requests: d.GetRequestNames(), Pool: d.GetPoolName(), Name: d.GetDeviceName(), CDIDevices: d.GetCdiDeviceIds(), ShareID: d.GetShareId()})
		}
		return nil
	})
	return out, err
}

// unprepare has a driver release a claim.
func (m *Manager) unprepare(ctx context.Context, name string, claim *claimState) error {
	return m.call(ctx, name, "NodeUnprepareResources", claim, func(ctx context.Context, c api.DRAPluginClient) error {
		r, err := c.NodeUnprepareResources(ctx, &api.NodeUnprepareResourcesRequest{Claims: []*api.Claim{claim.api()}})
		if err != nil {
			return err
		}
		answer, ok := r.GetClaims()[string(claim.UID)]
		if !ok {
			return errors.New("it did not answer for the claim that it was asked for")
		}
		if answer.GetError() != "" {
			return errors.New(answer.GetError())
		}
		return nil
	})
}
