//go:build linux

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// RT-7
func ephemeralContainer(p *pod) {
	v := p.until(func(v *corev1.Pod) error {
		if all := v.Status.EphemeralContainerStatuses; len(all) != 1 || all[0].State.Terminated == nil {
			return fmt.Errorf("the debugger has not ended: %v", all)
		}
		return nil
	})
	require.Equal(p.t, int32(4), v.Status.EphemeralContainerStatuses[0].State.Terminated.ExitCode)
	require.NotEmpty(p.t, p.log("debugger", 0), "it saw the other's process")
	v = p.runs()
	require.Zero(p.t, v.Status.EphemeralContainerStatuses[0].RestartCount)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.news {
		failed := e.InvolvedObject.Name == p.name+"-"+nodeName && e.Reason == "Failed"
		require.False(p.t, failed, "it waits for its target instead of failing: %s", e.Message)
	}
}

// RT-11: only newer runtimes have image volumes.
func imageVolume(p *pod) {
	if strings.HasPrefix(p.node.Name, "containerd-1") {
		why := p.waits("main", "CreateContainerConfigError")
		require.Contains(p.t, why.Message, "spec.volumes[0].image: containerd 1.6")
		return
	}
	p.runs()
	p.says("main", "ls /files/bin/busybox", "/files/bin/busybox")
	_, code, err := p.sh("main", "touch /files/mine")
	require.NoError(p.t, err)
	require.NotZero(p.t, code, "an image is never written to")
}

func nodeSelector(p *pod) {
	require.Equal(p.t, "NodeAffinity", p.ends(corev1.PodFailed).Status.Reason)
	p.neverWas()
}

// What FIELDS.md in podspec calls refused is, all of it at once.
func needsServer(p *pod) {
	want := []string{
		"spec.serviceAccountName", "spec.automountServiceAccountToken", "spec.schedulingGates", "spec.resourceClaims",
		"spec.volumes[0].projected.sources[0].serviceAccountToken", "spec.volumes[1].nfs", "spec.volumes[2].emptyDir.medium",
	}
	p.eventually(func() error {
		for _, f := range p.agent.SourceErrors() {
			if !strings.HasSuffix(f.Location, p.file) {
				continue
			}
			for _, field := range want {
				require.ErrorContains(p.t, f.Err, field)
			}
			return nil
		}
		return fmt.Errorf("faults: %v", p.agent.SourceErrors())
	})
	p.neverWas()
}

func runtimeClass(p *pod) {
	p.hears("FailedCreatePodSandBox", "there-is-none")
	require.Equal(p.t, corev1.PodPending, p.until(func(*corev1.Pod) error { return nil }).Status.Phase)
	p.neverWas()
}

// CG-*: the bound is the pod's cgroup's, of which each container has the rest.
func podResources(p *pod) {
	v := p.runs()
	require.Equal(p.t, corev1.PodQOSBurstable, v.Status.QOSClass)
	found := 0
	for _, c := range p.node.Cgroups() {
		if !strings.HasSuffix(c, p.node.PodCgroup(p.t, v)) {
			continue
		}
		for file, want := range map[string]string{
			"memory.limit_in_bytes": fmt.Sprint(80 << 20), "memory.max": fmt.Sprint(80 << 20),
			"cpu.cfs_quota_us": "40000", "cpu.max": "40000 100000", "cpu.shares": "102",
		} {
			if b, err := os.ReadFile(filepath.Join(c, file)); err == nil {
				require.Equal(p.t, want, strings.TrimSpace(string(b)), file)
				found++
			}
		}
	}
	require.GreaterOrEqual(p.t, found, 2)
}

func fullHostname(p *pod) {
	v := p.runs()
	p.says("main", "hostname", "one.many.default.svc.cluster.example")
	hosts, _, err := p.sh("main", "cat /etc/hosts")
	require.NoError(p.t, err)
	require.Contains(p.t, strings.ReplaceAll(hosts, "\t", " "), v.Status.PodIP+" one.many.default.svc.cluster.example")
}

// RT-4
func restartAll(p *pod) {
	p.eventually(func() error {
		if said, _, err := p.sh("worker", "echo up"); err != nil || said != "up" {
			return fmt.Errorf("worker: %q: %w", said, err)
		}
		v := p.runs()
		for _, name := range []string{"prepare", "watcher", "worker"} {
			if got := find(v, name).RestartCount; got != 1 {
				return fmt.Errorf("%s was restarted %d times", name, got)
			}
		}
		return nil
	})
	p.says("watcher", "wc -l < /rounds/all", "2")
}
