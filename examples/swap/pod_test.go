package swap_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/probe"
	"github.com/sublet-dev/agent/runtime"
)

// countingProber counts the pods that another Prober gets.
type countingProber struct {
	agent.Prober
	pods *counter
}

func (p countingProber) AddPod(pod *corev1.Pod) {
	p.pods.add()
	p.Prober.AddPod(pod)
}

func Example_proberDecorated() {
	var pods counter
	runPod(agent.WithProber(func(c *agent.Components) (agent.Prober, error) {
		p, err := agent.NewProber(c)
		return countingProber{p, &pods}, err
	}))
	fmt.Println("pods counted:", pods.wasCalled())
	// Output:
	// the pod runs
	// the pod is gone
	// pods counted: true
}

// trustingProber takes every container that runs for ready.
type trustingProber struct{ c *agent.Components }

func (p trustingProber) Results(uid types.UID) runtime.PodProbeResults {
	results := runtime.PodProbeResults{}
	pod, _ := p.c.PodCache.Get(uid)
	for _, c := range pod.Containers {
		if c.State == runtime.Running {
			results[c.ID] = runtime.ProbeResults{Startup: runtime.ProbeSuccess, Readiness: runtime.ProbeSuccess, Liveness: runtime.ProbeSuccess}
		}
	}
	return results
}

func (trustingProber) AddPod(*corev1.Pod)                {}
func (trustingProber) RemovePod(types.UID)               {}
func (trustingProber) StopLivenessAndStartup(types.UID)  {}
func (trustingProber) Adopt(types.UID, corev1.PodStatus) {}
func (trustingProber) Notify() <-chan struct{}           { return nil }
func (trustingProber) Drain() []probe.ResultChange       { return nil }
func (trustingProber) Run(ctx context.Context) error     { return until(ctx) }

func Example_proberOwn() {
	runPod(agent.WithProber(func(c *agent.Components) (agent.Prober, error) { return trustingProber{c}, nil }))
	// Output:
	// the pod runs
	// the pod is gone
}

// countingVolumes counts the mounts of other Volumes.
type countingVolumes struct {
	agent.Volumes
	mounts *counter
}

func (v countingVolumes) Mount(ctx context.Context, pod *corev1.Pod, objects podspec.Objects) (map[string]runtime.Volume, error) {
	v.mounts.add()
	return v.Volumes.Mount(ctx, pod, objects)
}

func Example_volumesDecorated() {
	var mounts counter
	runPod(agent.WithVolumes(func(c *agent.Components) (agent.Volumes, error) {
		v, err := agent.NewVolumes(c)
		return countingVolumes{v, &mounts}, err
	}))
	fmt.Println("mounts counted:", mounts.wasCalled())
	// Output:
	// the pod runs
	// the pod is gone
	// mounts counted: true
}

// hostPaths knows volumes that are directories of the node, and no others.
type hostPaths struct{}

func (hostPaths) Mount(_ context.Context, pod *corev1.Pod, _ podspec.Objects) (map[string]runtime.Volume, error) {
	volumes := map[string]runtime.Volume{}
	for _, v := range pod.Spec.Volumes {
		if v.HostPath == nil {
			return nil, fmt.Errorf("volume %s: only hostPath is supported", v.Name)
		}
		volumes[v.Name] = runtime.Volume{HostPath: v.HostPath.Path}
	}
	return volumes, nil
}

func (hostPaths) Unmount(context.Context, types.UID) error { return nil }

func (hostPaths) SubPath(_ context.Context, _ types.UID, _ string, v runtime.Volume, subPath string) (string, error) {
	if !filepath.IsLocal(subPath) {
		return "", errors.New("subPath leads out of the volume")
	}
	return filepath.Join(v.HostPath, subPath), nil // without a check of links
}

func (hostPaths) LocalVolumePaths(*corev1.Pod) map[string]string { return nil }

func Example_volumesOwn() {
	runPod(agent.WithVolumes(func(*agent.Components) (agent.Volumes, error) { return hostPaths{}, nil }))
	// Output:
	// the pod runs
	// the pod is gone
}

// countingSyncer counts the syncs of another Syncer.
type countingSyncer struct {
	agent.Syncer
	syncs *counter
}

func (s countingSyncer) Sync(ctx context.Context, pod *corev1.Pod, observed runtime.Pod) (runtime.SyncResult, error) {
	s.syncs.add()
	return s.Syncer.Sync(ctx, pod, observed)
}

func Example_syncerDecorated() {
	var syncs counter
	runPod(agent.WithSyncer(func(c *agent.Components) (agent.Syncer, error) {
		s, err := agent.NewSyncer(c)
		return countingSyncer{s, &syncs}, err
	}))
	fmt.Println("syncs counted:", syncs.wasCalled())
	// Output:
	// the pod runs
	// the pod is gone
	// syncs counted: true
}

// reasons records the reasons of events.
type reasons struct {
	mu       sync.Mutex
	recorded map[string]bool
}

func (r *reasons) Record(e *corev1.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recorded[e.Reason] = true
}

// countingRecorder counts the events that pass to another Recorder.
type countingRecorder struct {
	agent.Recorder
	events *counter
}

func (r countingRecorder) Record(e *corev1.Event) {
	r.events.add()
	r.Recorder.Record(e)
}

func Example_recorderDecorated() {
	var events counter
	recorded := reasons{recorded: map[string]bool{}}
	runPod(agent.WithRecorder(&recorded), agent.WithRecorderFunc(func(c *agent.Components) (agent.Recorder, error) {
		r, err := agent.NewRecorder(c)
		return countingRecorder{r, &events}, err
	}))
	fmt.Println("events counted:", events.wasCalled(), "started:", recorded.recorded["Started"])
	// Output:
	// the pod runs
	// the pod is gone
	// events counted: true started: true
}

func Example_recorderOwn() {
	recorded := reasons{recorded: map[string]bool{}}
	runPod(agent.WithRecorderFunc(func(*agent.Components) (agent.Recorder, error) { return &recorded, nil }))
	fmt.Println("pulled:", recorded.recorded["Pulled"], "started:", recorded.recorded["Started"])
	// Output:
	// the pod runs
	// the pod is gone
	// pulled: true started: true
}
