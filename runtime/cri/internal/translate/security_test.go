package translate

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
)

// bare returns a translator of a pod with one container and no defaults.
func bare(change func(*corev1.Pod, *corev1.Container)) *Translator {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}}}
	if change != nil {
		change(pod, &pod.Spec.Containers[0])
	}
	return &Translator{Pod: pod}
}

func (tr *Translator) main(image *v1.Image) (*v1.ContainerConfig, error) {
	return tr.Container(ContainerInput{Spec: &tr.Pod.Spec.Containers[0], Image: image})
}

// What is not valid, or cannot be kept, is rejected and not left out.
func TestTranslator_Refuses(t *testing.T) {
	security := func(sc corev1.SecurityContext) func(*corev1.Pod, *corev1.Container) {
		return func(_ *corev1.Pod, ct *corev1.Container) { ct.SecurityContext = &sc }
	}
	policy := corev1.SupplementalGroupsPolicy("Odd")
	for name, tc := range map[string]struct {
		change func(*corev1.Pod, *corev1.Container)
		want   string
	}{
		"a stop signal": {func(_ *corev1.Pod, ct *corev1.Container) {
			ct.Lifecycle = &corev1.Lifecycle{StopSignal: new(corev1.Signal("SIGODD"))}
		}, `invalid stopSignal "SIGODD"`},
		"a device of no volume": {func(_ *corev1.Pod, ct *corev1.Container) {
			ct.VolumeDevices = []corev1.VolumeDevice{{Name: "none"}}
		}, `volumeDevice "none": no such volume is mounted`},
		"a device of a volume of files": {func(_ *corev1.Pod, ct *corev1.Container) {
			ct.VolumeDevices = []corev1.VolumeDevice{{Name: "nowhere"}}
		}, `volumeDevice "nowhere": no such volume is mounted`},
		"a policy of groups": {func(p *corev1.Pod, _ *corev1.Container) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{SupplementalGroupsPolicy: &policy}
		}, `supplementalGroupsPolicy "Odd" is unknown`},
		"a seccomp profile":           {security(corev1.SecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: "Odd"}}), `seccompProfile type "Odd" is unknown`},
		"a seccomp profile of none":   {security(corev1.SecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost}}), "localhostProfile must be a path below"},
		"an apparmor profile":         {security(corev1.SecurityContext{AppArmorProfile: &corev1.AppArmorProfile{Type: "Odd"}}), `appArmorProfile type "Odd" is unknown`},
		"an apparmor profile of none": {security(corev1.SecurityContext{AppArmorProfile: &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost}}), "localhostProfile is missing"},
		"an empty apparmor profile": {security(corev1.SecurityContext{AppArmorProfile: &corev1.AppArmorProfile{
			Type: corev1.AppArmorProfileTypeLocalhost, LocalhostProfile: new(""),
		}}), "localhostProfile is missing"},
		"user namespaces of an unknown runtime": {func(p *corev1.Pod, _ *corev1.Container) { p.Spec.HostUsers = new(false) }, "runtime features not known yet"},
	} {
		t.Run(name, func(t *testing.T) {
			tr := bare(tc.change)
			tr.Options.Volumes = map[string]runtime.Volume{"nowhere": {}}
			_, err := tr.main(nil)
			assert.ErrorContains(t, err, tc.want)
		})
	}
}

func TestTranslator_Devices(t *testing.T) {
	tr := bare(func(_ *corev1.Pod, ct *corev1.Container) {
		ct.VolumeDevices = []corev1.VolumeDevice{{Name: "disk", DevicePath: "/dev/a"}, {Name: "sealed", DevicePath: "/dev/b"}}
	})
	tr.Options.Volumes = map[string]runtime.Volume{"disk": {HostPath: "/dev/sda"}, "sealed": {HostPath: "/dev/sdb", ReadOnly: true}}
	cfg, err := tr.main(nil)
	require.NoError(t, err)
	assert.Equal(t, []*v1.Device{
		{ContainerPath: "/dev/a", HostPath: "/dev/sda", Permissions: "mrw"}, {ContainerPath: "/dev/b", HostPath: "/dev/sdb", Permissions: "r"},
	}, cfg.GetDevices())
}

