package doctest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/logrotate"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/prom"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/server"
	"github.com/sublet-dev/agent/status"
)

// minimal is the smallest agent with containers.
func minimal(ctx context.Context, endpoint, root, manifests string) error {
	a, err := agent.New(
		agent.WithRuntimeEndpoint(endpoint), // unix:///run/containerd/containerd.sock
		agent.WithRootDir(root),             // /var/lib/edge
		agent.WithSource("file", podsource.File(manifests)),
	)
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

// Queue is a source of pods that arrive as messages, each with the complete desired set.
type Queue struct {
	Messages <-chan []byte
}

// Watch implements podsource.Source.
func (q Queue) Watch(ctx context.Context, deliver func(podsource.Set)) error {
	last := podsource.Set{Incomplete: true} // nothing is known yet, which is not the same as no pods
	for {
		select {
		case <-ctx.Done():
			return nil
		case message := <-q.Messages:
			pods, objects, err := podspec.Decode(message, podspec.DecodeOptions{})
			if err != nil { // the last valid set stays, and the error is reported
				failed := last
				failed.Errors = []podsource.SourceError{{Location: "queue", Err: err}}
				deliver(failed)
				continue
			}
			last = podsource.Set{Objects: objects}
			for _, pod := range pods {
				last.Pods = append(last.Pods, podsource.Manifest{Pod: pod, Origin: "queue"})
			}
			deliver(last)
		}
	}
}

// sourceOptions are a source with a cache and a sink.
func sourceOptions(src podsource.Source, root string, send func(context.Context, *corev1.Pod, corev1.PodStatus) error) []agent.Option {
	return []agent.Option{
		agent.WithSource("queue", podsource.Cached(src, filepath.Join(root, "sources", "queue"))),
		agent.WithStatusSink(status.SinkFunc(send)), // an error is retried, with back-off
	}
}

// Registry rejects pods with images of other registries.
type Registry string

// Admit implements syncloop.Admitter. It is called from the sync loop and does no I/O.
func (r Registry) Admit(pod *corev1.Pod, _ []*corev1.Pod) podspec.AdmitResult {
	for c := range podspec.Containers(pod) {
		if !strings.HasPrefix(c.Image, string(r)+"/") {
			return podspec.Rejected("ForbiddenRegistry", fmt.Sprintf("container %s: images must be from %s", c.Name, r))
		}
	}
	return podspec.Admitted()
}

// MainsPower lets pods run only while the machine has mains power.
type MainsPower struct {
	File string // /sys/class/power_supply/AC/online
}

// Admit implements podsync.SoftAdmitter. It is called from the worker of the pod.
func (m MainsPower) Admit(context.Context, *corev1.Pod) (podspec.AdmitResult, error) {
	online, err := os.ReadFile(m.File)
	if err != nil {
		return podspec.AdmitResult{}, err // no pod starts, none is stopped
	}
	if strings.TrimSpace(string(online)) != "1" {
		return podspec.Rejected("OnBattery", "the machine has no mains power"), nil
	}
	return podspec.Admitted(), nil
}

// admitters are the options of both.
func admitters() []agent.Option {
	return []agent.Option{
		agent.WithAdmitter(Registry("registry.example")),
		agent.WithSoftAdmitter(MainsPower{File: "/sys/class/power_supply/AC/online"}),
	}
}

// HostCerts mounts the CA certificates of the machine into every container of a source.
type HostCerts struct{ podsource.Source }

// Unwrap has podsource ask the source itself whether its pods are static.
func (h HostCerts) Unwrap() podsource.Source { return h.Source }

// Watch implements podsource.Source.
func (h HostCerts) Watch(ctx context.Context, deliver func(podsource.Set)) error {
	const name, dir = "host-certs", "/etc/ssl/certs"
	return h.Source.Watch(ctx, func(set podsource.Set) {
		set.Pods = slices.Clone(set.Pods) // a Set is read-only, and so are its pods
		for i := range set.Pods {
			pod := set.Pods[i].Pod.DeepCopy()
			pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: dir},
			}})
			for c := range podspec.Containers(pod) {
				c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: dir, ReadOnly: true})
			}
			set.Pods[i].Pod = pod
		}
		deliver(set)
	})
}

// SerialPort gives the containers of pods with a label the serial port of the machine.
type SerialPort struct{}

// Inject implements podsync.Injector.
func (SerialPort) Inject(_ context.Context, pod *corev1.Pod, _ *corev1.Container, _ bool) (runtime.Injection, error) {
	if pod.Labels["example.com/serial"] != "true" {
		return runtime.Injection{}, nil
	}
	return runtime.Injection{Devices: []runtime.InjectedDevice{{HostPath: "/dev/ttyUSB0", ContainerPath: "/dev/ttyUSB0", Permissions: "rw"}}}, nil
}

