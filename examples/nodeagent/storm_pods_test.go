//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/podspec"
)

const (
	stormRevision = "example.com/revision" // annotation of the pods of a storm
	stormForeign  = "foreign"              // the pod of another
)

// pod is the pod of a name, which begins with its kind.
func (s *storm) pod(name string) *corev1.Pod {
	container := func(name, script string) corev1.Container {
		return corev1.Container{
			Name: name, Image: s.node.Busybox, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"sh", "-c", script},
			Env: []corev1.EnvVar{{Name: "POD_UID", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.uid"}}}},
			VolumeMounts: []corev1.VolumeMount{
				{Name: "share", MountPath: "/share"},
				{Name: "disk", MountPath: "/disk"},
			},
		}
	}
	exec := func(command ...string) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: command}}, PeriodSeconds: 1, TimeoutSeconds: 2, FailureThreshold: 3}
	}
	const untilStopped = "trap 'exit 0' TERM; sleep 3600 & wait"
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{stormRevision: strconv.Itoa(s.pods[name])}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64(2)),
			Volumes: []corev1.Volume{
				{Name: "share", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: s.share}}},
				{Name: "disk", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			},
			Containers: []corev1.Container{container("main", untilStopped)},
		},
	}
	main := &pod.Spec.Containers[0]
	switch kind, _, _ := strings.Cut(name, "-"); kind {
	case "steady":
		main.LivenessProbe = exec("true")
	case "sidecar":
		side := container("side", untilStopped)
		side.RestartPolicy, side.StartupProbe = new(corev1.ContainerRestartPolicyAlways), exec("true")
		pod.Spec.InitContainers = []corev1.Container{container("init", "sleep 0.3"), side}
		main.ReadinessProbe = exec("true")
	case "never":
		pod.Spec.RestartPolicy = corev1.RestartPolicyNever
		*main = container("main", "echo $POD_UID >>/share/"+name+"; sleep 2; exit 7")
	case "onfailure":
		pod.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
		*main = container("main", "echo >>/disk/runs; test $(wc -l </disk/runs) -ge 3")
	case "crash":
		*main = container("main", "sleep 0.5; exit 9")
	case "host":
		pod.Spec.HostNetwork = true
	case "limits":
		main.Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("32Mi")}
	}
	return pod
}

// runForeign runs the pod of another on the runtime.
func (s *storm) runForeign() {
	ctx, cancel := context.WithTimeout(context.Background(), longRunTime)
	defer cancel()
	labels := map[string]string{"io.kubernetes.pod.name": stormForeign, "io.kubernetes.pod.namespace": "default", "io.kubernetes.pod.uid": "foreign-uid"}
	cfg := &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: stormForeign, Namespace: "default", Uid: "foreign-uid"}, LogDirectory: s.t.TempDir(),
		Labels: labels, Linux: &cri.LinuxPodSandboxConfig{CgroupParent: s.node.CgroupParent + "/foreign"},
	}
	sandbox, err := s.rt.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: cfg})
	require.NoError(s.t, err)
	c, err := s.rt.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: sandbox.GetPodSandboxId(), SandboxConfig: cfg, Config: &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: "main"}, Image: &cri.ImageSpec{Image: s.node.Busybox}, Command: []string{"sleep", "3600"}, LogPath: "main.log",
		Labels: labels, Linux: &cri.LinuxContainerConfig{},
	}})
	require.NoError(s.t, err)
	_, err = s.rt.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: c.GetContainerId()})
	require.NoError(s.t, err)
}

// sandboxes returns the ids of the sandboxes by the names of their pods.
func (s *storm) sandboxes() map[string][]string {
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	r, err := s.rt.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	require.NoError(s.t, err)
	ids := map[string][]string{}
	for _, p := range r.GetItems() {
		ids[p.GetMetadata().GetName()] = append(ids[p.GetMetadata().GetName()], p.GetId())
	}
	return ids
}

// pid returns the process of a container or sandbox, or 0.
func (s *storm) pid(id string, isSandbox bool) int {
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	var info map[string]string
	if isSandbox {
		r, _ := s.rt.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true}) // it may be gone
		info = r.GetInfo()
	} else {
		r, _ := s.rt.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id, Verbose: true})
		info = r.GetInfo()
	}
	return pidOf(info)
}