// A container that says it does not run as root runs only if that is certain.
func TestTranslator_NonRoot(t *testing.T) {
	user := func(uid int64) *v1.Image { return &v1.Image{Uid: &v1.Int64Value{Value: uid}} }
	for name, tc := range map[string]struct {
		nonRoot  *bool
		uid      *int64
		image    *v1.Image
		rejected bool
	}{
		"not demanded":               {nil, nil, user(0), false},
		"demanded of root":           {new(true), nil, user(0), true},
		"not demanded, false":        {new(false), nil, user(0), false},
		"the pod's user":             {new(true), new(int64(7)), user(0), false},
		"the pod's root":             {new(true), new(int64(0)), user(7), true},
		"the image's user":           {new(true), nil, user(7), false},
		"the image's user by name":   {new(true), nil, &v1.Image{Username: "app"}, true},
		"the image names both":       {new(true), nil, &v1.Image{Username: "root", Uid: &v1.Int64Value{}}, true},
		"the image's user, and name": {new(true), nil, &v1.Image{Username: "app", Uid: &v1.Int64Value{Value: 7}}, false},
		"the image has no user":      {new(true), nil, &v1.Image{}, true},
		"the image's last user":      {new(true), nil, user(math.MaxInt32), false},
		"the image's user wraps":     {new(true), nil, user(1 << 32), true},
		"the image's user is beyond": {new(true), nil, user(math.MaxInt32 + 1), true},
		"the image's user is below":  {new(true), nil, user(-1000), true},
		"beyond, and not demanded":   {new(false), nil, user(1 << 32), false},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := bare(func(_ *corev1.Pod, ct *corev1.Container) {
				ct.SecurityContext = &corev1.SecurityContext{RunAsNonRoot: tc.nonRoot, RunAsUser: tc.uid}
			}).main(tc.image)
			assert.Equal(t, tc.rejected, err != nil, "%v", err)
			if name == "the image's user by name" {
				assert.ErrorContains(t, err, `"app" is not a number`)
			} else if err != nil {
				assert.NotContains(t, err.Error(), "is not a number")
			}
		})
	}
}