// realtime asks the runtime for what no field of a pod asks for.
func realtime(ctx context.Context, method string, req, resp any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if create, ok := req.(*criv1.CreateContainerRequest); ok && create.GetSandboxConfig().GetLabels()["example.com/realtime"] == "true" {
		create = proto.CloneOf(create)
		create.Config.Linux.Resources.Unified = map[string]string{"cpu.idle": "0"}
		req = create
	}
	return invoke(ctx, method, req, resp, cc, opts...)
}

// withClient connects to the runtime through realtime.
func withClient(endpoint, root string, log *slog.Logger, events agent.Recorder) (agent.Option, error) {
	cc, err := cri.Dial(endpoint, grpc.WithUnaryInterceptor(realtime))
	if err != nil {
		return nil, err
	}
	client, err := cri.New(cc, cri.Config{ // what WithRuntimeEndpoint would set
		Node: cri.DetectNode(os.DirFS("/")), Logger: log, Recorder: events,
		ImageAccess: cri.ImageAccess{File: filepath.Join(root, "pulled-images.json")},
	})
	if err != nil {
		return nil, err
	}
	return agent.WithRuntime(client), nil
}

// imageOptions are about images.
func imageOptions() []agent.Option {
	return []agent.Option{
		agent.WithConfig(cri.Config{
			ImageAccess: cri.ImageAccess{Policy: cri.AlwaysVerify},
			Pulls:       cri.PullLimits{MaxParallel: 1}, // one at a time on a slow line
		}),
	}
}

// diskOptions keep the disk from filling up.
func diskOptions() []agent.Option {
	return []agent.Option{
		agent.WithConfig(imagegc.Config{Policy: imagegc.Policy{MaxAge: 30 * 24 * time.Hour}}),
		agent.WithConfig(logrotate.Config{MaxSize: 5 << 20, MaxFiles: 3}),
		agent.WithConfig(eviction.Config{}), // the kubelet's thresholds
	}
}

// observed returns an agent with metrics, and a server of its health and metrics.
func observed(opts ...agent.Option) (*agent.Agent, *server.Server, error) {
	reg := prometheus.NewRegistry()
	m, err := prom.New(reg)
	if err != nil {
		return nil, nil, err
	}
	a, err := agent.New(append(opts, agent.WithHooks(agent.Hooks{
		Sources: m.Sources(), SyncLoop: m.SyncLoop(), PodManager: m.PodManager(), Housekeeper: m.Housekeeper(), PodWorkers: m.PodWorkers(),
		PLEG: m.PLEG(), Status: m.Status(), Probe: m.Probe(), Eviction: m.Eviction(), ImageGC: m.ImageGC(), ContainerGC: m.ContainerGC(),
		LogRotation: m.LogRotation(), CRI: cri.Hooks{Call: m.RuntimeCall},
	}))...)
	if err != nil {
		return nil, nil, err
	}
	problems := prom.Problems{SourceErrors: a.SourceErrors, InspectionErrors: a.InspectionErrors, RejectedPods: func() int { return len(a.PodProblems()) }}
	if err := errors.Join(prom.RegisterPods(reg, a.Pods), prom.RegisterProblems(reg, problems)); err != nil {
		return nil, nil, err
	}
	srv, err := server.New(server.Config{
		Addr: "127.0.0.1:10255", Pods: a.Pods,
		Checks:   []server.HealthCheck{{Name: "syncloop", Check: a.Healthy}},
		Handlers: map[string]http.Handler{"/metrics": promhttp.HandlerFor(reg, promhttp.HandlerOpts{})},
	})
	return a, srv, err
}

// runBoth runs the agent and its server. The server ends last, so that it serves while pods are drained.
func runBoth(ctx context.Context, a *agent.Agent, srv *server.Server) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	served := make(chan error, 1)
	go func() {
		served <- srv.Run(serving)
		stop() // an address in use ends the agent, too
	}()
	err := a.Run(ctx)
	stopServing()
	return errors.Join(err, <-served)
}

// slowMounts reports the volumes of a pod that take long to mount.
type slowMounts struct {
	agent.Volumes
	log *slog.Logger
}

func (s slowMounts) Mount(ctx context.Context, pod *corev1.Pod, objects podspec.Objects) (map[string]runtime.Volume, error) {
	start := time.Now()
	mounted, err := s.Volumes.Mount(ctx, pod, objects)
	if d := time.Since(start); d > time.Second {
		s.log.Warn("volumes mounted slowly", slog.String("pod", pod.Namespace+"/"+pod.Name), slog.Duration("duration", d))
	}
	return mounted, err
}

// replaced decorates the volume manager.
func replaced() agent.Option {
	return agent.WithVolumes(func(c *agent.Components) (agent.Volumes, error) {
		volumes, err := agent.NewVolumes(c)
		return slowMounts{volumes, c.Logger}, err
	})
}

// drain terminates all pods when the agent stops.
func drain() agent.Option {
	return agent.WithConfig(podworkers.DrainConfig{Timeout: 25 * time.Second})
}
