package csi

import (
	"context"
	"encoding/base64"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/internal/csitest"
	"github.com/sublet-dev/agent/internal/logtest"
	"github.com/sublet-dev/agent/volume"
)

// VD-1: a volume is staged once, published for each pod, and unstaged with the last one.
func TestMount_StagesOnceForAllPods(t *testing.T) {
	e := newEnv(t, nil)
	one, two := newPod("1"), newPod("2")
	path := e.mounted(e.volumeOf(one, "v"))
	assert.Equal(t, filepath.Join(e.dir, "root/pods/1/volumes/kubernetes.io~csi/pv-v/mount"), path)
	require.NoError(t, os.WriteFile(path+"/file", []byte("data"), 0o644))
	assert.Equal(t, []string{"NodeStageVolume", "NodePublishVolume", "NodeExpandVolume"}, e.methods())
	assert.Equal(t, path, e.mounted(e.volumeOf(one, "v")))
	assert.Empty(t, e.methods(), "it is mounted")

	other := e.mounted(e.volumeOf(two, "v"))
	text, err := os.ReadFile(other + "/file")
	require.NoError(t, err)
	assert.Equal(t, "data", string(text))
	assert.Equal(t, []string{"NodePublishVolume"}, e.methods())
	e.unmounted(one)
	assert.Equal(t, []string{"NodeUnpublishVolume"}, e.methods())
	assert.FileExists(t, other+"/file")
	e.unmounted(two)
	assert.Equal(t, []string{"NodeUnpublishVolume", "NodeUnstageVolume"}, e.methods())
	e.requireNothingLeft()
	assert.FileExists(t, filepath.Join(e.driver.VolumeDir("v"), "data", "file"))
	e.unmounted(two)
	assert.Empty(t, e.methods())
	assert.Empty(t, e.volumes)
}

func TestMount_WithoutStaging(t *testing.T) {
	e := newEnv(t, func(e *testEnv, _ *Config) { e.driver.NoStage, e.driver.NoExpand = true, true })
	e.mounted(e.volumeOf(newPod("1"), "v"))
	e.unmounted(newPod("1"))
	assert.Equal(t, []string{"NodePublishVolume", "NodeUnpublishVolume"}, e.methods())
	e.requireNothingLeft()
}

// What a driver gets is what the PersistentVolume, the pod and the CSIDriver say.
func TestMount_Requests(t *testing.T) {
	e := newEnv(t, func(e *testEnv, _ *Config) { e.driver.Group, e.driver.Writers = true, true })
	yes, group := true, int64(77)
	e.setCSIDriver(storagev1.CSIDriverSpec{PodInfoOnMount: &yes})
	e.objects = map[string]map[string][]byte{"ns/stage": {csitest.SecretKey: []byte("s3cret")}, "ns/publish": {"p": []byte("1")}, "ns/expand": {"x": []byte("2")}}
	pod := newPod("1")
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
	v := e.volumeOf(pod, "v")
	v.PersistentVolume.Spec.MountOptions = []string{"noatime"}
	source := v.PersistentVolume.Spec.CSI
	source.VolumeAttributes = map[string]string{"secret": "s3cret", "a": "b"}
	source.NodeStageSecretRef = &corev1.SecretReference{Namespace: "ns", Name: "stage"}
	source.NodePublishSecretRef = &corev1.SecretReference{Namespace: "ns", Name: "publish"}
	source.NodeExpandSecretRef = &corev1.SecretReference{Namespace: "ns", Name: "expand"}
	path := e.mounted(v)
	calls := map[string]any{}
	for _, c := range e.driver.TakeCalls() {
		calls[c.Method] = c.Request
	}
	e.unmounted(pod)

	stage, ok := calls["NodeStageVolume"].(*spec.NodeStageVolumeRequest)
	require.True(t, ok)
	assert.Equal(t, "v", stage.GetVolumeId())
	assert.Equal(t, map[string]string{csitest.SecretKey: "s3cret"}, stage.GetSecrets())
	assert.Equal(t, source.VolumeAttributes, stage.GetVolumeContext())
	files := stage.GetVolumeCapability().GetMount()
	assert.Equal(t, "ext4", files.GetFsType())
	assert.Equal(t, []string{"noatime"}, files.GetMountFlags())
	assert.Equal(t, "77", files.GetVolumeMountGroup())
	assert.Equal(t, spec.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER, stage.GetVolumeCapability().GetAccessMode().GetMode())

	publish, ok := calls["NodePublishVolume"].(*spec.NodePublishVolumeRequest)
	require.True(t, ok)
	assert.Equal(t, path, publish.GetTargetPath())
	assert.Equal(t, stage.GetStagingTargetPath(), publish.GetStagingTargetPath())
	assert.False(t, publish.GetReadonly())
	assert.Equal(t, map[string]string{"p": "1"}, publish.GetSecrets())
	assert.Equal(t, map[string]string{
		"secret": "s3cret", "a": "b", "csi.storage.k8s.io/pod.name": "pod-1", "csi.storage.k8s.io/pod.namespace": "default",
		"csi.storage.k8s.io/pod.uid": "1", "csi.storage.k8s.io/serviceAccount.name": "robot", "csi.storage.k8s.io/ephemeral": "false",
	}, publish.GetVolumeContext())
	expand, ok := calls["NodeExpandVolume"].(*spec.NodeExpandVolumeRequest)
	require.True(t, ok)
	assert.Equal(t, int64(1<<30), expand.GetCapacityRange().GetRequiredBytes())
	assert.Equal(t, path, expand.GetVolumePath())
	assert.Equal(t, map[string]string{"x": "2"}, expand.GetSecrets())
	assert.Equal(t, "ext4", expand.GetVolumeCapability().GetMount().GetFsType())
	assert.Empty(t, expand.GetVolumeCapability().GetMount().GetVolumeMountGroup(), "as from a kubelet")
	assert.Equal(t, map[string]string{"secret": "s3cret", "a": "b"}, source.VolumeAttributes, "they are not changed")
}

