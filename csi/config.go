package csi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/volume"
)

// PluginType is the type with which CSI drivers register.
const PluginType = "CSIPlugin"

// Drivers returns the CSIDriver objects, which say what a driver wants of a node. The
// error wraps podspec.ErrObjectNotFound if there is none for a driver: see DefaultDriver.
// volume.Files and package kube have them.
type Drivers interface {
	CSIDriver(ctx context.Context, name string) (*storagev1.CSIDriver, error)
}

// Attachments tells when a volume is attached to the node.
type Attachments interface {
	// Attached blocks until the volume is attached and the node is recorded to use it, and
	// returns the publish context of the attacher. An error names what is missing, and wraps
	// runtime.ErrVolumeLimit if the attacher says that the node has as many volumes as it can.
	Attached(ctx context.Context, driver, handle string) (map[string]string, error)
}

// Node lets the cluster know which drivers the node has: its CSINode.
type Node interface {
	// SetDrivers replaces the drivers of the node. It does not block.
	SetDrivers(drivers []storagev1.CSINodeDriver)
}

// Recorder receives Kubernetes events. It does not block.
type Recorder interface {
	Record(event *corev1.Event)
}

// Config describes a Manager.
type Config struct {
	// Root is the root directory of the agent, an absolute path. Required.
	Root string
	// NodeName is the name of this node. Required.
	NodeName string

	Drivers     Drivers     // default: DefaultDriver for all
	Attachments Attachments // default: volumes need not be attached, as without an API server
	Node        Node        // default: none

	// CallTimeout bounds a call of a driver. Default: 2 minutes, as in the kubelet.
	CallTimeout time.Duration
	// SlowCallAge is the age of a call at which the pod gets an event. Default: 10 seconds.
	SlowCallAge time.Duration
	// HealthPeriod is the period in which drivers are asked for the usage and the health
	// of volumes, and in which orphans are unstaged. Default: 1 minute.
	HealthPeriod time.Duration

	Recorder Recorder // default: none
	Hooks    Hooks
	Logger   *slog.Logger // default: discard
}

// Hooks observe a Manager. They are called without Manager's own locks held and must not block; during a call for a volume the
// next one for it waits. A panic in one is logged.
type Hooks struct {
	// RPCEnded is called after each gRPC call of a driver, with the full name of the method and the name of the status code.
	// The driver chooses the code.
	RPCEnded func(driver, method, code string, duration time.Duration)
	// OperationEnded is called after each volume that was unmounted or unstaged, or could not be, and after files of a volume
	// were given to the fsGroup of a pod and a volume in use was expanded. The hooks of a volume.Manager are called for those
	// that are mounted.
	OperationEnded func(op volume.Operation, duration time.Duration, err error)
}

// complete validates the Config and sets defaults.
func (cfg *Config) complete() error {
	var errs []error
	if !filepath.IsAbs(cfg.Root) {
		errs = append(errs, fmt.Errorf("csi: Config.Root: %q must be an absolute path", cfg.Root))
	}
	if cfg.NodeName == "" {
		errs = append(errs, errors.New("csi: Config.NodeName: required"))
	}
	for _, d := range []struct {
		name     string
		value    *time.Duration
		fallback time.Duration
	}{
		{"CallTimeout", &cfg.CallTimeout, 2 * time.Minute},
		{"SlowCallAge", &cfg.SlowCallAge, 10 * time.Second},
		{"HealthPeriod", &cfg.HealthPeriod, time.Minute},
	} {
		if *d.value < 0 {
			errs = append(errs, fmt.Errorf("csi: Config.%s: %s must be at least 0", d.name, *d.value))
		}
		*d.value = cmp.Or(*d.value, d.fallback)
	}
	cfg.Root = filepath.Clean(cfg.Root)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Hooks = Hooks{
		RPCEnded:       safe.Hook4(cfg.Logger, "RPCEnded", cfg.Hooks.RPCEnded),
		OperationEnded: safe.Hook3(cfg.Logger, "OperationEnded", cfg.Hooks.OperationEnded),
	}
	cfg.Recorder = safe.Events[*corev1.Event](cfg.Logger, cfg.Recorder)
	return errors.Join(errs...)
}

// DefaultDriver is what counts for a driver without a CSIDriver object: its volumes need
// not be attached, may be in a pod's spec, of which the driver gets to know, and get the fsGroup of
// a pod if they have a file system and one node may write.
func DefaultDriver(name string) *storagev1.CSIDriver {
	no, yes, policy := false, true, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy
	d := &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{
		AttachRequired: &no, PodInfoOnMount: &yes, FSGroupPolicy: &policy,
		VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral},
	}}
	d.Name = name
	return d
}
