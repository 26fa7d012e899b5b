package cri

import (
	"context"
	"fmt"
	"strings"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
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
	c.features.Store(featuresOf(version, resp))
	h := runtime.Status{Name: version.GetRuntimeName(), Version: version.GetRuntimeVersion()}
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

// features is what a runtime says it can do beyond what every runtime can.
type features struct {
	recursiveReadOnly map[string]bool // by runtime handler
	userNamespaces    map[string]bool // by runtime handler
	groupsPolicy      bool
	runtime           string // name and version, for people
	noImageVolumes    bool   // it is known to have none
}

func featuresOf(version *v1.VersionResponse, resp *v1.StatusResponse) *features {
	f := features{
		recursiveReadOnly: make(map[string]bool), userNamespaces: make(map[string]bool),
		groupsPolicy:   resp.GetFeatures().GetSupplementalGroupsPolicy(),
		runtime:        strings.TrimSpace(version.GetRuntimeName() + " " + version.GetRuntimeVersion()),
		noImageVolumes: olderThanImageVolumes(version.GetRuntimeName(), version.GetRuntimeVersion()),
	}
	for _, h := range resp.GetRuntimeHandlers() {
		f.recursiveReadOnly[h.GetName()] = h.GetFeatures().GetRecursiveReadOnlyMounts()
		f.userNamespaces[h.GetName()] = h.GetFeatures().GetUserNamespaces()
	}
	return &f
}

// name is what the runtime calls itself.
func (f *features) name() string {
	if f == nil || f.runtime == "" {
		return "the runtime"
	}
	return f.runtime
}

// olderThanImageVolumes: no feature tells of image volumes, and a runtime that
// does not know them makes of one what it makes of an empty path. Those that are
// known by name had them from some version on; of others nothing is known.
func olderThanImageVolumes(name, version string) bool {
	major, minor, ok := versionOf(version)
	switch {
	case !ok:
		return false
	case name == "containerd":
		return major < 2 || major == 2 && minor < 1
	case name == "cri-o":
		return major == 1 && minor < 31
	}
	return false
}

// versionOf reads the first two numbers of v2.4.2, 1.6.20~ds1 and the like.
func versionOf(s string) (major, minor int, ok bool) {
	n, err := fmt.Sscanf(strings.TrimPrefix(s, "v"), "%d.%d", &major, &minor)
	return major, minor, n == 2 && err == nil
}
