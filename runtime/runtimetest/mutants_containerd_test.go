//go:build linux

package runtimetest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/containerdtest"
)

// Defects of what the embedded runtime does not have are planted in containerd.
func TestRuntime_FindsDefectsOfConfinement(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	n := containerdtest.Start(t)
	second := n.PushBusybox(t, "second", "1", containerdtest.File{Name: "second", Data: []byte("2"), Mode: 0o644})
	suiteOf := func(t *testing.T, m mutant) *suite {
		s := newSuite(Image(n.Busybox), SecondImage(second), LogRoot(filepath.Join(n.Shared, "logs")), EditPod(func(pod *v1.PodSandboxConfig) {
			pod.Linux.CgroupParent = n.CgroupParent + "/" + pod.GetMetadata().GetUid()
		}))
		s.cc = m.proxied(t, n.Dial(t))
		require.NoError(t, s.getImages(t.Context()))
		return s
	}
	slots := make(chan struct{}, 4) // containers take processor time; more at once would come near the limit of a case
	t.Run("mutants", func(t *testing.T) {
		for _, m := range mutantsOfConfinement() {
			t.Run(m.defect, func(t *testing.T) {
				t.Parallel()
				slots <- struct{}{}
				defer func() { <-slots }()
				s := suiteOf(t, m)
				tc, ok := find(m.caseName)
				require.True(t, ok, "case not found")
				c := s.execute(context.WithoutCancel(t.Context()), tc)
				if c.skip != "" {
					t.Log(c.skip) // a feature that this machine does not have
					return
				}
				require.NotEmpty(t, c.failures, "the suite does not find the defect")
				assert.Contains(t, strings.Join(c.failures, "\n"), m.report)
			})
		}
	})
}

// Each case is proved to fail by a mutant.
func TestCases_HaveAMutant(t *testing.T) {
	all := slices.Concat(mutants(), mutantsOfConfinement())
	for _, name := range Cases() {
		assert.True(t, slices.ContainsFunc(all, func(m mutant) bool { return m.caseName == name }), "no mutant is found by the case %q", name)
	}
}

// The table lists all mutants, with the case that finds each.
func TestDocs_Mutants(t *testing.T) {
	const file = "../../docs/cri-mutants.md"
	all := slices.Concat(mutants(), mutantsOfConfinement())
	var b strings.Builder
	fmt.Fprintf(&b, `# Defects that the conformance suite finds

The tests of `+"`runtime/runtimetest`"+` plant each of these %d defects in a runtime that has no other, run the case beside it, and demand a failure that
says what is wrong. All are found. Those of the confinement of containers are planted in containerd, the others in the embedded runtime. The table
is made by `+"`go test ./runtime/runtimetest -run TestDocs -update`"+`.

| defect | case that finds it | part of its failure |
|---|---|---|
`, len(all))
	for _, m := range all {
		fmt.Fprintf(&b, "| %s | %s | `%s` |\n", m.defect, m.caseName, strings.ReplaceAll(m.report, "|", "¦"))
	}
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o644)) //nolint:gosec // a document
		return
	}
	committed, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, b.String(), string(committed), "run go test ./runtime/runtimetest -run TestDocs -update")
}

