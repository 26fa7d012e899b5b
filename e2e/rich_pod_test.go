//go:build linux

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// BenchmarkRichPod starts a pod with two init containers, a sidecar, three containers, a volume of each kind and probes, and deletes
// it; alternately with the agent, until every container runs, and with the raw calls that the agent made for it. The figures are medians
// of several pods, and the ratios those of each pod and its calls. It needs root, for a volume in memory.
func BenchmarkRichPod(b *testing.B) {
	eachRuntime(b, func(b *testing.B, r *benchEnv) {
		r.tap.eventful = true
		var rawUp, rawDown, up, down []time.Duration
		var slower, slowerDown []float64 // time of the agent / that of the raw calls just after
		for b.Loop() {
			for range richPods {
				l := r.settled(b)
				l.SetObjects(
					podspec.Object{Ref: podspec.Ref{Kind: podspec.ConfigMap, Namespace: "default", Name: "settings"}, Data: map[string][]byte{"color": []byte("blue")}, Version: "1"},
					podspec.Object{Ref: podspec.Ref{Kind: podspec.Secret, Namespace: "default", Name: "key"}, Data: map[string][]byte{"key": []byte("secret")}, Version: "1"},
				)
				r.tap.record(true)
				took := l.up(b, r.richPod("rich"))[0]
				raw := r.rawRichPod(b, r.tap.record(false))
				time.Sleep(readySignals)
				tookDown := l.down(b, 1)[0]
				l.stop()
				r.empty(b)
				raw.makeFiles(b)
				rawTook := timed(b, raw.up)
				time.Sleep(readySignals)
				rawTookDown := timed(b, raw.down)
				up, down, rawUp, rawDown = append(up, took), append(down, tookDown), append(rawUp, rawTook), append(rawDown, rawTookDown)
				slower = append(slower, float64(took)/float64(rawTook))
				slowerDown = append(slowerDown, float64(tookDown)/float64(rawTookDown))
			}
		}
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(ms(median(rawUp)), "raw-ms")
		b.ReportMetric(ms(median(up)), "agent-ms")
		b.ReportMetric(median(slower), "agent/raw")
		b.ReportMetric(ms(median(rawDown)), "raw-down-ms")
		b.ReportMetric(ms(median(down)), "agent-down-ms")
		b.ReportMetric(median(slowerDown), "agent-down/raw")
	})
}

// richPods is how many pods one iteration starts, one after the other: a single one says little on a machine that others share.
const richPods = 5

// readySignals is how long programs take until they handle SIGTERM.
const readySignals = time.Second

func timed(b *testing.B, do func(context.Context) error) time.Duration {
	ctx, cancel := context.WithTimeout(b.Context(), testTimeout)
	defer cancel()
	began := time.Now()
	require.NoError(b, do(ctx))
	return time.Since(began)
}

// richPod has what pods of users have.
func (r *benchEnv) richPod(name string) *corev1.Pod {
	p := r.pod(name)
	main := p.Spec.Containers[0]
	container := func(name string, command ...string) corev1.Container {
		c := *main.DeepCopy()
		c.Name = name
		if len(command) > 0 {
			c.Command = command
		}
		for _, v := range []string{"scratch", "memory", "host", "settings", "key", "about", "all"} {
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: v, MountPath: "/" + v})
		}
		return c
	}
	always := corev1.ContainerRestartPolicyAlways
	sidecar := container("sidecar")
	sidecar.RestartPolicy = &always
	p.Spec.InitContainers = []corev1.Container{container("init-1", "true"), container("init-2", "true"), sidecar}
	p.Spec.Containers = []corev1.Container{container("a"), container("b"), container("c")}
	p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(80)}},
	}
	p.Spec.Containers[1].LivenessProbe = &corev1.Probe{
		InitialDelaySeconds: 5, ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}},
	}
	labels := []corev1.DownwardAPIVolumeFile{{Path: "name", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}
	settings := corev1.LocalObjectReference{Name: "settings"}
	p.Spec.Volumes = []corev1.Volume{
		{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: "memory", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}},
		{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: r.root}}},
		{Name: "settings", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: settings}}},
		{Name: "key", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "key"}}},
		{Name: "about", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: labels}}},
		{Name: "all", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: settings}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: labels}},
		}}}},
	}
	return p
}

// rawRichPod is a pod of several containers, made by the calls that an agent made for the same pod.
type rawRichPod struct {
	rt         cri.RuntimeServiceClient
	sandbox    *cri.RunPodSandboxRequest
	containers []*cri.CreateContainerRequest
	mounts     map[string]bool // whether what is mounted is a directory, by path
	sandboxID  string
	ids        []string
}

