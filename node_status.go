package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sublet-dev/agent/admission"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/internal/settings"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/syncloop"
)

// detectNode sets what the configuration of the node leaves to the machine: its capacity,
// and what of it is allocatable. A simulated runtime uses nothing of the machine.
func (c *Components) detectNode() error {
	if choice, _ := settings.Peek[runtimeChoice](&c.options.Store); choice.Simulated {
		return nil
	}
	if c.Node.Capacity == nil {
		c.Node.Capacity = node.DetectCapacity(os.DirFS("/"), c.Node.NodeCgroup, c.Node.CgroupRoot)
		if disk, err := node.DiskCapacity(c.RootDir); err == nil && disk.Sign() > 0 {
			c.Node.Capacity[corev1.ResourceEphemeralStorage] = disk
		}
	}
	if c.Node.Allocatable != nil {
		return nil
	}
	var reserved node.Reservations
	if evict, on := settings.Peek[eviction.Config](&c.options.Store); on {
		thresholds := evict.Thresholds
		if thresholds == nil {
			thresholds = eviction.DefaultThresholds()
		}
		reserved.Eviction = eviction.Reservation(c.Node.Capacity, thresholds)
	}
	resources, err := node.Available(c.Node.Capacity, reserved)
	if err != nil {
		return fmt.Errorf("node: %w; set Allocatable", err)
	}
	c.Node.Allocatable = resources.Allocatable
	for name, limit := range c.Node.PodsCgroupLimits {
		if q, ok := c.Node.Allocatable[name]; ok && limit.Cmp(q) < 0 {
			c.Node.Allocatable[name] = limit
		}
	}
	return nil
}

// newNodeStatus returns what the agent reports about its node.
func newNodeStatus(c *Components) (*node.Status, error) {
	reporters := c.Node.ConditionReporters
	if c.Eviction != nil {
		reporters = append([]node.Reporter{c.Eviction}, reporters...)
	}
	conditions, err := node.NewConditions(node.ConditionsConfig{
		Checks: []node.Check{c.SyncLoop.Healthy, c.runtimeHealthy, c.PLEG.Healthy}, Reporters: reporters, Logger: c.Logger,
	})
	if err != nil {
		return nil, err
	}
	cfg := node.StatusConfig{
		Resources: node.Resources{Capacity: c.Node.Capacity, Allocatable: c.Node.Allocatable}, MaxPods: c.Node.MaxPods,
		Info: node.DetectInfo(os.DirFS("/")), Conditions: conditions, Runtime: c.RuntimeState.Status, Port: c.Node.Port,
		Addresses: func() ([]corev1.NodeAddress, error) {
			return node.Addresses(node.AddressConfig{NodeName: c.NodeName, IPs: c.Node.IPs})
		},
	}
	if store, ok := runtime.Capability[runtime.ImageStore](c.Runtime); ok {
		cfg.Images = store.Images
	}
	return node.NewStatus(cfg)
}

// runtimeHealthy returns why the runtime or its network is not ready, in the words of a
// kubelet, unless the loop waits for just that and says so.
func (c *Components) runtimeHealthy() error {
	err := c.RuntimeState.Healthy()
	switch {
	case err == nil, errors.Is(c.SyncLoop.Healthy(), syncloop.ErrRuntimeNotReady):
		return nil
	case errors.Is(err, ErrNetworkNotReady):
		return fmt.Errorf("container runtime network not ready: %w", err)
	}
	return fmt.Errorf("container runtime is down: %w", err)
}

// NodeStatus returns the status of the node as the Node object of a cluster has it:
// capacity, conditions, addresses, images and what the machine tells about itself. The
// error says what could not be found out and is left out.
func (a *Agent) NodeStatus(ctx context.Context) (corev1.NodeStatus, error) {
	return a.c.NodeStatus.At(ctx, time.Now())
}

// Conditions returns the node's conditions: MemoryPressure, DiskPressure and PIDPressure,
// those of node.Config.ConditionReporters, and Ready.
func (a *Agent) Conditions() []corev1.NodeCondition { return a.c.NodeStatus.Conditions() }

// unsupportedFields returns the default of node.Config.UnsupportedFields: with Objects
// that have the tokens of an API server, its pods may use them.
func (c *Components) unsupportedFields() func(*corev1.Pod) field.ErrorList {
	added, _ := settings.Peek[objectPlaces](&c.options.Store)
	for _, place := range added.Places {
		if _, ok := place.(podspec.Projections); ok {
			return podspec.UnsupportedInCluster
		}
	}
	return nil
}

// WithNodeLabels has admission match node selectors and node affinity with labels that
// may change, such as those of a Node object, in place of node.Config.Labels. It must not
// block and is called for each new pod; the result is read-only.
func WithNodeLabels(labels func() map[string]string) Option {
	return add("WithNodeLabels", admission.Config{LabelsFunc: labels})
}