func mutantsOfConfinement() []mutant {
	const caps, seccomp, paths, pids, nets, devices, cgroup, propagation = "capabilities are dropped and added", "system calls are filtered", "paths are masked and read-only",
		"containers have the process namespace that they ask for", "pods have the network and IPC that they ask for", "devices are there with their permissions",
		"limits of memory and CPU are in the cgroup", "mounts propagate as they should"
	withoutSeccomp := func(kind v1.SecurityProfile_ProfileType) func(any) {
		return onSecurity(func(sc *v1.LinuxContainerSecurityContext) {
			if sc.GetSeccomp().GetProfileType() == kind {
				sc.Seccomp = &v1.SecurityProfile{ProfileType: v1.SecurityProfile_Unconfined}
			}
		})
	}
	instead := func(from, to v1.NamespaceMode) func(any) {
		return func(req any) {
			onSandbox(func(l *v1.LinuxPodSandboxConfig) {
				if o := l.GetSecurityContext().GetNamespaceOptions(); o.GetPid() == from {
					o.Pid = to
				}
			})(req)
			onSecurity(func(sc *v1.LinuxContainerSecurityContext) {
				if o := sc.GetNamespaceOptions(); o.GetPid() == from {
					o.Pid = to
				}
			})(req)
		}
	}
	private := func(kind v1.MountPropagation) func(any) {
		return onMounts(func(m *v1.Mount) {
			if m.GetPropagation() == kind {
				m.Propagation = v1.MountPropagation_PROPAGATION_PRIVATE
			}
		})
	}
	return []mutant{
		{
			defect: "drop_capabilities are ignored", caseName: caps, report: "drop_capabilities ALL",
			request: onSecurity(func(sc *v1.LinuxContainerSecurityContext) {
				if sc.GetCapabilities() != nil {
					sc.Capabilities.DropCapabilities = nil
				}
			}),
		},
		{
			defect: "add_capabilities are ignored", caseName: caps, report: "add_capabilities NET_ADMIN",
			request: onSecurity(func(sc *v1.LinuxContainerSecurityContext) {
				if sc.GetCapabilities() != nil {
					sc.Capabilities.AddCapabilities = nil
				}
			}),
		},
		{
			defect: "privileged is ignored", caseName: "a privileged container has all capabilities", report: "privileged: bit 21 of CapEff",
			request: onSecurity(func(sc *v1.LinuxContainerSecurityContext) { sc.Privileged = false }),
		},
		{
			defect: "the runtime's seccomp profile is not used", caseName: seccomp, report: "seccomp RuntimeDefault",
			request: withoutSeccomp(v1.SecurityProfile_RuntimeDefault),
		},
		{
			defect: "seccomp profiles of files are ignored", caseName: seccomp, report: "seccomp Localhost",
			request: withoutSeccomp(v1.SecurityProfile_Localhost),
		},
		{
			defect: "seccomp cannot be turned off", caseName: seccomp, report: "seccomp Unconfined",
			request: onSecurity(func(sc *v1.LinuxContainerSecurityContext) {
				if sc.GetSeccomp().GetProfileType() == v1.SecurityProfile_Unconfined {
					sc.Seccomp = &v1.SecurityProfile{ProfileType: v1.SecurityProfile_RuntimeDefault}
				}
			}),
		},
		{
			defect: "masked_paths are ignored", caseName: paths, report: "masked_paths",
			request: onSecurity(func(sc *v1.LinuxContainerSecurityContext) { sc.MaskedPaths = nil }),
		},
		{
			defect: "readonly_paths are ignored", caseName: paths, report: "readonly_paths",
			request: onSecurity(func(sc *v1.LinuxContainerSecurityContext) { sc.ReadonlyPaths = nil }),
		},
		{
			defect: "a shared process namespace is not shared", caseName: pids, report: "pid POD",
			request: instead(v1.NamespaceMode_POD, v1.NamespaceMode_CONTAINER),
		},
		{
			defect: "processes are always shared in a pod", caseName: pids, report: "pid CONTAINER",
			request: instead(v1.NamespaceMode_CONTAINER, v1.NamespaceMode_POD),
		},
		{
			defect: "the process namespace of a target is ignored", caseName: pids, report: "pid TARGET",
			request: instead(v1.NamespaceMode_TARGET, v1.NamespaceMode_CONTAINER),
		},
		{
			defect: "hostPID is ignored", caseName: pids, report: "pid NODE",
			request: instead(v1.NamespaceMode_NODE, v1.NamespaceMode_POD),
		},
		{
			defect: "hostIPC is ignored", caseName: nets, report: "ipc NODE",
			request: func(req any) {
				onSandbox(func(l *v1.LinuxPodSandboxConfig) {
					l.GetSecurityContext().GetNamespaceOptions().Ipc = v1.NamespaceMode_POD
				})(req)
				onSecurity(func(sc *v1.LinuxContainerSecurityContext) { sc.GetNamespaceOptions().Ipc = v1.NamespaceMode_POD })(req)
			},
		},
		{
			defect: "all pods are on the host's IPC", caseName: nets, report: "ipc POD: two pods share",
			request: func(req any) {
				onSandbox(func(l *v1.LinuxPodSandboxConfig) {
					l.GetSecurityContext().GetNamespaceOptions().Ipc = v1.NamespaceMode_NODE
				})(req)
				onSecurity(func(sc *v1.LinuxContainerSecurityContext) { sc.GetNamespaceOptions().Ipc = v1.NamespaceMode_NODE })(req)
			},
		},
		{
			defect: "sysctls are ignored", caseName: "sysctls of a pod are set", report: "sysctls: kernel.shm_rmid_forced",
			request: onSandbox(func(l *v1.LinuxPodSandboxConfig) { l.Sysctls = nil }),
		},
		{
			defect: "devices are ignored", caseName: devices, report: "devices: exit code",
			request: onContainer(func(cfg *v1.ContainerConfig) { cfg.Devices = nil }),
		},
		{
			defect: "permissions of devices are ignored", caseName: devices, report: "permissions r: exit code",
			request: onContainer(func(cfg *v1.ContainerConfig) {
				for _, d := range cfg.GetDevices() {
					d.Permissions = "rwm"
				}
			}),
		},
		{
			defect: "oom_score_adj is ignored", caseName: "the OOM killer knows what to spare", report: "oom_score_adj 987",
			request: onResources(func(r *v1.LinuxContainerResources) { r.OomScoreAdj = 0 }),
		},
		{
			defect: "the memory limit is ignored", caseName: cgroup, report: "memory_limit_in_bytes 64Mi",
			request: onResources(func(r *v1.LinuxContainerResources) { r.MemoryLimitInBytes = 0 }),
		},
		{
			defect: "the CPU quota is ignored", caseName: cgroup, report: "cpu_quota 50000",
			request: onResources(func(r *v1.LinuxContainerResources) { r.CpuQuota = 0 }),
		},
		{
			defect: "CPU shares are ignored", caseName: cgroup, report: "cpu_shares 512",
			request: onResources(func(r *v1.LinuxContainerResources) { r.CpuShares = 0 }),
		},
		{
			defect: "cpuset_cpus is ignored", caseName: "a container runs on its CPUs", report: "cpuset_cpus",
			request: onResources(func(r *v1.LinuxContainerResources) { r.CpusetCpus = "" }),
		},
		{
			defect: "a change of limits is only recorded", caseName: "a change of limits reaches the cgroup", report: "after an update",
			call: doesNothing("UpdateContainerResources"),
		},
		{
			defect: "mounts that get those of the host are refused", caseName: propagation, report: "create container slave",
			request: onMounts(func(m *v1.Mount) {
				if m.GetPropagation() == v1.MountPropagation_PROPAGATION_HOST_TO_CONTAINER {
					m.HostPath = "/dev/null/refused"
				}
			}),
		},
		{
			defect: "mounts of the host do not propagate", caseName: propagation, report: "propagation HOST_TO_CONTAINER",
			request: private(v1.MountPropagation_PROPAGATION_HOST_TO_CONTAINER),
		},
		{
			defect: "mounts of the container do not propagate", caseName: propagation, report: "propagation BIDIRECTIONAL",
			request: private(v1.MountPropagation_PROPAGATION_BIDIRECTIONAL),
		},
		{
			defect: "recursive_read_only is not reported", caseName: "a mount can be read-only with all below it", report: "recursive_read_only is false",
			request: onMounts(func(m *v1.Mount) { m.RecursiveReadOnly = false }),
		},
		{
			defect: "mounts of images are empty directories", caseName: "an image can be mounted", report: "if the image is mounted",
			request: onMounts(func(m *v1.Mount) {
				if m.GetImage() != nil {
					m.Image, m.HostPath = nil, "/tmp"
				}
			}),
		},
		{
			defect: "a change of the CPU quota is only recorded", caseName: "a change of limits reaches the cgroup", report: "cpu_quota 75000",
			request: onRequest(func(r *v1.UpdateContainerResourcesRequest) { r.Linux.CpuQuota = 0 }),
		},
		{
			defect: "paths in images are ignored", caseName: "a path that an image does not have is not mounted", report: "image_sub_path: a container with a mount",
			request: onMounts(func(m *v1.Mount) { m.ImageSubPath = "" }),
		},
		{
			defect: "the command of the image is ignored", caseName: "a container without a command runs that of its image", report: "command of a container that has only that of its image",
			request: onContainer(func(cfg *v1.ContainerConfig) {
				if len(cfg.GetCommand()) == 0 {
					cfg.Command = []string{"sleep", "1000"}
				}
			}),
		},
		{
			defect: "user namespaces are ignored", caseName: "a pod with a user namespace has its ids mapped", report: "userns_options: uid_map",
			request: func(req any) {
				onSandbox(func(l *v1.LinuxPodSandboxConfig) { l.GetSecurityContext().GetNamespaceOptions().UsernsOptions = nil })(req)
				if r, ok := req.(*v1.CreateContainerRequest); ok {
					r.GetSandboxConfig().GetLinux().GetSecurityContext().GetNamespaceOptions().UsernsOptions = nil
				}
				onSecurity(func(sc *v1.LinuxContainerSecurityContext) { sc.GetNamespaceOptions().UsernsOptions = nil })(req)
			},
		},
		{
			defect: "a file at /etc/hosts is replaced by the runtime's", caseName: "a file mounted at /etc/hosts is the container's", report: "content of /etc/hosts",
			request: onContainer(func(cfg *v1.ContainerConfig) { cfg.Mounts = nil }),
		},
		{
			defect: "the pod gets further groups", caseName: "only the groups of the pod are its groups", report: "supplemental_groups_policy Strict",
			request: onSecurity(func(sc *v1.LinuxContainerSecurityContext) {
				if len(sc.GetSupplementalGroups()) > 0 {
					sc.SupplementalGroups = append(sc.SupplementalGroups, 45678)
				}
			}),
		},
		{
			defect: "the groups of a user in its image are ignored", caseName: "a user has the groups that its image gives it", report: "supplemental_groups_policy Merge",
			request: onSecurity(func(sc *v1.LinuxContainerSecurityContext) {
				if len(sc.GetSupplementalGroups()) > 0 {
					sc.RunAsUser = &v1.Int64Value{Value: 12345} // the image does not know it
				}
			}),
		},
		{
			defect: "pods share one root", caseName: "the root of a container is its own", report: "does not see the files of another",
			request: onContainer(func(cfg *v1.ContainerConfig) {
				cfg.Command[len(cfg.Command)-1] = strings.Replace(cfg.Command[len(cfg.Command)-1], "[ -e ", "[ -e /etc ] || [ -e ", 1)
			}),
		},
	}
}
