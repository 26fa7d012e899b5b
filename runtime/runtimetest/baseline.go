package runtimetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// BaselineConfig says what Floor measures. The zero value of each field has the
// default in brackets.
type BaselineConfig struct {
	Pods        int                        // how many [20]
	MaxParallel int                        // how many at a time [1]
	Image       string                     // with sh and sleep [docker.io/library/busybox:1.36]; pulled if need be
	LogRoot     string                     // folder for container logs [none are written]
	EditPod     func(*v1.PodSandboxConfig) // before each pod is made
}

// BaselineReport is what the raw calls of a pod cost: medians, by call.
type BaselineReport struct {
	Runtime       string // name and version
	Pods          int
	MaxParallel   int
	Calls         map[string]time.Duration // RunPodSandbox, CreateContainer, StartContainer, ...
	StartDuration time.Duration            // from nothing to a running container
	StopDuration  time.Duration            // from a running container to nothing
	TotalDuration time.Duration            // until the last pod was up
}

// floor is one measurement under way.
type floor struct {
	BaselineConfig
	rs  v1.RuntimeServiceClient
	run string

	mu    sync.Mutex // guards the rest
	times map[string][]time.Duration
}

// MeasureBaseline measures the raw CRI calls that bring a pod of one container up and
// down. It is the least that any agent can take on this runtime, so that an
// agent's figures can be put beside it. It removes what it made.
func MeasureBaseline(ctx context.Context, cc grpc.ClientConnInterface, cfg BaselineConfig) (BaselineReport, error) {
	if cfg.Pods <= 0 {
		cfg.Pods = 20
	}
	if cfg.MaxParallel <= 0 {
		cfg.MaxParallel = 1
	}
	if cfg.Image == "" {
		cfg.Image = "docker.io/library/busybox:1.36"
	}
	f := &floor{BaselineConfig: cfg, rs: v1.NewRuntimeServiceClient(cc), run: fmt.Sprintf("floor-%08x", rand.Uint32()), times: map[string][]time.Duration{}}
	v, err := f.rs.Version(ctx, &v1.VersionRequest{})
	if err != nil {
		return BaselineReport{}, fmt.Errorf("measure the floor: version: %w", err)
	}
	is := v1.NewImageServiceClient(cc)
	image := &v1.ImageSpec{Image: cfg.Image}
	st, err := is.ImageStatus(ctx, &v1.ImageStatusRequest{Image: image})
	if err == nil && st.GetImage() == nil {
		_, err = is.PullImage(ctx, &v1.PullImageRequest{Image: image})
	}
	if err != nil {
		return BaselineReport{}, fmt.Errorf("measure the floor: image %s: %w", cfg.Image, err)
	}
	report := BaselineReport{
		Runtime: v.GetRuntimeName() + " " + v.GetRuntimeVersion(), Pods: cfg.Pods, MaxParallel: cfg.MaxParallel, Calls: map[string]time.Duration{},
	}
	pods := make([]floorPod, cfg.Pods)
	begin := time.Now()
	err = f.each(func(i int) error { return f.up(ctx, i, &pods[i]) })
	report.TotalDuration = time.Since(begin)
	if err == nil {
		err = f.look(ctx, pods)
	}
	err = errors.Join(err, f.each(func(i int) error { return f.down(context.WithoutCancel(ctx), pods[i]) }))
	for call, times := range f.times {
		report.Calls[call] = median(times)
	}
	report.StartDuration, report.StopDuration = report.Calls["up"], report.Calls["down"]
	delete(report.Calls, "up")
	delete(report.Calls, "down")
	if err != nil {
		return report, fmt.Errorf("measure the floor: %w", err)
	}
	return report, nil
}

// floorPod is one pod that was made.
type floorPod struct{ sandbox, container string }

// each calls do for each pod, Parallel at a time.
func (f *floor) each(do func(int) error) error {
	errs := make([]error, f.Pods)
	var wg sync.WaitGroup
	next := make(chan int)
	for range f.MaxParallel {
		wg.Go(func() {
			for i := range next {
				errs[i] = do(i)
			}
		})
	}
	for i := range f.Pods {
		next <- i
	}
	close(next)
	wg.Wait()
	return errors.Join(errs...)
}

// time measures a call that succeeds.
func (f *floor) time(call string, do func() error) error {
	begin := time.Now()
	if err := do(); err != nil {
		return fmt.Errorf("%s: %w", call, err)
	}
	took := time.Since(begin)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.times[call] = append(f.times[call], took)
	return nil
}