// rawRichPod prepares a pod from recorded requests, with other names. The agent's pod must run, because its files are mounted.
func (r *benchEnv) rawRichPod(b *testing.B, requests []proto.Message) *rawRichPod {
	b.Helper()
	p := &rawRichPod{rt: cri.NewRuntimeServiceClient(r.cc), mounts: map[string]bool{}}
	for _, req := range requests {
		switch q := proto.Clone(req).(type) {
		case *cri.RunPodSandboxRequest:
			p.sandbox = q
		case *cri.CreateContainerRequest:
			p.containers = append(p.containers, q)
		}
	}
	require.NotNil(b, p.sandbox)
	require.Len(b, p.containers, 6)
	m := p.sandbox.GetConfig().GetMetadata()
	rename := strings.NewReplacer(m.GetUid(), "raw-rich", m.GetName(), "raw-rich").Replace
	m.Name, m.Uid = "raw-rich", "raw-rich"
	p.sandbox.Config.LogDirectory = rename(p.sandbox.GetConfig().GetLogDirectory())
	p.sandbox.Config.Linux.CgroupParent = rename(p.sandbox.GetConfig().GetLinux().GetCgroupParent())
	delete(p.sandbox.Config.Labels, runtime.LabelPodUID)
	for _, c := range p.containers {
		delete(c.Config.Labels, runtime.LabelPodUID)
		c.SandboxConfig = p.sandbox.Config
		for _, v := range c.GetConfig().GetMounts() {
			info, err := os.Stat(v.GetHostPath())
			require.NoError(b, err)
			v.HostPath = rename(v.GetHostPath())
			p.mounts[v.GetHostPath()] = info.IsDir()
		}
	}
	return p
}

// makeFiles makes directories and files for logs and for what is mounted. An agent that runs would remove them, because it has no such pod.
func (p *rawRichPod) makeFiles(b *testing.B) {
	b.Helper()
	for _, c := range p.containers {
		log := filepath.Join(p.sandbox.GetConfig().GetLogDirectory(), c.GetConfig().GetLogPath())
		require.NoError(b, os.MkdirAll(filepath.Dir(log), 0o755))
	}
	for path, isDir := range p.mounts {
		if isDir {
			require.NoError(b, os.MkdirAll(path, 0o755))
			continue
		}
		require.NoError(b, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(b, os.WriteFile(path, nil, 0o666))
	}
}

// up makes and starts everything in order; an init container must have exited before the next container is created.
func (p *rawRichPod) up(ctx context.Context) error {
	s, err := p.rt.RunPodSandbox(ctx, p.sandbox)
	if err != nil {
		return err
	}
	p.sandboxID, p.ids = s.GetPodSandboxId(), nil
	for _, q := range p.containers {
		q.PodSandboxId = p.sandboxID
		c, err := p.rt.CreateContainer(ctx, q)
		if err != nil {
			return err
		}
		p.ids = append(p.ids, c.GetContainerId())
		if _, err := p.rt.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: c.GetContainerId()}); err != nil {
			return err
		}
		if strings.HasPrefix(q.GetConfig().GetMetadata().GetName(), "init-") {
			if err := p.awaitExit(ctx, c.GetContainerId()); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *rawRichPod) awaitExit(ctx context.Context, id string) error {
	for {
		st, err := p.rt.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id})
		if err != nil {
			return err
		}
		if s := st.GetStatus(); s.GetState() == cri.ContainerState_CONTAINER_EXITED {
			if s.GetExitCode() != 0 {
				return fmt.Errorf("init container %s exited with %d", id, s.GetExitCode())
			}
			return nil
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// down stops regular containers at once, then the sidecar, and removes everything.
func (p *rawRichPod) down(ctx context.Context) error {
	stop := func(id string) error {
		_, err := p.rt.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: id, Timeout: 30})
		return err
	}
	errs := make(chan error)
	for _, id := range p.ids[3:] {
		go func() { errs <- stop(id) }()
	}
	all := errors.Join(<-errs, <-errs, <-errs, stop(p.ids[2]))
	for _, id := range p.ids {
		_, err := p.rt.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: id})
		all = errors.Join(all, err)
	}
	_, err1 := p.rt.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: p.sandboxID})
	_, err2 := p.rt.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: p.sandboxID})
	return errors.Join(all, err1, err2)
}
