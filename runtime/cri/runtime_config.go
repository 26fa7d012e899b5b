package cri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
)

// configInfo is the part of its configuration that a runtime tells in a verbose
// Status, in the form of containerd, whose first and second major version write
// these fields alike. Others write it in other forms, or not at all.
type configInfo struct {
	SandboxImage string `json:"sandboxImage"`
	// SystemdCgroup was for runtimes of before the shim API that all have today.
	SystemdCgroup bool `json:"systemdCgroup"`
	Containerd    struct {
		DefaultRuntimeName string                     `json:"defaultRuntimeName"`
		Runtimes           map[string]runtimeHandling `json:"runtimes"`
	} `json:"containerd"`
}

// runtimeHandling is the configuration of one runtime handler.
type runtimeHandling struct {
	Type    string          `json:"runtimeType"`
	Options json.RawMessage `json:"options"` // the handler's own
}

func (c *Client) configInfo(ctx context.Context) (configInfo, error) {
	resp, err := do(ctx, c, "Status", "", c.cfg.StatusTimeout, c.rs.Status, &v1.StatusRequest{Verbose: true})
	if err != nil {
		return configInfo{}, err
	}
	var config configInfo
	if err := json.Unmarshal([]byte(resp.GetInfo()["config"]), &config); err != nil {
		return configInfo{}, nil //nolint:nilerr // of another runtime, which does not tell
	}
	return config, nil
}

// SandboxImage returns the reference of the image that the runtime makes sandboxes
// from, or "" where it does not tell: containerd 1 does, in what it says of its
// configuration. Runtimes that pin that image have no need to.
func (c *Client) SandboxImage(ctx context.Context) (string, error) {
	config, err := c.configInfo(ctx)
	return config.SandboxImage, err
}

// CgroupDriver returns the cgroup driver that the runtime wants, "systemd" or
// "cgroupfs": the answer of RuntimeConfig, or where there is none, as from
// containerd 1, what its configuration says. A runtime that tells in neither way
// is runtime.ErrUnsupported.
func (c *Client) CgroupDriver(ctx context.Context) (string, error) {
	resp, err := do(ctx, c, "RuntimeConfig", "", c.cfg.StatusTimeout, c.rs.RuntimeConfig, &v1.RuntimeConfigRequest{})
	if err != nil && !errors.Is(err, runtime.ErrUnsupported) {
		return "", err
	}
	if linux := resp.GetLinux(); linux != nil {
		return strings.ToLower(linux.GetCgroupDriver().String()), nil
	}
	config, err := c.configInfo(ctx)
	if err != nil {
		return "", err
	}
	if driver, ok := config.cgroupDriver(); ok {
		return driver, nil
	}
	return "", fmt.Errorf("cgroup driver: not reported: %w", runtime.ErrUnsupported)
}

// UpdatePodCIDRs passes the pod CIDRs of the node to the runtime. See runtime.PodCIDRUpdater.
func (c *Client) UpdatePodCIDRs(ctx context.Context, cidrs []string) error {
	_, err := do(ctx, c, "UpdateRuntimeConfig", "", c.cfg.StatusTimeout, c.rs.UpdateRuntimeConfig, &v1.UpdateRuntimeConfigRequest{
		RuntimeConfig: &v1.RuntimeConfig{NetworkConfig: &v1.NetworkConfig{PodCidr: strings.Join(cidrs, ",")}},
	})
	return err
}

var _ runtime.PodCIDRUpdater = (*Client)(nil)

// cgroupDriver is that of the default handler, or else of the first by name that
// has one: only handlers for runc do.
func (i *configInfo) cgroupDriver() (driver string, ok bool) {
	handlers := slices.Sorted(maps.Keys(i.Containerd.Runtimes))
	if i.SystemdCgroup {
		return "systemd", true
	}
	for _, name := range append([]string{i.Containerd.DefaultRuntimeName}, handlers...) {
		handler, ok := i.Containerd.Runtimes[name]
		if !ok || !strings.HasPrefix(handler.Type, "io.containerd.runc.") {
			continue
		}
		var options struct {
			SystemdCgroup bool
		}
		if err := json.Unmarshal(orNull(handler.Options), &options); err != nil {
			continue
		}
		if options.SystemdCgroup {
			return "systemd", true
		}
		return "cgroupfs", true
	}
	return "", false
}

// orNull is what stands in JSON for a field that is not there.
func orNull(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 {
		return json.RawMessage("null")
	}
	return raw
}
