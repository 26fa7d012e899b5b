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

// BaselineConfig configures MeasureBaseline. Every field is optional.
type BaselineConfig struct {
	Pods        int                        // number of pods. Default: 20
	MaxParallel int                        // number of pods at a time. Default: 1
	Image       string                     // with sh and sleep; pulled if missing. Default: docker.io/library/busybox:1.36
	LogRoot     string                     // directory for container logs. Default: no logs are written
	EditPod     func(*v1.PodSandboxConfig) // called before each pod is created. Default: pods are not changed
}

// BaselineReport has the median duration of each raw call of a pod.
type BaselineReport struct {
	Runtime       string // name and version
	Pods          int
	MaxParallel   int
	Calls         map[string]time.Duration // RunPodSandbox, CreateContainer, StartContainer, ...
	StartDuration time.Duration            // from nothing to a running container
	StopDuration  time.Duration            // from a running container to nothing
	TotalDuration time.Duration            // until the last pod ran
}

// baseline is one measurement in progress.
type baseline struct {
	BaselineConfig
	rs  v1.RuntimeServiceClient
	run string

	mu    sync.Mutex // guards the rest
	times map[string][]time.Duration
}

// MeasureBaseline measures the raw CRI calls that start and stop a pod of one
// container: the least that any agent can take on this runtime. It blocks until all
// pods are removed again.
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
	b := &baseline{BaselineConfig: cfg, rs: v1.NewRuntimeServiceClient(cc), run: fmt.Sprintf("baseline-%08x", rand.Uint32()), times: map[string][]time.Duration{}}
	v, err := b.rs.Version(ctx, &v1.VersionRequest{})
	if err != nil {
		return BaselineReport{}, fmt.Errorf("measure baseline: version: %w", err)
	}
	is := v1.NewImageServiceClient(cc)
	image := &v1.ImageSpec{Image: cfg.Image}
	st, err := is.ImageStatus(ctx, &v1.ImageStatusRequest{Image: image})
	if err == nil && st.GetImage() == nil {
		_, err = is.PullImage(ctx, &v1.PullImageRequest{Image: image})
	}
	if err != nil {
		return BaselineReport{}, fmt.Errorf("measure baseline: image %s: %w", cfg.Image, err)
	}
	report := BaselineReport{
		Runtime: v.GetRuntimeName() + " " + v.GetRuntimeVersion(), Pods: cfg.Pods, MaxParallel: cfg.MaxParallel, Calls: map[string]time.Duration{},
	}
	pods := make([]baselinePod, cfg.Pods)
	startTime := time.Now()
	err = b.each(func(i int) error { return b.up(ctx, i, &pods[i]) })
	report.TotalDuration = time.Since(startTime)
	if err == nil {
		err = b.observe(ctx, pods)
	}
	err = errors.Join(err, b.each(func(i int) error { return b.down(context.WithoutCancel(ctx), pods[i]) }))
	for call, times := range b.times {
		report.Calls[call] = median(times)
	}
	report.StartDuration, report.StopDuration = report.Calls["up"], report.Calls["down"]
	delete(report.Calls, "up")
	delete(report.Calls, "down")
	if err != nil {
		return report, fmt.Errorf("measure baseline: %w", err)
	}
	return report, nil
}

// baselinePod has the ids of one pod.
type baselinePod struct{ sandbox, container string }

// each calls do for each pod, MaxParallel at a time.
func (b *baseline) each(do func(int) error) error {
	errs := make([]error, b.Pods)
	var wg sync.WaitGroup
	next := make(chan int)
	for range b.MaxParallel {
		wg.Go(func() {
			for i := range next {
				errs[i] = do(i)
			}
		})
	}
	for i := range b.Pods {
		next <- i
	}
	close(next)
	wg.Wait()
	return errors.Join(errs...)
}

// time measures a call that succeeds.
func (b *baseline) time(call string, do func() error) error {
	startTime := time.Now()
	if err := do(); err != nil {
		return fmt.Errorf("%s: %w", call, err)
	}
	duration := time.Since(startTime)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.times[call] = append(b.times[call], duration)
	return nil
}

