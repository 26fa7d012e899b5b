package runtimetest

import (
	"maps"
	"os"
	"path/filepath"
	"time"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// runLabel marks all pods of one run.
const runLabel = "sublet.dev/runtimetest"

// Commands that both executors of the embedded runtime and every busybox understand.
const (
	longRunTime = "trap 'exit 0' TERM; " + untilStopped // exits with 0 at SIGTERM
	ignoresTERM = "trap '' TERM; " + untilStopped       // ends only by SIGKILL

	// untilStopped waits for a signal. It exits with 99 if what it waits for has ended without one, as
	// after a failed fork, so that this cannot be taken for the end of the container by a signal.
	untilStopped = "sleep 1000 & wait; exit 99"
)

func sh(script string) []string { return []string{"sh", "-c", script} }

// pod is a sandbox of a case.
type pod struct {
	c   *CaseT
	id  string
	cfg *v1.PodSandboxConfig
}

type (
	podEdit       = func(*v1.PodSandboxConfig)
	containerEdit = func(*v1.ContainerConfig)
)

func (c *CaseT) logDir(pod string) string { return filepath.Join(c.s.logs, c.ns, pod) }

// podConfig returns the configuration of a pod as a kubelet writes it.
func (c *CaseT) podConfig(name string, edits ...podEdit) *v1.PodSandboxConfig {
	cfg := &v1.PodSandboxConfig{
		Metadata:     &v1.PodSandboxMetadata{Name: name, Namespace: c.ns, Uid: c.ns + "-" + name},
		Hostname:     name,
		LogDirectory: c.logDir(name),
		Labels: map[string]string{
			runLabel: c.s.id, "io.kubernetes.pod.name": name, "io.kubernetes.pod.namespace": c.ns, "io.kubernetes.pod.uid": c.ns + "-" + name,
		},
		Annotations: map[string]string{"kubernetes.io/config.source": "runtimetest"},
		Linux: &v1.LinuxPodSandboxConfig{SecurityContext: &v1.LinuxSandboxSecurityContext{
			NamespaceOptions: &v1.NamespaceOption{Pid: v1.NamespaceMode_CONTAINER},
		}},
	}
	if c.s.edit != nil {
		c.s.edit(cfg)
	}
	for _, e := range edits {
		e(cfg)
	}
	return cfg
}

// makeLogDir makes a directory for logs, as kubelets do: a runtime may rely on it. Where the user of the suite may not
// make it the runtime may.
func makeLogDir(logs, below string) {
	if logs != "" {
		_ = os.MkdirAll(filepath.Join(logs, below), 0o755) //nolint:gosec // the runtime may be another user
	}
}

// runConfig runs a pod of a configuration.
func (c *CaseT) runConfig(cfg *v1.PodSandboxConfig) (*pod, error) {
	return c.runHandler(cfg, "")
}

// runHandler runs a pod of a configuration with a runtime handler.
func (c *CaseT) runHandler(cfg *v1.PodSandboxConfig, handler string) (*pod, error) {
	start := time.Now()
	makeLogDir(cfg.GetLogDirectory(), "")
	r, err := c.rs.RunPodSandbox(c.ctx, &v1.RunPodSandboxRequest{Config: cfg, RuntimeHandler: handler})
	if err == nil {
		c.took(time.Since(start))
		c.remember(r.GetPodSandboxId())
	}
	return &pod{c, r.GetPodSandboxId(), cfg}, err
}

// pod runs a pod, or ends the case.
func (c *CaseT) pod(name string, edits ...podEdit) *pod {
	p, err := c.runConfig(c.podConfig(name, edits...))
	c.ok(err, "run pod "+name)
	return p
}

func hostNetwork(cfg *v1.PodSandboxConfig) {
	cfg.Hostname = ""
	cfg.Linux.SecurityContext.NamespaceOptions.Network = v1.NamespaceMode_NODE
}

// attempt sets the attempt of the pod.
func attempt(n uint32) podEdit { return func(cfg *v1.PodSandboxConfig) { cfg.Metadata.Attempt = n } }

// withAttempt sets the attempt of the container, and a log of its own.
func withAttempt(n uint32) containerEdit {
	return func(cfg *v1.ContainerConfig) {
		cfg.Metadata.Attempt = n
		cfg.LogPath = filepath.Join(cfg.Metadata.Name, string('0'+rune(n))+".log")
	}
}

func annotate(pairs map[string]string) containerEdit {
	return func(cfg *v1.ContainerConfig) { maps.Copy(cfg.Annotations, pairs) }
}

// containerConfig returns the configuration of a container as a kubelet writes it.
func (p *pod) containerConfig(name string, cmd []string, edits ...containerEdit) *v1.ContainerConfig {
	cfg := &v1.ContainerConfig{
		Metadata: &v1.ContainerMetadata{Name: name},
		Image:    &v1.ImageSpec{Image: p.c.s.image, UserSpecifiedImage: p.c.s.image},
		Command:  cmd,
		LogPath:  filepath.Join(name, "0.log"),
		Labels: map[string]string{
			runLabel: p.c.s.id, "io.kubernetes.container.name": name, "io.kubernetes.pod.uid": p.cfg.GetMetadata().GetUid(),
		},
		Annotations: map[string]string{"io.kubernetes.container.restartCount": "0"},
		Linux: &v1.LinuxContainerConfig{
			Resources: &v1.LinuxContainerResources{CpuShares: 2},
			SecurityContext: &v1.LinuxContainerSecurityContext{
				NamespaceOptions: p.cfg.GetLinux().GetSecurityContext().GetNamespaceOptions(),
			},
		},
	}
	for _, e := range edits {
		e(cfg)
	}
	return cfg
}

func (p *pod) createConfig(cfg *v1.ContainerConfig) (string, error) {
	makeLogDir(p.cfg.GetLogDirectory(), filepath.Dir(cfg.GetLogPath()))
	r, err := p.c.rs.CreateContainer(p.c.ctx, &v1.CreateContainerRequest{PodSandboxId: p.id, Config: cfg, SandboxConfig: p.cfg})
	return r.GetContainerId(), err
}

// tryStart creates and starts a container of a configuration.
func (p *pod) tryStart(cfg *v1.ContainerConfig) error {
	id, err := p.createConfig(cfg)
	if err != nil {
		return err
	}
	return p.c.start(id)
}

// create creates a container, or ends the case.
func (p *pod) create(name string, cmd []string, edits ...containerEdit) string {
	id, err := p.createConfig(p.containerConfig(name, cmd, edits...))
	p.c.ok(err, "create container "+name)
	return id
}

// start creates and starts a container that runs a shell script, or ends the case.
func (p *pod) start(name, script string, edits ...containerEdit) string {
	id := p.create(name, sh(script), edits...)
	p.c.ok(p.c.start(id), "start container "+name)
	return id
}

func (p *pod) stop() error {
	_, err := p.c.rs.StopPodSandbox(p.c.ctx, &v1.StopPodSandboxRequest{PodSandboxId: p.id})
	return err
}

func (p *pod) remove() error {
	_, err := p.c.rs.RemovePodSandbox(p.c.ctx, &v1.RemovePodSandboxRequest{PodSandboxId: p.id})
	return err
}

// status returns the pod's status, or ends the case.
func (p *pod) status() *v1.PodSandboxStatus {
	r, err := p.c.rs.PodSandboxStatus(p.c.ctx, &v1.PodSandboxStatusRequest{PodSandboxId: p.id})
	p.c.ok(err, "status of pod "+p.cfg.GetMetadata().GetName())
	return r.GetStatus()
}

func (c *CaseT) start(id string) error {
	_, err := c.rs.StartContainer(c.ctx, &v1.StartContainerRequest{ContainerId: id})
	return err
}

func (c *CaseT) stop(id string, grace int64) error {
	_, err := c.rs.StopContainer(c.ctx, &v1.StopContainerRequest{ContainerId: id, Timeout: grace})
	return err
}

func (c *CaseT) remove(id string) error {
	_, err := c.rs.RemoveContainer(c.ctx, &v1.RemoveContainerRequest{ContainerId: id})
	return err
}

// status returns a container's status, or ends the case.
func (c *CaseT) status(id string) *v1.ContainerStatus {
	r, err := c.rs.ContainerStatus(c.ctx, &v1.ContainerStatusRequest{ContainerId: id})
	c.ok(err, "status of container")
	return r.GetStatus()
}

// exited waits until a container has exited and returns its status.
func (c *CaseT) exited(id string) *v1.ContainerStatus {
	var st *v1.ContainerStatus
	c.until(20*time.Second, "the exit of the container", func() bool {
		st = c.status(id)
		return st.GetState() == v1.ContainerState_CONTAINER_EXITED
	})
	return st
}

// execTimeout is in seconds: what a command gets that is to end by itself.
const execTimeout = 60

// exec runs a command in a container.
func (c *CaseT) exec(id string, timeout int64, cmd ...string) (*v1.ExecSyncResponse, error) {
	return c.rs.ExecSync(c.ctx, &v1.ExecSyncRequest{ContainerId: id, Cmd: cmd, Timeout: timeout})
}

// pods lists the pods of the case.
func (c *CaseT) pods(f *v1.PodSandboxFilter) []*v1.PodSandbox {
	r, err := c.rs.ListPodSandbox(c.ctx, &v1.ListPodSandboxRequest{Filter: f})
	c.ok(err, "list pods")
	var own []*v1.PodSandbox
	for _, p := range r.GetItems() {
		if p.GetMetadata().GetNamespace() == c.ns {
			own = append(own, p)
		}
	}
	return own
}

// listed returns the pod as it is listed by its id, or ends the case.
func (p *pod) listed() *v1.PodSandbox {
	list := p.c.pods(&v1.PodSandboxFilter{Id: p.id})
	if len(list) != 1 {
		p.c.fatal("ListPodSandbox with the id of a pod returns %d pods of its namespace, want that one", len(list))
	}
	return list[0]
}

// listed returns a container as it is listed by its id, or ends the case.
func (c *CaseT) listed(id string) *v1.Container {
	list := c.containers(&v1.ContainerFilter{Id: id})
	if len(list) != 1 {
		c.fatal("ListContainers with the id of a container returns %d containers, want that one", len(list))
	}
	return list[0]
}

// containers lists containers.
func (c *CaseT) containers(f *v1.ContainerFilter) []*v1.Container {
	r, err := c.rs.ListContainers(c.ctx, &v1.ListContainersRequest{Filter: f})
	c.ok(err, "list containers")
	return r.GetContainers()
}

// ids returns the ids of containers.
func ids(list []*v1.Container) []string {
	var out []string
	for _, c := range list {
		out = append(out, c.GetId())
	}
	return out
}