// processes returns, by id, the processes of all sandboxes and containers of the pods whose name begins with one of the prefixes.
func (s *storm) processes(prefixes ...string) map[string]int {
	has := func(pod string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(pod, p) })
	}
	pids := map[string]int{}
	for pod, ids := range s.sandboxes() {
		for _, id := range ids {
			if has(pod) {
				pids[id] = s.pid(id, true)
			}
		}
	}
	have, err := s.containers()
	require.NoError(s.t, err)
	for pod, containers := range have {
		for _, c := range containers {
			if has(pod) {
				pids[c.GetId()] = s.pid(c.GetId(), false)
			}
		}
	}
	return pids
}

// settled returns an error until each pod is what it shall be, as /pods and the runtime say,
// and there is nothing of another pod.
func (s *storm) settled() error {
	_, text, err := s.get("/pods")
	if err != nil {
		return err
	}
	var list corev1.PodList
	if err := json.Unmarshal(text, &list); err != nil {
		return err
	}
	have, err := s.containers()
	if err != nil {
		return err
	}
	if len(list.Items) != len(s.pods) {
		return fmt.Errorf("/pods has %d pods, want %d", len(list.Items), len(s.pods))
	}
	for _, pod := range list.Items {
		name := strings.TrimSuffix(pod.Name, "-node")
		if revision := strconv.Itoa(s.pods[name]); pod.Annotations[stormRevision] != revision {
			return fmt.Errorf("/pods has revision %s of %s, want %s", pod.Annotations[stormRevision], name, revision)
		}
		if err := settledPod(name, &pod, have[pod.Name]); err != nil {
			return err
		}
	}
	for pod := range s.sandboxes() {
		if _, ok := s.pods[strings.TrimSuffix(pod, "-node")]; !ok && pod != stormForeign {
			return fmt.Errorf("a sandbox of %s is left", pod)
		}
	}
	return nil
}

func settledPod(name string, pod *corev1.Pod, containers []*cri.Container) error {
	kind, _, _ := strings.Cut(name, "-")
	want := corev1.PodRunning
	switch kind {
	case "never":
		want = corev1.PodFailed
	case "onfailure":
		want = corev1.PodSucceeded
	}
	if pod.Status.Phase != want {
		return fmt.Errorf("pod %s is %s, want %s: %s %+v %+v", name, pod.Status.Phase, want, pod.Status.Message, pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
	}
	running := map[string]bool{}
	for _, c := range containers {
		running[c.GetId()] = c.GetState() == cri.ContainerState_CONTAINER_RUNNING
	}
	for _, c := range pod.Status.ContainerStatuses {
		_, id, _ := strings.Cut(c.ContainerID, "://")
		switch {
		case c.State.Running != nil && !running[id]:
			return fmt.Errorf("status of %s says that %s runs; the runtime has %v", name, id, containers)
		case podspec.IsTerminalPhase(want) && c.State.Terminated == nil, !podspec.IsTerminalPhase(want) && kind != "crash" && c.State.Running == nil:
			return fmt.Errorf("container %s of %s: %+v", c.Name, name, c.State)
		}
	}
	return nil
}

// left returns an error while there is something of the agent's pods.
func (s *storm) left() error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for pod, ids := range s.sandboxes() {
		if pod != stormForeign {
			add("sandboxes of %s: %v", pod, ids)
		}
	}
	have, err := s.containers()
	if err != nil {
		return err
	}
	for pod, containers := range have {
		if pod != stormForeign {
			add("containers of %s: %v", pod, containers)
		}
	}
	for _, m := range s.node.Mounts() {
		if strings.HasPrefix(m, s.root+"/") {
			add("mount %s", m)
		}
	}
	for _, c := range s.node.Cgroups() {
		if strings.HasPrefix(filepath.Base(c), "pod") {
			add("cgroup %s", c)
		}
	}
	// An agent that is killed before it has marked a log directory, or after it has removed the mark, leaves it empty: it may be
	// another's then.
	for _, pattern := range []string{s.root + "/pods/*", s.logs + "/*/*", s.statuses + "/*"} {
		if files, _ := filepath.Glob(pattern); len(files) > 0 { // the pattern is well-formed
			add("files %v", files)
		}
	}
	return errors.Join(errs...)
}