func (b *baseline) up(ctx context.Context, i int, p *baselinePod) error {
	name := fmt.Sprintf("%s-%d", b.run, i)
	namespaces := &v1.NamespaceOption{Pid: v1.NamespaceMode_CONTAINER}
	pod := &v1.PodSandboxConfig{
		Metadata: &v1.PodSandboxMetadata{Name: name, Namespace: "sublet-baseline", Uid: name}, Hostname: name,
		Linux: &v1.LinuxPodSandboxConfig{SecurityContext: &v1.LinuxSandboxSecurityContext{NamespaceOptions: namespaces}},
	}
	container := &v1.ContainerConfig{
		Metadata: &v1.ContainerMetadata{Name: "c"}, Image: &v1.ImageSpec{Image: b.Image, UserSpecifiedImage: b.Image}, Command: sh(longRunTime),
		Linux: &v1.LinuxContainerConfig{
			Resources:       &v1.LinuxContainerResources{CpuShares: 102, MemoryLimitInBytes: 64 << 20},
			SecurityContext: &v1.LinuxContainerSecurityContext{NamespaceOptions: namespaces},
		},
	}
	if b.LogRoot != "" {
		pod.LogDirectory, container.LogPath = filepath.Join(b.LogRoot, name), "c.log"
		if err := os.MkdirAll(pod.LogDirectory, 0o755); err != nil {
			return err
		}
	}
	if b.EditPod != nil {
		b.EditPod(pod)
	}
	return b.time("up", func() error {
		return errors.Join(b.time("RunPodSandbox", func() error {
			r, err := b.rs.RunPodSandbox(ctx, &v1.RunPodSandboxRequest{Config: pod})
			p.sandbox = r.GetPodSandboxId()
			return err
		}), b.time("CreateContainer", func() error {
			r, err := b.rs.CreateContainer(ctx, &v1.CreateContainerRequest{PodSandboxId: p.sandbox, Config: container, SandboxConfig: pod})
			p.container = r.GetContainerId()
			return err
		}), b.time("StartContainer", func() error {
			_, err := b.rs.StartContainer(ctx, &v1.StartContainerRequest{ContainerId: p.container})
			return err
		}))
	})
}

// observe measures the calls that observe pods.
func (b *baseline) observe(ctx context.Context, pods []baselinePod) error {
	var errs []error
	for _, p := range pods {
		errs = append(errs, b.time("ListPodSandbox", func() error {
			_, err := b.rs.ListPodSandbox(ctx, &v1.ListPodSandboxRequest{})
			return err
		}), b.time("ListContainers", func() error {
			_, err := b.rs.ListContainers(ctx, &v1.ListContainersRequest{})
			return err
		}), b.time("PodSandboxStatus", func() error {
			_, err := b.rs.PodSandboxStatus(ctx, &v1.PodSandboxStatusRequest{PodSandboxId: p.sandbox})
			return err
		}), b.time("ContainerStatus", func() error {
			_, err := b.rs.ContainerStatus(ctx, &v1.ContainerStatusRequest{ContainerId: p.container})
			return err
		}))
	}
	return errors.Join(errs...)
}

func (b *baseline) down(ctx context.Context, p baselinePod) error {
	if p.sandbox == "" {
		return nil
	}
	return b.time("down", func() error {
		return errors.Join(b.time("StopContainer", func() error {
			if p.container == "" {
				return nil
			}
			_, err := b.rs.StopContainer(ctx, &v1.StopContainerRequest{ContainerId: p.container, Timeout: 10})
			return err
		}), b.time("StopPodSandbox", func() error {
			_, err := b.rs.StopPodSandbox(ctx, &v1.StopPodSandboxRequest{PodSandboxId: p.sandbox})
			return err
		}), b.time("RemovePodSandbox", func() error {
			_, err := b.rs.RemovePodSandbox(ctx, &v1.RemovePodSandboxRequest{PodSandboxId: p.sandbox})
			return err
		}))
	})
}

func median(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)/2]
}

// String returns the report as a table.
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
