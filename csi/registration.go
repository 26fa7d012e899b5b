package csi

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/notify"
	"github.com/sublet-dev/agent/internal/pathname"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/pluginregistry"
)

var _ pluginregistry.Handler = (*Manager)(nil)

// maxDriverName is the longest name that the specification allows.
const maxDriverName = 63

// Register implements pluginregistry.Handler. A driver that registers with the name of
// another one replaces it, as in a rolling update, until it is gone.
func (m *Manager) Register(ctx context.Context, p pluginregistry.Plugin) error {
	if !pathname.IsElement(p.Name) || len(p.Name) > maxDriverName || p.Name == blockDirName {
		return fmt.Errorf("invalid name %q of a CSI driver", p.Name)
	}
	if !slices.ContainsFunc(p.Versions, func(v string) bool { return strings.HasPrefix(strings.TrimPrefix(v, "v"), "1.") }) {
		return fmt.Errorf("CSI driver %s supports the versions %q, but none of 1.x", p.Name, p.Versions)
	}
	c, err := m.connect(ctx, p.Name, p.Endpoint)
	if err != nil {
		return err
	}
	c.socket = p.Socket
	if m.cfg.Node != nil && m.cfg.Drivers != nil {
		var watch context.Context
		watch, c.stop = context.WithCancel(ctx)
		c.watched = make(chan struct{})
		go m.watchLimit(watch, c)
	}
	replaced, err := m.add(c)
	if err != nil {
		m.close(c)
		return err
	}
	m.close(replaced)
	m.driversChanged()
	return nil
}

// Deregister implements pluginregistry.Handler.
func (m *Manager) Deregister(_ context.Context, p pluginregistry.Plugin) {
	m.mu.Lock()
	left, c := m.clients[p.Name].without(p.Socket)
	if m.clients[p.Name] = left; left == nil {
		delete(m.clients, p.Name)
	}
	m.mu.Unlock()
	m.close(c)
	m.driversChanged()
}

func (m *Manager) close(c *client) {
	if c == nil {
		return
	}
	if c.stop != nil {
		c.stop()
		<-c.watched
	}
	if err := c.conn.Close(); err != nil {
		m.cfg.Logger.Debug("close failed", slog.String("driver", c.name), logattr.Err(err))
	}
}

// driversChanged tells the cluster which drivers there are, and has Run look for orphans.
func (m *Manager) driversChanged() {
	notify.Send(m.changed)
	if m.cfg.Node == nil {
		return
	}
	m.notifying.Lock() // the last call has the last state
	defer m.notifying.Unlock()
	m.mu.Lock()
	var list []storagev1.CSINodeDriver
	for _, name := range slices.Sorted(maps.Keys(m.clients)) {
		list = append(list, nodeDriver(m.clients[name]))
	}
	m.mu.Unlock()
	safe.Do(m.cfg.Logger, "set drivers", func() { m.cfg.Node.SetDrivers(list) })
}

// nodeDriver describes a driver as the CSINode has it. m.mu must be held.
func nodeDriver(c *client) storagev1.CSINodeDriver {
	d := storagev1.CSINodeDriver{Name: c.name, NodeID: c.info.GetNodeId()}
	if topology := c.info.GetAccessibleTopology().GetSegments(); len(topology) > 0 {
		d.TopologyKeys = slices.Sorted(maps.Keys(topology))
	}
	if n := c.maxVolumes; n > 0 {
		count := int32(min(n, 1<<30)) //nolint:gosec // bounded
		d.Allocatable = &storagev1.VolumeNodeResources{Count: &count}
	}
	return d
}

// Topology returns where the node is according to its drivers: labels of the Node.
func (m *Manager) Topology() map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	labels := map[string]string{}
	for _, c := range m.clients {
		maps.Copy(labels, c.info.GetAccessibleTopology().GetSegments())
	}
	return labels
}

// client returns the registered driver of a name.
func (m *Manager) client(name string) (*client, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.clients[name]; c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("CSI driver %s is not registered on this node; its socket must be in %s", name, m.paths.registry())
}

const (
	canStage      = spec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME
	canStats      = spec.NodeServiceCapability_RPC_GET_VOLUME_STATS
	canExpand     = spec.NodeServiceCapability_RPC_EXPAND_VOLUME
	canHealth     = spec.NodeServiceCapability_RPC_GET_VOLUME_HEALTH
	canMountGroup = spec.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP
	canWriters    = spec.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER
)