func TestMount_AccessModes(t *testing.T) {
	for _, tc := range []struct {
		mode    corev1.PersistentVolumeAccessMode
		writers bool
		want    spec.VolumeCapability_AccessMode_Mode
	}{
		{corev1.ReadWriteOnce, false, spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		{corev1.ReadWriteOncePod, false, spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		{corev1.ReadWriteOncePod, true, spec.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER},
		{corev1.ReadWriteMany, true, spec.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
		{corev1.ReadOnlyMany, false, spec.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY},
	} {
		e := newEnv(t, func(e *testEnv, _ *Config) { e.driver.Writers = tc.writers })
		v := e.volumeOf(newPod("1"), "v")
		v.PersistentVolume.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{tc.mode}
		e.mounted(v)
		r, ok := e.driver.Calls("NodePublishVolume")[0].Request.(*spec.NodePublishVolumeRequest)
		require.True(t, ok)
		assert.Equal(t, tc.want, r.GetVolumeCapability().GetAccessMode().GetMode())
		e.unmounted(v.Pod)
	}
}

// VD-4: a volume with ReadWriteOncePod is for one pod, until it is unmounted, also after a restart.
func TestMount_ReadWriteOncePod(t *testing.T) {
	e := newEnv(t, nil)
	one, two := e.volumeOf(newPod("1"), "v"), e.volumeOf(newPod("2"), "v")
	for _, v := range []volume.DriverVolume{one, two} {
		v.PersistentVolume.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	}
	e.mounted(one)
	e.mounted(one)
	requireRejected := func() {
		t.Helper()
		_, err := e.Mount(t.Context(), two)
		require.ErrorContains(t, err, "volume pv-v has the access mode ReadWriteOncePod and is in use by the pod with UID 1")
	}
	requireRejected()
	e.restart(nil)
	e.register()
	requireRejected()
	e.unmounted(one.Pod)
	e.mounted(two)
	e.unmounted(two.Pod)
	e.requireNothingLeft()
}

// Volumes in the spec of a pod are never staged, and live as long as the pod. A driver that
// distinguishes writers is asked for what a kubelet asks for.
func TestMount_Inline(t *testing.T) {
	e := newEnv(t, func(e *testEnv, _ *Config) { e.driver.Writers = true })
	pod := newPod("1")
	e.objects = map[string]map[string][]byte{"default/token": {"t": []byte("1")}}
	v := volume.DriverVolume{Pod: pod, Source: "csi", Objects: e, Volume: &corev1.Volume{Name: "scratch", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{
		Driver: csitest.Name, VolumeAttributes: map[string]string{"size": "1"}, NodePublishSecretRef: &corev1.LocalObjectReference{Name: "token"},
	}}}}
	path := e.mounted(v)
	require.NoError(t, os.WriteFile(path+"/file", nil, 0o600))
	assert.Equal(t, filepath.Join(e.dir, "root/pods/1/volumes/kubernetes.io~csi/scratch/mount"), path)
	r, ok := e.driver.Calls("NodePublishVolume")[0].Request.(*spec.NodePublishVolumeRequest)
	require.True(t, ok)
	assert.Equal(t, "true", r.GetVolumeContext()["csi.storage.k8s.io/ephemeral"])
	assert.Equal(t, "pod-1", r.GetVolumeContext()["csi.storage.k8s.io/pod.name"])
	assert.Equal(t, map[string]string{"t": "1"}, r.GetSecrets())
	assert.Equal(t, inlineHandle("1", "scratch"), r.GetVolumeId())
	assert.Equal(t, spec.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER, r.GetVolumeCapability().GetAccessMode().GetMode())
	assert.Equal(t, []string{"NodePublishVolume"}, e.methods())
	e.unmounted(pod)
	e.requireNothingLeft()
	assert.NoDirExists(t, e.driver.VolumeDir(r.GetVolumeId()))

	e.setCSIDriver(storagev1.CSIDriverSpec{})
	_, err := e.Mount(t.Context(), v)
	require.ErrorContains(t, err, "CSI driver csitest.example has no Ephemeral volumes, as its CSIDriver says")
	e.requireNothingLeft()
}

func TestMount_FSGroup(t *testing.T) {
	none, file := storagev1.NoneFSGroupPolicy, storagev1.FileFSGroupPolicy
	for name, tc := range map[string]struct {
		change func(e *testEnv, v *volume.DriverVolume)
		want   bool
	}{
		"by default with a file system":     {func(*testEnv, *volume.DriverVolume) {}, true},
		"not without a type of file system": {func(_ *testEnv, v *volume.DriverVolume) { v.PersistentVolume.Spec.CSI.FSType = "" }, false},
		"not if several nodes may write": {func(_ *testEnv, v *volume.DriverVolume) {
			v.PersistentVolume.Spec.AccessModes[0] = corev1.ReadWriteMany
		}, false},
		"not if the driver does not want it": {func(e *testEnv, _ *volume.DriverVolume) { e.csi.Spec.FSGroupPolicy = &none }, false},
		"of shared files if the driver wants it": {func(e *testEnv, v *volume.DriverVolume) {
			e.csi.Spec.FSGroupPolicy = &file
			v.PersistentVolume.Spec.CSI.FSType = ""
			v.PersistentVolume.Spec.AccessModes[0] = corev1.ReadWriteMany
		}, true},
		"not of what is only read":          {func(_ *testEnv, v *volume.DriverVolume) { v.ReadOnly = true }, false},
		"not of a source that is only read": {func(_ *testEnv, v *volume.DriverVolume) { v.PersistentVolume.Spec.CSI.ReadOnly = true }, false},
		"not if the driver does it":         {func(e *testEnv, _ *volume.DriverVolume) { e.driver.Group = true; e.register() }, false},
		"not for a pod without it":          {func(_ *testEnv, v *volume.DriverVolume) { v.Pod.Spec.SecurityContext = nil }, false},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, nil)
			e.setCSIDriver(storagev1.CSIDriverSpec{})
			group := int64(os.Getegid())
			pod := newPod("1")
			pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
			v := e.volumeOf(pod, "v")
			path := filepath.Join(e.driver.VolumeDir("v"), "data", "file")
			require.NoError(t, os.WriteFile(path, nil, 0o600))
			tc.change(e, &v)
			e.mounted(v)
			info, err := os.Stat(path)
			require.NoError(t, err)
			assert.Equal(t, tc.want, info.Mode().Perm() == 0o660, info.Mode())
			e.unmounted(pod)
		})
	}
}

