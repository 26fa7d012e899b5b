package translate

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
)

func TestTranslator_Injection(t *testing.T) {
	injection := runtime.Injection{
		Env:         map[string]string{"GPU": "0", "B": "injected", "A": "injected"},
		Mounts:      []runtime.InjectedMount{{HostPath: "/opt/gpu", ContainerPath: "/usr/lib/gpu", ReadOnly: true}},
		Devices:     []runtime.InjectedDevice{{HostPath: "/dev/gpu0", ContainerPath: "/dev/gpu", Permissions: "rw"}},
		Annotations: map[string]string{"vendor.example/gpu": "0", runtime.AnnotationHash: "forged"},
		CDIDevices:  []string{"vendor.example/gpu=0"},
		Unified:     map[string]string{"io.weight": "50"},
		Cpuset:      runtime.Cpuset{CPUs: "2-3", MemoryNodes: "1"},
	}
	f := &fixture{Pod: corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "img:1", Env: []corev1.EnvVar{{Name: "B", Value: "spec"}}}}}}}
	tr := f.translator(t)
	spec := &tr.Pod.Spec.Containers[0]
	env, err := tr.Environment(t.Context(), spec, nil)
	require.NoError(t, err)
	env = InjectEnvironment(env, injection)
	require.Equal(t, []EnvVar{{"B", "spec"}, {"A", "injected"}, {"GPU", "0"}}, env, "the spec wins")
	require.Equal(t, []*v1.Mount{{HostPath: "/opt/gpu", ContainerPath: "/usr/lib/gpu", Readonly: true}}, tr.InjectedMounts(injection))

	cfg, err := tr.Container(ContainerInput{Spec: spec, Image: &v1.Image{Id: "sha256:1"}, Env: env, Injection: injection})
	require.NoError(t, err)
	require.Equal(t, []*v1.Device{{HostPath: "/dev/gpu0", ContainerPath: "/dev/gpu", Permissions: "rw"}}, cfg.GetDevices())
	require.Equal(t, []*v1.CDIDevice{{Name: "vendor.example/gpu=0"}}, cfg.GetCDIDevices())
	require.Equal(t, "2-3", cfg.GetLinux().GetResources().GetCpusetCpus())
	require.Equal(t, "1", cfg.GetLinux().GetResources().GetCpusetMems())
	require.Equal(t, "0", cfg.GetAnnotations()["vendor.example/gpu"])
	require.Equal(t, runtime.HashWithInjection(spec, injection), cfg.GetAnnotations()[runtime.AnnotationHash], "the agent's own keys are not for injectors")
	require.Equal(t, map[string]string{"io.weight": "50"}, cfg.GetLinux().GetResources().GetUnified())

	tr.Node.CgroupV2 = true
	input := ContainerInput{Spec: spec, Image: &v1.Image{Id: "sha256:1"}, Env: env, Injection: injection}
	cfg, err = tr.Container(input)
	require.NoError(t, err)
	own := tr.Resources(spec).GetUnified()
	require.NotEmpty(t, own)
	require.Len(t, cfg.GetLinux().GetResources().GetUnified(), len(own)+1)
	for file := range own {
		input.Injection.Unified = map[string]string{file: "7"}
		_, err = tr.Container(input)
		require.ErrorIs(t, err, runtime.ErrInvalid)
		require.ErrorContains(t, err, "injected resource "+file+"=7")
	}
}

// Root of a user namespace owns what root of the node owns, as in a volume.
func TestTranslator_InjectedMountsInAUserNamespace(t *testing.T) {
	tr := bare(func(p *corev1.Pod, _ *corev1.Container) { p.Spec.HostUsers = new(false) })
	tr.Options.UIDMappings = []runtime.IDMapping{{Host: 65536, Length: 65536}}
	tr.Options.GIDMappings = []runtime.IDMapping{{Host: 131072, Length: 65536}}
	injection := runtime.Injection{Mounts: []runtime.InjectedMount{{HostPath: "/opt/gpu", ContainerPath: "/usr/lib/gpu"}}}
	require.Equal(t, []*v1.Mount{{
		HostPath: "/opt/gpu", ContainerPath: "/usr/lib/gpu",
		UidMappings: []*v1.IDMapping{{HostId: 65536, Length: 65536}}, GidMappings: []*v1.IDMapping{{HostId: 131072, Length: 65536}},
	}}, tr.InjectedMounts(injection))
}
