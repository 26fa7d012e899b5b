package translate

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
)

// mountOf translates one mount of the volume data.
func mountOf(tr *Translator, volume runtime.Volume, vm corev1.VolumeMount, env ...EnvVar) (*v1.Mount, error) {
	vm.Name, vm.MountPath = "data", "/data"
	tr.Options.Volumes = map[string]runtime.Volume{"data": volume}
	all, err := tr.Mounts(context.Background(), &corev1.Container{Name: "main", VolumeMounts: []corev1.VolumeMount{vm}}, env, nil)
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// A colon has no meaning in a mount of CRI.
func TestTranslator_MountPathWithColon(t *testing.T) {
	tr := &Translator{Pod: &corev1.Pod{}}
	tr.Options.Volumes = map[string]runtime.Volume{"data": {HostPath: "/v"}}
	all, err := tr.Mounts(t.Context(), &corev1.Container{VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/a:ro"}}}, nil, nil)
	require.NoError(t, err)
	assert.Equal(t, "/a:ro", all[0].GetContainerPath())
	assert.Equal(t, "/v", all[0].GetHostPath())
	assert.False(t, all[0].GetReadonly())
}

func TestTranslator_RecursiveReadOnly(t *testing.T) {
	enabled, ifPossible, odd := corev1.RecursiveReadOnlyEnabled, corev1.RecursiveReadOnlyIfPossible, corev1.RecursiveReadOnlyMode("Odd")
	none, slave := corev1.MountPropagationNone, corev1.MountPropagationHostToContainer
	able := &Features{RecursiveReadOnly: map[string]bool{"": true}}
	for name, tc := range map[string]struct {
		features *Features
		mount    corev1.VolumeMount
		want     bool
		err      string
	}{
		"enabled":                         {able, corev1.VolumeMount{ReadOnly: true, RecursiveReadOnly: &enabled}, true, ""},
		"enabled without propagation":     {able, corev1.VolumeMount{ReadOnly: true, RecursiveReadOnly: &enabled, MountPropagation: &none}, true, ""},
		"enabled with propagation":        {able, corev1.VolumeMount{ReadOnly: true, RecursiveReadOnly: &enabled, MountPropagation: &slave}, false, "needs readOnly"},
		"enabled but writable":            {able, corev1.VolumeMount{RecursiveReadOnly: &enabled}, false, "needs readOnly"},
		"another handler":                 {&Features{RecursiveReadOnly: map[string]bool{"kata": true}}, corev1.VolumeMount{ReadOnly: true, RecursiveReadOnly: &enabled}, false, "not supported"},
		"features unknown":                {nil, corev1.VolumeMount{ReadOnly: true, RecursiveReadOnly: &ifPossible}, false, ""},
		"if possible":                     {able, corev1.VolumeMount{ReadOnly: true, RecursiveReadOnly: &ifPossible}, true, ""},
		"if possible, but writable":       {able, corev1.VolumeMount{RecursiveReadOnly: &ifPossible}, false, ""},
		"if possible, with propagation":   {able, corev1.VolumeMount{ReadOnly: true, RecursiveReadOnly: &ifPossible, MountPropagation: &slave}, false, ""},
		"if possible, by no such runtime": {&Features{}, corev1.VolumeMount{ReadOnly: true, RecursiveReadOnly: &ifPossible}, false, ""},
		"unknown":                         {able, corev1.VolumeMount{ReadOnly: true, RecursiveReadOnly: &odd}, false, `recursiveReadOnly "Odd" is unknown`},
	} {
		t.Run(name, func(t *testing.T) {
			tr := &Translator{Pod: &corev1.Pod{}, Features: tc.features}
			m, err := mountOf(tr, runtime.Volume{HostPath: "/v"}, tc.mount)
			if tc.err != "" {
				require.ErrorContains(t, err, tc.err)
				recursive, _ := tr.recursiveReadOnly(tc.mount)
				assert.False(t, recursive)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, tc.want, m.GetRecursiveReadOnly())
		})
	}
}

func TestTranslator_MountErrors(t *testing.T) {
	odd := corev1.MountPropagationMode("Odd")
	tr := &Translator{Pod: &corev1.Pod{}}
	for sub, fails := range map[string]bool{"/abs": true, "..": true, "a/../b": true, "a..b": false, "a/b": false} {
		_, err := expandSubPath(&corev1.VolumeMount{SubPath: sub}, nil)
		assert.Equal(t, fails, errors.Is(err, runtime.ErrInvalid), sub)
	}
	_, err := mountOf(tr, runtime.Volume{HostPath: "/v"}, corev1.VolumeMount{MountPropagation: &odd})
	assert.ErrorContains(t, err, `mountPropagation "Odd" is unknown`)

	tr.Options.SubPath = func(context.Context, string, int, corev1.VolumeMount) (string, error) { return "", errors.New("gone") }
	_, err = mountOf(tr, runtime.Volume{HostPath: "/v"}, corev1.VolumeMount{SubPath: "a"})
	assert.ErrorContains(t, err, `mount "data" at /data: gone`)
	assert.ErrorIs(t, (&Translator{Pod: &corev1.Pod{}, Features: &Features{NoImageVolumes: true}}).CheckImageVolumes("x"), runtime.ErrUnsupported)
	assert.NoError(t, (&Translator{Pod: &corev1.Pod{}, Features: &Features{}}).CheckImageVolumes("x"))
}

// An image volume is read-only, from the image that the reference meant when it was
// pulled, and mapped if the runtime can do that. The runtime gets the handler and the annotations of the pod for it.
func TestTranslator_ImageVolumeInUserNamespace(t *testing.T) {
	ids := []runtime.IDMapping{{Host: 65536, Container: 0, Length: 65536}}
	tr := &Translator{Pod: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"example.com/platform": "arm64"}},
		Spec:       corev1.PodSpec{HostUsers: new(false), RuntimeClassName: new("kata")},
	}, Options: runtime.RunOptions{UIDMappings: ids, GIDMappings: ids}}
	m, err := mountOf(tr, runtime.Volume{Image: "app:1"}, corev1.VolumeMount{SubPathExpr: "$(DIR)/x"}, EnvVar{"DIR", "d"})
	require.NoError(t, err)
	assert.Equal(t, &v1.Mount{
		ContainerPath: "/data", Readonly: true, ImageSubPath: "d/x", Image: &v1.ImageSpec{
			Image: "app:1", UserSpecifiedImage: "app:1", RuntimeHandler: "kata", Annotations: map[string]string{"example.com/platform": "arm64"},
		},
	}, m)
	tr.Features = &Features{MapsImageVolumes: true}
	m, err = mountOf(tr, runtime.Volume{Image: "app:1"}, corev1.VolumeMount{})
	require.NoError(t, err)
	want := []*v1.IDMapping{{HostId: 65536, Length: 65536}}
	assert.Equal(t, [][]*v1.IDMapping{want, want}, [][]*v1.IDMapping{m.GetUidMappings(), m.GetGidMappings()})
	m, err = mountOf(tr, runtime.Volume{HostPath: "/v"}, corev1.VolumeMount{})
	require.NoError(t, err)
	assert.Len(t, m.GetUidMappings(), 1)
	assert.Len(t, m.GetGidMappings(), 1)
}