// VD-5: a PersistentVolume that becomes larger is expanded under its pod.
func TestMount_Expands(t *testing.T) {
	e := newEnv(t, nil)
	pod := newPod("1")
	v := e.volumeOf(pod, "v")
	e.mounted(v)
	assert.Equal(t, int64(1<<30), e.driver.Size("v"))
	larger := e.volumeOf(pod, "v")
	larger.PersistentVolume.Spec.Capacity["storage"] = resource.MustParse("2Gi")
	e.mounted(larger)
	e.mounted(larger)
	assert.Equal(t, int64(2<<30), e.driver.Size("v"))
	assert.Len(t, e.driver.Calls("NodeExpandVolume"), 2)
	assert.Equal(t, []string{`pod-1: volume "data" has 2Gi now`}, e.recorded("FileSystemResizeSuccessful"))
	e.driver.SetBefore(func(_ context.Context, method string, _ any) error {
		if method == "NodeExpandVolume" {
			return status.Error(codes.Internal, "disk is full")
		}
		return nil
	})
	larger.PersistentVolume.Spec.Capacity["storage"] = resource.MustParse("3Gi")
	e.mounted(larger)
	assert.Equal(t, []string{`pod-1: volume "data": CSI driver csitest.example: NodeExpandVolume: disk is full`}, e.recorded("VolumeResizeFailed"))
	e.driver.SetBefore(nil)
	e.mounted(larger)
	assert.Equal(t, int64(3<<30), e.driver.Size("v"))
	e.unmounted(pod)

	e.driver.TakeCalls()
	v.Claim.Status.Capacity = corev1.ResourceList{"storage": resource.MustParse("1Gi")}
	e.mounted(v)
	assert.Empty(t, e.driver.Calls("NodeExpandVolume"), "the claim has its size")
	e.unmounted(pod)
	e.requireNothingLeft()
}