// Booleans that are false are as good as absent, and the container's own settings come
// before the pod's.
func TestTranslator_SecurityContext(t *testing.T) {
	localhost := corev1.AppArmorProfileTypeLocalhost
	for name, tc := range map[string]struct {
		change func(*corev1.Pod, *corev1.Container)
		check  func(*testing.T, *v1.LinuxContainerSecurityContext)
	}{
		"false": {
			func(_ *corev1.Pod, ct *corev1.Container) {
				ct.SecurityContext = &corev1.SecurityContext{
					ReadOnlyRootFilesystem: new(false), AllowPrivilegeEscalation: new(true), ProcMount: new(corev1.DefaultProcMount),
				}
			}, func(t *testing.T, sc *v1.LinuxContainerSecurityContext) {
				assert.False(t, sc.GetReadonlyRootfs())
				assert.False(t, sc.GetNoNewPrivs())
				assert.NotEmpty(t, sc.GetMaskedPaths())
				assert.Equal(t, v1.SecurityProfile_Unconfined, sc.GetSeccomp().GetProfileType())
			},
		},
		"the pod's": {
			func(p *corev1.Pod, _ *corev1.Container) {
				p.Spec.SecurityContext = &corev1.PodSecurityContext{
					RunAsUser: new(int64(7)), SELinuxOptions: &corev1.SELinuxOptions{Level: "s0"}, SupplementalGroupsPolicy: new(corev1.SupplementalGroupsPolicyMerge),
				}
			}, func(t *testing.T, sc *v1.LinuxContainerSecurityContext) {
				assert.Equal(t, int64(7), sc.GetRunAsUser().GetValue())
				assert.Equal(t, "s0", sc.GetSelinuxOptions().GetLevel())
			},
		},
		"the container's": {
			func(p *corev1.Pod, ct *corev1.Container) {
				p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: new(int64(7)), SELinuxOptions: &corev1.SELinuxOptions{Level: "s0"}}
				ct.SecurityContext = &corev1.SecurityContext{RunAsUser: new(int64(8)), SELinuxOptions: &corev1.SELinuxOptions{Level: "s1"}}
			}, func(t *testing.T, sc *v1.LinuxContainerSecurityContext) {
				assert.Equal(t, int64(8), sc.GetRunAsUser().GetValue())
				assert.Equal(t, "s1", sc.GetSelinuxOptions().GetLevel())
			},
		},
		"an annotated apparmor profile": {
			func(p *corev1.Pod, _ *corev1.Container) {
				p.Annotations = map[string]string{"container.apparmor.security.beta.kubernetes.io/main": "localhost/mine"}
				p.Spec.SecurityContext = &corev1.PodSecurityContext{AppArmorProfile: &corev1.AppArmorProfile{Type: localhost, LocalhostProfile: new("pods")}}
			}, func(t *testing.T, sc *v1.LinuxContainerSecurityContext) {
				assert.Equal(t, "mine", sc.GetApparmor().GetLocalhostRef())
			},
		},
		"an annotated default of apparmor": {
			func(p *corev1.Pod, _ *corev1.Container) {
				p.Annotations = map[string]string{"container.apparmor.security.beta.kubernetes.io/main": "runtime/default"}
			}, func(t *testing.T, sc *v1.LinuxContainerSecurityContext) {
				assert.Equal(t, v1.SecurityProfile_RuntimeDefault, sc.GetApparmor().GetProfileType())
				assert.NotNil(t, sc.GetApparmor())
			},
		},
		"processes that are not shared": {
			func(p *corev1.Pod, _ *corev1.Container) { p.Spec.ShareProcessNamespace = new(false) },
			func(t *testing.T, sc *v1.LinuxContainerSecurityContext) {
				assert.Equal(t, v1.NamespaceMode_CONTAINER, sc.GetNamespaceOptions().GetPid())
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, err := bare(tc.change).main(nil)
			require.NoError(t, err)
			tc.check(t, cfg.GetLinux().GetSecurityContext())
		})
	}
}

// A pod's own user namespace needs ids of both kinds.
func TestTranslator_UserNamespaceIDs(t *testing.T) {
	ids := []runtime.IDMapping{{Host: 65536, Container: 0, Length: 65536}}
	for name, options := range map[string]runtime.RunOptions{"no users": {GIDMappings: ids}, "no groups": {UIDMappings: ids}} {
		tr := bare(func(p *corev1.Pod, _ *corev1.Container) { p.Spec.HostUsers = new(false) })
		tr.Features, tr.Options = &Features{UserNamespaces: map[string]bool{"": true}}, options
		_, err := tr.Sandbox(0)
		assert.ErrorIs(t, err, runtime.ErrUnsupported, name)
	}
}

// A runtime that has not reported its features may have the policy Strict.
func TestTranslator_StrictGroupsOfUnknownRuntime(t *testing.T) {
	tr := bare(func(p *corev1.Pod, _ *corev1.Container) {
		p.Spec.SecurityContext = &corev1.PodSecurityContext{SupplementalGroupsPolicy: new(corev1.SupplementalGroupsPolicyStrict)}
	})
	cfg, err := tr.main(nil)
	require.NoError(t, err)
	assert.Equal(t, v1.SupplementalGroupsPolicy_Strict, cfg.GetLinux().GetSecurityContext().GetSupplementalGroupsPolicy())
}

