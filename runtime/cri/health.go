package cri

import (
	"context"
	"fmt"
	"strings"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
)

// Health asks the runtime how it is. Only the conditions RuntimeReady and
// NetworkReady decide; others are handed on as they are, since runtimes use
// them for warnings too.
func (c *Client) Health(ctx context.Context) (runtime.Health, error) {
	version, err := do(ctx, c, "Version", "", c.cfg.HealthTimeout, c.rs.Version, &v1.VersionRequest{})
	if err != nil {
		return runtime.Health{}, err
	}
	resp, err := do(ctx, c, "Status", "", c.cfg.HealthTimeout, c.rs.Status, &v1.StatusRequest{})
	if err != nil {
		return runtime.Health{}, err
	}
	c.features.Store(featuresOf(resp))
	h := runtime.Health{Name: version.GetRuntimeName(), Version: version.GetRuntimeVersion()}
	for _, cond := range resp.GetStatus().GetConditions() {
		h.Conditions = append(h.Conditions, runtime.Condition{
			Type: cond.GetType(), OK: cond.GetStatus(), Reason: cond.GetReason(), Message: cond.GetMessage(),
		})
		switch cond.GetType() {
		case v1.RuntimeReady:
			h.RuntimeReady = cond.GetStatus()
		case v1.NetworkReady:
			h.NetworkReady = cond.GetStatus()
		}
	}
	return h, nil
}

// CgroupDriver returns the cgroup driver that the runtime wants, "systemd" or
// "cgroupfs". A runtime that does not tell is runtime.ErrUnsupported.
func (c *Client) CgroupDriver(ctx context.Context) (string, error) {
	resp, err := do(ctx, c, "RuntimeConfig", "", c.cfg.HealthTimeout, c.rs.RuntimeConfig, &v1.RuntimeConfigRequest{})
	if err != nil {
		return "", err
	}
	if resp.GetLinux() == nil {
		return "", fmt.Errorf("RuntimeConfig: no Linux configuration: %w", runtime.ErrUnsupported)
	}
	return strings.ToLower(resp.GetLinux().GetCgroupDriver().String()), nil
}

// features is what a runtime says it can do beyond what every runtime can.
type features struct {
	recursiveReadOnly map[string]bool // by runtime handler
	userNamespaces    map[string]bool // by runtime handler
	groupsPolicy      bool
	told              bool // the runtime tells its features at all
}

func featuresOf(resp *v1.StatusResponse) *features {
	f := features{
		recursiveReadOnly: make(map[string]bool), userNamespaces: make(map[string]bool),
		groupsPolicy: resp.GetFeatures().GetSupplementalGroupsPolicy(),
		told:         len(resp.GetRuntimeHandlers()) > 0,
	}
	for _, h := range resp.GetRuntimeHandlers() {
		f.recursiveReadOnly[h.GetName()] = h.GetFeatures().GetRecursiveReadOnlyMounts()
		f.userNamespaces[h.GetName()] = h.GetFeatures().GetUserNamespaces()
	}
	return &f
}