func TestMount_Republishes(t *testing.T) {
	e := newEnv(t, nil)
	yes := true
	e.setCSIDriver(storagev1.CSIDriverSpec{RequiresRepublish: &yes})
	v := e.volumeOf(newPod("1"), "v")
	e.mounted(v)
	e.mounted(v)
	assert.Len(t, e.driver.Calls("NodePublishVolume"), 2)
	e.stop(true)
	e.mounted(v)
	e.serve()
	e.unmounted(v.Pod)
}

// VD-7: a volume that was attached is published once more with what its attacher says, also by the
// next process. A cluster that does not answer does not disturb the pod.
func TestMount_RepublishesAttachedVolumes(t *testing.T) {
	cluster := &fakeCluster{context: map[string]string{"device": "/dev/x"}}
	attach := func(_ *testEnv, cfg *Config) { cfg.Attachments, cfg.Node = cluster, cluster }
	e := newEnv(t, attach)
	yes := true
	e.setCSIDriver(storagev1.CSIDriverSpec{RequiresRepublish: &yes})
	v := e.volumeOf(newPod("1"), "v")
	e.mounted(v)
	e.mounted(v)
	e.restart(attach)
	e.register()
	e.mounted(v)
	published := e.driver.Calls("NodePublishVolume")
	require.Len(t, published, 3)
	for _, c := range published {
		assert.Equal(t, cluster.context, c.Request.(interface{ GetPublishContext() map[string]string }).GetPublishContext())
	}
	cluster.err = errors.New("the API server does not answer")
	e.mounted(v)
	assert.Len(t, e.driver.Calls("NodePublishVolume"), 3)
	e.unmounted(v.Pod)
}

// fakeTokens gives tokens of service accounts.
type fakeTokens struct {
	*testEnv
	token string
}

func (f fakeTokens) ServiceAccountToken(_ context.Context, _ *corev1.Pod, p *corev1.ServiceAccountTokenProjection) ([]byte, error) {
	if p.Audience == "none" {
		return nil, errors.New("no answer")
	}
	return []byte(f.token), nil
}

