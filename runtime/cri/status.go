package cri

import (
	"context"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri/internal/translate"
)

// Status asks the runtime how it is. Only the conditions RuntimeReady and
// NetworkReady decide; others are handed on as they are, since runtimes use
// them for warnings too.
func (c *Client) Status(ctx context.Context) (runtime.Status, error) {
	version, err := do(ctx, c, "Version", "", c.cfg.StatusTimeout, c.rs.Version, &v1.VersionRequest{})
	if err != nil {
		return runtime.Status{}, err
	}
	resp, err := do(ctx, c, "Status", "", c.cfg.StatusTimeout, c.rs.Status, &v1.StatusRequest{})
	if err != nil {
		return runtime.Status{}, err
	}
	c.features.Store(translate.FeaturesOf(version, resp))
	h := runtime.Status{Name: version.GetRuntimeName(), Version: version.GetRuntimeVersion()}
	setFeatures(&h, resp)
	for _, cond := range resp.GetStatus().GetConditions() {
		h.Conditions = append(h.Conditions, runtime.Condition{
			Type: cond.GetType(), Status: cond.GetStatus(), Reason: cond.GetReason(), Message: cond.GetMessage(),
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

// setFeatures sets what the runtime and each of its handlers can do besides.
func setFeatures(h *runtime.Status, resp *v1.StatusResponse) {
	h.SupplementalGroupsPolicy = resp.GetFeatures().GetSupplementalGroupsPolicy()
	for _, handler := range resp.GetRuntimeHandlers() {
		f := handler.GetFeatures()
		h.Handlers = append(h.Handlers, runtime.Handler{
			Name: handler.GetName(), RecursiveReadOnlyMounts: f.GetRecursiveReadOnlyMounts(), UserNamespaces: f.GetUserNamespaces(),
		})
	}
}
