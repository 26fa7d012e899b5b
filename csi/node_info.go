package csi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/internal/sleep"
	"github.com/sublet-dev/agent/runtime"
)

const (
	// maxNodeID is the longest id of a node that a CSINode can have.
	maxNodeID = 256
	// limitCheckPeriod bounds the time until a change of a CSIDriver's period is noticed.
	limitCheckPeriod = 10 * time.Minute
	// maxLimitSeconds bounds the period of a CSIDriver, which may be more than a time.Duration can be.
	maxLimitSeconds = 365 * 24 * 60 * 60
	// maxTopology bounds what a driver says of where the node is: each segment becomes a label of the Node.
	maxTopology = 64
)

// checkNodeInfo returns why the cluster cannot get to know a driver. The CSINode and the labels of the Node are
// written for all drivers together: one that the API server rejects would keep the others from it.
func checkNodeInfo(c *client) error {
	var errs []error
	for _, message := range validation.IsDNS1123Subdomain(strings.ToLower(c.name)) {
		errs = append(errs, fmt.Errorf("name: %s", message))
	}
	if n := len(c.info.GetNodeId()); n > maxNodeID {
		errs = append(errs, fmt.Errorf("the node id has %d bytes, at most %d", n, maxNodeID))
	}
	segments := c.info.GetAccessibleTopology().GetSegments()
	if len(segments) > maxTopology {
		return errors.Join(append(errs, fmt.Errorf("the topology has %d segments, at most %d", len(segments), maxTopology))...)
	}
	for _, key := range slices.Sorted(maps.Keys(segments)) {
		for _, message := range slices.Concat(validation.IsQualifiedName(key), validation.IsValidLabelValue(segments[key])) {
			errs = append(errs, fmt.Errorf("topology %.100q: %.100q is no label: %s", key, segments[key], message))
		}
	}
	return errors.Join(errs...)
}

// contradiction returns an error if a driver says of where the node is what another one denies: which label
// the Node had would be left to chance. m.mu must be held.
func (m *Manager) contradiction(c *client) error {
	for _, name := range slices.Sorted(maps.Keys(m.clients)) {
		if name == c.name {
			continue // it is replaced
		}
		others := m.clients[name].info.GetAccessibleTopology().GetSegments()
		for key, value := range c.info.GetAccessibleTopology().GetSegments() {
			if other, ok := others[key]; ok && other != value {
				return fmt.Errorf("topology %s: the node is at %q, but at %q according to CSI driver %s", key, value, other, name)
			}
		}
	}
	return nil
}

// add makes a driver known, in place of the one of its name. It returns the one of its socket, which is not needed any more; nil: none.
func (m *Manager) add(c *client) (replaced *client, err error) {
	if m.cfg.Node != nil {
		err = checkNodeInfo(c)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil && m.cfg.Node != nil {
		err = m.contradiction(c)
	}
	if err != nil {
		return nil, fmt.Errorf("CSI driver %s cannot be in the CSINode: %w", c.name, err)
	}
	c.previous, replaced = m.clients[c.name].without(c.socket)
	m.clients[c.name] = c
	return replaced, nil
}

// watchLimit asks a driver how many volumes the node can have, as often as its CSIDriver says, until ctx is done. What else
// has a place on the machine, such as a network interface, may take that of a volume.
func (m *Manager) watchLimit(ctx context.Context, c *client) {
	defer close(c.watched)
	askedAt := time.Now()
	for {
		period, wait := m.limitPeriod(ctx, c.name), limitCheckPeriod
		if period > 0 && time.Since(askedAt) >= period {
			m.updateLimit(ctx, c)
			askedAt = time.Now()
		}
		if period > 0 {
			wait = min(wait, time.Until(askedAt.Add(period)))
		}
		if sleep.For(ctx, wait) != nil {
			return
		}
	}
}

// limitPeriod returns how often a driver is to be asked, 0 for never.
func (m *Manager) limitPeriod(ctx context.Context, name string) (period time.Duration) {
	safe.Do(m.cfg.Logger, "period of the volume limit of "+name, func() {
		if d, err := m.csiDriver(ctx, name); err == nil && d.Spec.NodeAllocatableUpdatePeriodSeconds != nil {
			period = time.Duration(min(*d.Spec.NodeAllocatableUpdatePeriodSeconds, maxLimitSeconds)) * time.Second
		}
	})
	return period
}

// checkLimit looks at why a volume is not attached. If the node has as many as it can, the driver is asked for its limit
// again, so that no more pods come for which there is no place. As with the kubelet, a limit of a driver that does not
// say how often to ask counts as any other error: nothing would keep the next pod from coming.
func (m *Manager) checkLimit(ctx context.Context, o *operation, err error) error {
	if !errors.Is(err, runtime.ErrVolumeLimit) {
		return err
	}
	if m.limitPeriod(ctx, o.id.driver) <= 0 {
		return errors.New(err.Error()) // without what it wraps
	}
	m.updateLimit(ctx, o.client)
	return err
}

func (m *Manager) updateLimit(ctx context.Context, c *client) {
	info, err := call(ctx, c, "NodeGetInfo", nil, c.node.NodeGetInfo, &spec.NodeGetInfoRequest{})
	if err != nil {
		if ctx.Err() == nil {
			m.cfg.Logger.Warn("volume limit not updated", slog.String("driver", c.name), logattr.Err(err))
		}
		return
	}
	m.mu.Lock()
	before, after := c.maxVolumes, info.GetMaxVolumesPerNode()
	c.maxVolumes = after
	m.mu.Unlock()
	if before != after {
		m.cfg.Logger.Info("volume limit changed", slog.String("driver", c.name), slog.Int64("before", before), slog.Int64("volumes", after))
		m.driversChanged()
	}
}
