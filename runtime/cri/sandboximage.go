package cri

import (
	"context"
	"encoding/json"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// SandboxImage returns the reference of the image that the runtime makes sandboxes
// from, or "" where it does not tell: containerd 1 does, in what it says of its
// configuration. Runtimes that pin that image have no need to.
func (c *Client) SandboxImage(ctx context.Context) (string, error) {
	resp, err := do(ctx, c, "Status", "", c.cfg.HealthTimeout, c.rs.Status, &v1.StatusRequest{Verbose: true})
	if err != nil {
		return "", err
	}
	var config struct {
		SandboxImage string `json:"sandboxImage"`
	}
	_ = json.Unmarshal([]byte(resp.GetInfo()["config"]), &config) // others write it in other forms
	return config.SandboxImage, nil
}