// Containers on a node with SELinux cannot use the files of a volume that does not get their label; other files are the node's.
func TestTranslator_SELinuxRelabel(t *testing.T) {
	for _, tc := range []struct {
		name          string
		selinux, want bool
		volume        runtime.Volume
	}{
		{"volume of the pod", true, true, runtime.Volume{HostPath: "/v", SELinuxRelabel: true}},
		{"read-only", true, true, runtime.Volume{HostPath: "/v", SELinuxRelabel: true, ReadOnly: true}},
		{"hostPath", true, false, runtime.Volume{HostPath: "/v"}},
		{"image", true, false, runtime.Volume{Image: "i", SELinuxRelabel: true}},
		{"no SELinux", false, false, runtime.Volume{HostPath: "/v", SELinuxRelabel: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, err := mountOf(&Translator{Pod: &corev1.Pod{}, Node: Node{SELinux: tc.selinux}}, tc.volume, corev1.VolumeMount{})
			require.NoError(t, err)
			assert.Equal(t, tc.want, m.GetSelinuxRelabel())
		})
	}
}

// A subPathExpr with a variable that is missing or empty would mount another directory, or all of a volume that pods share.
func TestTranslator_SubPathExpr(t *testing.T) {
	env := []EnvVar{{"POD", "web"}, {"TENANT", ""}}
	for expr, want := range map[string]string{
		"$(POD)": "web", "a/$(POD)/b": "a/web/b", "$$(TENANT)": "$(TENANT)",
		"$(TENANT)": "", "$(TENANT)/x": "", "a/$(TENANT)": "", "$(OTHER)": "", "$()": "", "$(POD$(TENANT))": "",
	} {
		tr := &Translator{Pod: &corev1.Pod{}}
		tr.Options.SubPath = func(_ context.Context, _ string, _ int, m corev1.VolumeMount) (string, error) {
			return "/v/" + m.SubPath, nil
		}
		m, err := mountOf(tr, runtime.Volume{HostPath: "/v"}, corev1.VolumeMount{SubPathExpr: expr}, env...)
		if want == "" {
			assert.ErrorIs(t, err, runtime.ErrInvalid, expr)
			assert.ErrorContains(t, err, "not set or empty", expr)
			continue
		}
		require.NoError(t, err, expr)
		assert.Equal(t, "/v/"+want, m.GetHostPath())
	}
}
