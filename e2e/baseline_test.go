//go:build linux

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/containerdtest"
	"github.com/sublet-dev/agent/runtime"
)

// rawPod is the same pod as the agent's, made by nothing but the calls that
// cannot be done without.
type rawPod struct {
	rt        cri.RuntimeServiceClient
	sandbox   *cri.RunPodSandboxRequest
	container *cri.CreateContainerRequest
}

// raw makes ready what pods need that are to be what the agent's last one was:
// requests that differ in names only, and the files that are mounted. No agent
// should run meanwhile: it would hear of these pods.
func (r *benchEnv) raw(t testing.TB, n int) []*rawPod {
	t.Helper()
	r.tap.mu.Lock()
	sandbox, container := r.tap.sandbox, r.tap.container
	r.tap.mu.Unlock()
	require.NotNil(t, container, "an agent has started a pod")
	pods := make([]*rawPod, n)
	for i := range pods {
		p := &rawPod{rt: cri.NewRuntimeServiceClient(r.cc), sandbox: proto.CloneOf(sandbox), container: proto.CloneOf(container)}
		name := fmt.Sprint("raw-", i)
		m := p.sandbox.GetConfig().GetMetadata()
		rename := strings.NewReplacer(m.GetUid(), name, m.GetName(), name).Replace
		m.Name, m.Uid = name, name
		p.sandbox.Config.LogDirectory = rename(p.sandbox.GetConfig().GetLogDirectory())
		p.sandbox.Config.Linux.CgroupParent = rename(p.sandbox.GetConfig().GetLinux().GetCgroupParent())
		if parent := p.sandbox.GetConfig().GetLinux().GetCgroupParent(); parent != "" { // the runtime is to make it, as the agent does for each pod
			containerdtest.RemoveCgroups(parent)
		}
		delete(p.sandbox.Config.Labels, runtime.LabelPodUID)
		delete(p.container.Config.Labels, runtime.LabelPodUID) // the next agent must not take it for one of its own
		p.container.SandboxConfig = p.sandbox.Config
		logs := filepath.Join(p.sandbox.GetConfig().GetLogDirectory(), p.container.GetConfig().GetLogPath())
		require.NoError(t, os.MkdirAll(filepath.Dir(logs), 0o755))
		for _, v := range p.container.GetConfig().GetMounts() {
			v.HostPath = rename(v.GetHostPath())
			require.True(t, strings.HasPrefix(v.GetHostPath(), r.root), "%s is a mount of the pod's own", v.GetHostPath())
			require.NoError(t, os.MkdirAll(filepath.Dir(v.GetHostPath()), 0o755))
			require.NoError(t, os.WriteFile(v.GetHostPath(), nil, 0o666))
		}
		pods[i] = p
	}
	return pods
}

// up makes three calls.
func (p *rawPod) up(ctx context.Context) error {
	s, err := p.rt.RunPodSandbox(ctx, p.sandbox)
	if err != nil {
		return err
	}
	p.container.PodSandboxId = s.GetPodSandboxId()
	c, err := p.rt.CreateContainer(ctx, p.container)
	if err != nil {
		return err
	}
	p.container.Config.Annotations = map[string]string{"id": c.GetContainerId()}
	_, err = p.rt.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: c.GetContainerId()})
	return err
}

// down makes four.
func (p *rawPod) down(ctx context.Context) error {
	id, sandbox := p.container.GetConfig().GetAnnotations()["id"], p.container.GetPodSandboxId()
	_, err1 := p.rt.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: id, Timeout: 30})
	_, err2 := p.rt.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: id})
	_, err3 := p.rt.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: sandbox})
	_, err4 := p.rt.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: sandbox})
	return errors.Join(err1, err2, err3, err4)
}

// each does something with all pods, so many at a time, and returns how long
// that took.
func each(t testing.TB, pods []*rawPod, atOnce int, do func(*rawPod, context.Context) error) time.Duration {
	t.Helper()
	_, took := firstAndAll(t, pods, atOnce, do)
	return took
}

// firstAndAll is each, and also returns how long the first pod took.
func firstAndAll(t testing.TB, pods []*rawPod, atOnce int, do func(*rawPod, context.Context) error) (first, all time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	todo := make(chan *rawPod, len(pods))
	for _, p := range pods {
		todo <- p
	}
	close(todo)
	errs := make(chan error, len(pods))
	var once sync.Once
	var wg sync.WaitGroup
	began := time.Now()
	for range atOnce {
		wg.Go(func() {
			for p := range todo {
				errs <- do(p, ctx)
				once.Do(func() { first = time.Since(began) })
			}
		})
	}
	wg.Wait()
	all = time.Since(began)
	for range pods {
		require.NoError(t, <-errs)
	}
	return first, all
}