// Each part of a DNS configuration counts by itself; without any the runtime's is used.
func TestTranslator_SandboxDNS(t *testing.T) {
	for name, tc := range map[string]struct {
		dns  runtime.DNS
		want *v1.DNSConfig
	}{
		"none":     {runtime.DNS{}, nil},
		"servers":  {runtime.DNS{Servers: []string{"a"}}, &v1.DNSConfig{Servers: []string{"a"}}},
		"searches": {runtime.DNS{Searches: []string{"a"}}, &v1.DNSConfig{Searches: []string{"a"}}},
		"options":  {runtime.DNS{Options: []string{"a"}}, &v1.DNSConfig{Options: []string{"a"}}},
		"two":      {runtime.DNS{Searches: []string{"a"}, Options: []string{"b"}}, &v1.DNSConfig{Searches: []string{"a"}, Options: []string{"b"}}},
	} {
		tr := bare(nil)
		tr.Options.DNS = tc.dns
		cfg, err := tr.Sandbox(0)
		require.NoError(t, err)
		assert.Equal(t, tc.want, cfg.GetDnsConfig(), name)
	}
}

// The pod gets the groups of its volumes besides its own, each once and always in one order.
func TestTranslator_GroupsOfVolumes(t *testing.T) {
	tr := bare(func(p *corev1.Pod, _ *corev1.Container) {
		p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(1)), SupplementalGroups: []int64{2, 3}}
	})
	tr.Options.Volumes = map[string]runtime.Volume{"b": {Group: new(int64(7))}, "a": {Group: new(int64(8))}, "c": {Group: new(int64(3))}, "d": {}}
	cfg, err := tr.main(nil)
	require.NoError(t, err)
	assert.Equal(t, []int64{1, 2, 3, 8, 7}, cfg.GetLinux().GetSecurityContext().GetSupplementalGroups())
	sandbox, err := tr.sandboxSecurity()
	require.NoError(t, err)
	assert.Equal(t, []int64{1, 2, 3, 8, 7}, sandbox.GetSupplementalGroups())
	assert.Equal(t, []int64{2, 3}, tr.Pod.Spec.SecurityContext.SupplementalGroups, "the pod is not changed")
}

// The user of an image is given by its id where there is one: a name could be that of another user.
func TestTranslator_UserOfTheImage(t *testing.T) {
	uid := func(id int64) *v1.Int64Value { return &v1.Int64Value{Value: id} }
	for name, tc := range map[string]struct {
		image *v1.Image
		uid   *v1.Int64Value
		name  string
	}{
		"none":   {&v1.Image{}, nil, ""},
		"an id":  {&v1.Image{Uid: uid(7)}, uid(7), ""},
		"a name": {&v1.Image{Username: "app"}, nil, "app"},
		"both":   {&v1.Image{Uid: uid(7), Username: "root"}, uid(7), ""},
	} {
		cfg, err := bare(nil).main(tc.image)
		require.NoError(t, err)
		sc := cfg.GetLinux().GetSecurityContext()
		assert.Equal(t, tc.uid, sc.GetRunAsUser(), name)
		assert.Equal(t, tc.name, sc.GetRunAsUsername(), name)
	}
}

// An ephemeral container joins the processes of its target unless it sees them anyway.
func TestTranslator_TargetOfAnEphemeralContainer(t *testing.T) {
	for mode, change := range map[v1.NamespaceMode]func(*corev1.Pod, *corev1.Container){
		v1.NamespaceMode_TARGET: nil,
		v1.NamespaceMode_POD:    func(p *corev1.Pod, _ *corev1.Container) { p.Spec.ShareProcessNamespace = new(true) },
		v1.NamespaceMode_NODE:   func(p *corev1.Pod, _ *corev1.Container) { p.Spec.HostPID = true },
	} {
		tr := bare(change)
		cfg, err := tr.Container(ContainerInput{Spec: &tr.Pod.Spec.Containers[0], TargetID: "target"})
		require.NoError(t, err)
		namespaces := cfg.GetLinux().GetSecurityContext().GetNamespaceOptions()
		assert.Equal(t, mode, namespaces.GetPid())
		assert.Equal(t, mode == v1.NamespaceMode_TARGET, namespaces.GetTargetId() == "target", mode)
	}
}
