package agent

import (
	"context"
	"errors"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/lazycri"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
	"github.com/sublet-dev/agent/status"
	"github.com/sublet-dev/agent/syncloop"
)

// pulledImagesFile is where the agent remembers who could pull which image.
const pulledImagesFile = "pulled-images.json"

// newRuntime returns the client of the runtime that the options name. It connects when
// the agent runs.
func (a *Agent) newRuntime() Runtime {
	config := func() cri.Config {
		return cri.Config{Owner: a.ownerID(), AdoptSources: a.adopt, Pulls: a.pulls, ImageAccess: a.imageAccess, Recorder: a.events, Logger: a.logger, Hooks: a.hooks.CRI}
	}
	if a.endpoint == "" {
		return lazycri.NewEmbedded(embedded.Config{Executor: simulated.New(simulated.Config{}), Logger: a.logger, Grace: -1}, config) // simulated containers need no grace period
	}
	return lazycri.New(a.endpoint, a.image, func() cri.Config {
		cfg := config()
		cfg.Node = cri.DetectNode(os.DirFS("/"))
		if a.criNode != nil {
			cfg.Node = a.criNode.WithDetected(cfg.Node)
		}
		cfg.ImageAccess.File = a.path(pulledImagesFile)
		return cfg
	})
}

// connecter is a runtime that has to be connected to.
type connecter interface {
	Connect() (disconnect func() error, err error)
}

// connect connects to the runtime, if it is one that newRuntime has made, and tells it
// the owner. The result disconnects.
func (a *Agent) connect() (disconnect func() error, err error) {
	if rt, ok := runtime.Capability[connecter](a.runtime); ok {
		return rt.Connect()
	}
	if rt, ok := runtime.Capability[runtime.OwnerSetter](a.runtime); ok {
		rt.SetOwner(a.ownerID(), a.adopt)
	}
	return func() error { return nil }, nil
}

func (a *Agent) hostIP() string {
	if len(a.node.IPs) == 0 {
		return ""
	}
	return a.node.IPs[0]
}

// cgroupDriver returns a query of the runtime's cgroup driver, or nil without the capability.
func (a *Agent) cgroupDriver() func(context.Context) (string, error) {
	rt, ok := runtime.Capability[runtime.CgroupDriverReporter](a.runtime)
	if !ok {
		return nil
	}
	return func(ctx context.Context) (string, error) {
		driver, err := rt.CgroupDriver(ctx)
		if errors.Is(err, runtime.ErrUnsupported) {
			return "", nil
		}
		return driver, err
	}
}

// podsHooks releases the images of rejected pods.
func (a *Agent) podsHooks() syncloop.PodManagerHooks {
	hooks := a.hooks.PodManager
	rejected := hooks.Rejected
	hooks.Rejected = func(pod *corev1.Pod, reason, message string) {
		a.releaseImages(pod.UID)
		if rejected != nil {
			rejected(pod, reason, message)
		}
	}
	return hooks
}

// nodeInfo returns what statuses report about the node.
func (a *Agent) nodeInfo() status.NodeInfo {
	return status.NodeInfo{HostIPs: a.node.IPs, RuntimeName: a.ready.Name()}
}

func (a *Agent) statusesKnown() ([]types.UID, error) { return a.statuses.PodUIDs(), nil }

func (a *Agent) forgetStatus(_ context.Context, uid types.UID) error {
	a.statuses.Forget(uid)
	a.releaseImages(uid)
	return nil
}