func (f *floor) up(ctx context.Context, i int, p *floorPod) error {
	name := fmt.Sprintf("%s-%d", f.run, i)
	namespaces := &v1.NamespaceOption{Pid: v1.NamespaceMode_CONTAINER}
	pod := &v1.PodSandboxConfig{
		Metadata: &v1.PodSandboxMetadata{Name: name, Namespace: "sublet-floor", Uid: name}, Hostname: name,
		Linux: &v1.LinuxPodSandboxConfig{SecurityContext: &v1.LinuxSandboxSecurityContext{NamespaceOptions: namespaces}},
	}
	container := &v1.ContainerConfig{
		Metadata: &v1.ContainerMetadata{Name: "c"}, Image: &v1.ImageSpec{Image: f.Image, UserSpecifiedImage: f.Image}, Command: sh(longRunTime),
		Linux: &v1.LinuxContainerConfig{
			Resources:       &v1.LinuxContainerResources{CpuShares: 102, MemoryLimitInBytes: 64 << 20},
			SecurityContext: &v1.LinuxContainerSecurityContext{NamespaceOptions: namespaces},
		},
	}
	if f.LogRoot != "" {
		pod.LogDirectory, container.LogPath = filepath.Join(f.LogRoot, name), "c.log"
		if err := os.MkdirAll(pod.LogDirectory, 0o755); err != nil {
			return err
		}
	}
	if f.EditPod != nil {
		f.EditPod(pod)
	}
	return f.time("up", func() error {
		return errors.Join(f.time("RunPodSandbox", func() error {
			r, err := f.rs.RunPodSandbox(ctx, &v1.RunPodSandboxRequest{Config: pod})
			p.sandbox = r.GetPodSandboxId()
			return err
		}), f.time("CreateContainer", func() error {
			r, err := f.rs.CreateContainer(ctx, &v1.CreateContainerRequest{PodSandboxId: p.sandbox, Config: container, SandboxConfig: pod})
			p.container = r.GetContainerId()
			return err
		}), f.time("StartContainer", func() error {
			_, err := f.rs.StartContainer(ctx, &v1.StartContainerRequest{ContainerId: p.container})
			return err
		}))
	})
}

// look measures the calls that watch over pods.
func (f *floor) look(ctx context.Context, pods []floorPod) error {
	var errs []error
	for _, p := range pods {
		errs = append(errs, f.time("ListPodSandbox", func() error {
			_, err := f.rs.ListPodSandbox(ctx, &v1.ListPodSandboxRequest{})
			return err
		}), f.time("ListContainers", func() error {
			_, err := f.rs.ListContainers(ctx, &v1.ListContainersRequest{})
			return err
		}), f.time("PodSandboxStatus", func() error {
			_, err := f.rs.PodSandboxStatus(ctx, &v1.PodSandboxStatusRequest{PodSandboxId: p.sandbox})
			return err
		}), f.time("ContainerStatus", func() error {
			_, err := f.rs.ContainerStatus(ctx, &v1.ContainerStatusRequest{ContainerId: p.container})
			return err
		}))
	}
	return errors.Join(errs...)
}

func (f *floor) down(ctx context.Context, p floorPod) error {
	if p.sandbox == "" {
		return nil
	}
	return f.time("down", func() error {
		return errors.Join(f.time("StopContainer", func() error {
			if p.container == "" {
				return nil
			}
			_, err := f.rs.StopContainer(ctx, &v1.StopContainerRequest{ContainerId: p.container, Timeout: 10})
			return err
		}), f.time("StopPodSandbox", func() error {
			_, err := f.rs.StopPodSandbox(ctx, &v1.StopPodSandboxRequest{PodSandboxId: p.sandbox})
			return err
		}), f.time("RemovePodSandbox", func() error {
			_, err := f.rs.RemovePodSandbox(ctx, &v1.RemovePodSandboxRequest{PodSandboxId: p.sandbox})
			return err
		}))
	})
}

func median(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)/2]
}

// String is the report as a table.
func (r BaselineReport) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d pods, %d at a time, medians\n", r.Runtime, r.Pods, r.MaxParallel)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(name string, d time.Duration) {
		_, _ = fmt.Fprintf(w, "  %s\t%.2f ms\t\n", name, float64(d)/float64(time.Millisecond))
	}
	for _, call := range []string{
		"RunPodSandbox", "CreateContainer", "StartContainer", "ListPodSandbox", "ListContainers", "PodSandboxStatus", "ContainerStatus",
		"StopContainer", "StopPodSandbox", "RemovePodSandbox",
	} {
		row(call, r.Calls[call])
	}
	row("pod up", r.StartDuration)
	row("pod down", r.StopDuration)
	row("all up", r.TotalDuration)
	_ = w.Flush()
	return b.String()
}
