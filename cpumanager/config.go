package cpumanager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/topology"
)

// Runtime is what a Runner needs of the container runtime, besides the capability
// runtime.CpusetUpdater.
type Runtime interface {
	// Pods and Pod return the pods in the runtime, and the state of one.
	Pods(ctx context.Context) ([]runtime.Pod, error)
	Pod(ctx context.Context, uid types.UID) (runtime.Pod, error)
}

// Config describes a Manager.
type Config struct {
	// Topology returns the CPUs of the node. It is called by New, and again at each pass
	// of Run, because CPUs come and go. Required; usually topology.Detect.
	Topology func() (topology.Topology, error)
	Reserved topology.Set // for the system and shared containers, never exclusive. Required
	Options  Options      // default: none
	// MemoryAffinity keeps the memory of a container with exclusive CPUs in their NUMA
	// nodes, with its huge pages, as far as the requests of all such containers fit there. Huge pages
	// that others have taken, by Topology.FreeHugePages, do not count for a new container.
	MemoryAffinity bool
	// ReservedMemory is what MemoryAffinity gives no container of NUMA nodes: memory and huge pages, such as
	// hugepages-2Mi. A change does not move containers that are confined already.
	ReservedMemory map[int]corev1.ResourceList
	// StateFile is the absolute path of the file with the assignments. Required. Its
	// directory must exist when the Manager is used.
	StateFile string
	// Period is how often running containers are compared with their assignments; they
	// are also compared after each change. Default: 10 seconds, as in the kubelet.
	Period time.Duration
	// RestoreTimeout is how long a container that needs exclusive CPUs waits for Run to find
	// out which are in use. Default: 30 seconds.
	RestoreTimeout time.Duration
	Hooks          Hooks
	Logger         *slog.Logger // default: discard
}

// Hooks observe a Manager. They are called without locks held and must not block. A panic in
// one is logged.
type Hooks struct {
	// Requested is called when CPUs were set aside for a container that is admitted or, if nothing was
	// set aside for it then, created, and when that failed.
	Requested func(Request)
	// Assigned is called after a container got exclusive CPUs.
	Assigned func(uid types.UID, container string, cpus topology.Set)
	// Updated is called after a running container was moved to other CPUs, or was not.
	Updated func(uid types.UID, containerID string, set runtime.Cpuset, err error)
	// StateLost is called if the file with the assignments could not be read. The damaged
	// file was renamed.
	StateLost func(err error)
}

// Request describes a container that requests CPUs of its own.
type Request struct {
	UID       types.UID // of the pod
	Container string
	CPUs      int
	Memory    int64 // bytes that are to be confined to NUMA nodes; 0: none
	// IsConfined reports whether they were.
	IsConfined bool
	Err        error // why it did not get the CPUs
}

func (h Hooks) guarded(log *slog.Logger) Hooks {
	out := Hooks{Requested: safe.Hook1(log, "Requested", h.Requested), StateLost: safe.Hook1(log, "StateLost", h.StateLost)}
	if h.Assigned != nil {
		out.Assigned = func(uid types.UID, container string, cpus topology.Set) {
			safe.Do(log, "Assigned", func() { h.Assigned(uid, container, cpus) })
		}
	}
	if h.Updated != nil {
		out.Updated = func(uid types.UID, id string, set runtime.Cpuset, err error) {
			safe.Do(log, "Updated", func() { h.Updated(uid, id, set, err) })
		}
	}
	return out
}

// complete validates the Config and sets defaults.
func (cfg *Config) complete() error {
	var errs []error
	if cfg.Topology == nil {
		errs = append(errs, errors.New("cpumanager: Config.Topology: required"))
	}
	if cfg.Reserved.Len() == 0 {
		errs = append(errs, errors.New("cpumanager: Config.Reserved: at least one CPU is required, on which the system and other containers run"))
	}
	if err := cfg.Options.Check(); err != nil {
		errs = append(errs, fmt.Errorf("cpumanager: Config.Options: %w", err))
	}
	if !filepath.IsAbs(cfg.StateFile) {
		errs = append(errs, fmt.Errorf("cpumanager: Config.StateFile: %q must be an absolute path", cfg.StateFile))
	}
	if len(cfg.ReservedMemory) > 0 && !cfg.MemoryAffinity {
		errs = append(errs, errors.New("cpumanager: Config.ReservedMemory: needs MemoryAffinity"))
	}
	for name, d := range map[string]time.Duration{"Period": cfg.Period, "RestoreTimeout": cfg.RestoreTimeout} {
		if d < 0 {
			errs = append(errs, fmt.Errorf("cpumanager: Config.%s: %s must be at least 0", name, d))
		}
	}
	cfg.Period = cmp.Or(cfg.Period, 10*time.Second)
	cfg.RestoreTimeout = cmp.Or(cfg.RestoreTimeout, 30*time.Second)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return errors.Join(errs...)
}

// ExclusiveCPUs returns how many CPUs of its own a container gets: those that it requests, if
// they are whole and its pod is Guaranteed; else 0. Pods with resources at pod level share.
func ExclusiveCPUs(pod *corev1.Pod, c *corev1.Container) int {
	request := c.Resources.Requests[corev1.ResourceCPU]
	n := request.Value()
	if request.MilliValue() != n*1000 || n < 0 || n > 1<<20 || hasResources(pod) || podspec.QOS(pod) != corev1.PodQOSGuaranteed {
		return 0
	}
	return int(n)
}

// hasResources reports whether the pod has resources of its own. An empty list of them says nothing.
func hasResources(pod *corev1.Pod) bool {
	r := pod.Spec.Resources
	return r != nil && len(r.Requests)+len(r.Limits) > 0
}