// VD-6: a driver gets the tokens that its CSIDriver requests, where it wants them, and they occur in
// no error.
func TestMount_Tokens(t *testing.T) {
	e := newEnv(t, nil)
	jwt := "h." + base64.RawURLEncoding.EncodeToString([]byte(`{"exp": 1700000000}`)) + ".s3cret"
	want := `{"vault":{"token":"` + jwt + `","expirationTimestamp":"2023-11-14T22:13:20Z"}}`
	e.setCSIDriver(storagev1.CSIDriverSpec{TokenRequests: []storagev1.TokenRequest{{Audience: "vault"}}})
	v := e.volumeOf(newPod("1"), "v")
	_, err := e.Mount(t.Context(), v)
	require.ErrorContains(t, err, "wants tokens of service accounts, which need an API server")
	v.Objects = fakeTokens{e, jwt}
	e.driver.SetBefore(func(_ context.Context, method string, request any) error {
		if r, ok := request.(*spec.NodePublishVolumeRequest); ok && method == "NodePublishVolume" {
			return status.Error(codes.Internal, "got "+r.GetVolumeContext()[tokensKey])
		}
		return nil
	})
	_, err = e.Mount(t.Context(), v)
	require.ErrorContains(t, err, `got {"vault":{"token":"***"`)
	e.driver.SetBefore(nil)
	e.driver.TakeCalls()
	e.mounted(v)
	request := func() *spec.NodePublishVolumeRequest {
		t.Helper()
		r, ok := e.driver.Calls("NodePublishVolume")[0].Request.(*spec.NodePublishVolumeRequest)
		require.True(t, ok)
		return r
	}
	assert.JSONEq(t, want, request().GetVolumeContext()[tokensKey])
	e.unmounted(v.Pod)
	e.driver.TakeCalls()
	yes := true
	e.csi.Spec.ServiceAccountTokenInSecrets = &yes
	e.mounted(v)
	assert.JSONEq(t, want, request().GetSecrets()[tokensKey])
	e.unmounted(v.Pod)
	e.driver.TakeCalls()
	e.objects = map[string]map[string][]byte{"default/forged": {tokensKey: []byte("forged"), "key": []byte("k")}}
	v.PersistentVolume.Spec.CSI.NodePublishSecretRef = &corev1.SecretReference{Namespace: "default", Name: "forged"}
	e.mounted(v)
	assert.JSONEq(t, want, request().GetSecrets()[tokensKey], "whatever the Secret has")
	assert.Equal(t, "k", request().GetSecrets()["key"])
	assert.NotContains(t, request().GetVolumeContext(), tokensKey)
	e.unmounted(v.Pod)
	e.csi.Spec.TokenRequests[0].Audience = "none"
	_, err = e.Mount(t.Context(), v)
	require.ErrorContains(t, err, "token for CSI driver csitest.example: no answer")
	e.unmounted(v.Pod)
	e.requireNothingLeft()
}

// The SELinux context of a pod is left to the container runtime, which is logged.
func TestMount_IgnoresSELinuxContexts(t *testing.T) {
	log := new(logtest.Buffer)
	e := newEnv(t, func(_ *testEnv, cfg *Config) { cfg.Logger = slog.New(slog.NewTextHandler(log, nil)) })
	yes := true
	e.setCSIDriver(storagev1.CSIDriverSpec{SELinuxMount: &yes})
	e.mounted(e.volumeOf(newPod("1"), "v"))
	const message = `"volume not mounted with its SELinux context" podUID=2 volume=pv-w reason="the container runtime labels the files"`
	assert.NotContains(t, log.String(), "SELinux", "the pod has none")
	labeled := newPod("2")
	labeled.Spec.SecurityContext = &corev1.PodSecurityContext{SELinuxOptions: &corev1.SELinuxOptions{Level: "s0:c1"}}
	e.mounted(e.volumeOf(labeled, "w"))
	assert.Contains(t, log.String(), message)
	for _, c := range e.driver.Calls("NodeStageVolume") {
		assert.Empty(t, c.Request.(*spec.NodeStageVolumeRequest).GetVolumeCapability().GetMount().GetMountFlags())
	}
	e.unmounted(newPod("1"))
	e.unmounted(labeled)
	e.requireNothingLeft()
}
