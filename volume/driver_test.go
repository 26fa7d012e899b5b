package volume_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/volume"
)

// fakeDriver is a driver for nfs.
type fakeDriver struct {
	mounted   []volume.DriverVolume
	unmounted []types.UID
	err       error
	panics    bool
}

func (*fakeDriver) Sources() []string { return []string{"nfs"} }

func (d *fakeDriver) Mount(_ context.Context, v volume.DriverVolume) (runtime.Volume, error) {
	if d.panics {
		panic("no such luck")
	}
	d.mounted = append(d.mounted, v)
	return runtime.Volume{HostPath: "/driver/" + v.Volume.Name, ReadOnly: v.ReadOnly}, d.err
}

func (d *fakeDriver) Unmount(_ context.Context, uid types.UID) error {
	d.unmounted = append(d.unmounted, uid)
	return d.err
}

// fakeClaims has one claim and one volume.
type fakeClaims struct {
	claim  *corev1.PersistentVolumeClaim
	volume *corev1.PersistentVolume
	err    error
}

func (c *fakeClaims) Claim(context.Context, string, string) (*corev1.PersistentVolumeClaim, error) {
	return c.claim, c.err
}

func (c *fakeClaims) PersistentVolume(context.Context, string) (*corev1.PersistentVolume, error) {
	return c.volume, c.err
}

func boundClaim(source corev1.PersistentVolumeSource) *fakeClaims {
	return &fakeClaims{
		claim: &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data", UID: "claim-1"},
			Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv"}, Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
		},
		volume: &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pv"},
			Spec: corev1.PersistentVolumeSpec{
				PersistentVolumeSource: source, ClaimRef: &corev1.ObjectReference{Namespace: "default", Name: "data", UID: "claim-1"},
			},
		},
	}
}

func nfs() corev1.PersistentVolumeSource {
	return corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "nas", Path: "/x"}}
}

// claimPod has one volume, data, in one container.
func claimPod(source corev1.VolumeSource) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "uid-1"},
		Spec: corev1.PodSpec{
			Volumes:    []corev1.Volume{{Name: "data", VolumeSource: source}},
			Containers: []corev1.Container{{Name: "app", Image: "i", VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}}},
		},
	}
}

func viaClaim(readOnly bool) corev1.VolumeSource {
	return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data", ReadOnly: readOnly}}
}

func driverManager(t *testing.T, claims volume.Claims, drivers ...volume.Driver) *volume.Manager {
	t.Helper()
	m, err := volume.New(volume.Config{Root: t.TempDir(), Claims: claims, Drivers: drivers})
	require.NoError(t, err)
	return m
}

func TestMount_PassesVolumesToDrivers(t *testing.T) {
	d, claims := new(fakeDriver), boundClaim(nfs())
	m := driverManager(t, claims, d)
	pod := claimPod(viaClaim(true))
	volumes, err := m.Mount(t.Context(), pod, nil)
	require.NoError(t, err)
	assert.Equal(t, map[string]runtime.Volume{"data": {HostPath: "/driver/data", ReadOnly: true}}, volumes)
	require.Len(t, d.mounted, 1)
	assert.Equal(t, volume.DriverVolume{
		Pod: pod, Volume: &pod.Spec.Volumes[0], Claim: claims.claim, PersistentVolume: claims.volume, Source: "nfs", ReadOnly: true,
	}, d.mounted[0])

	inline := claimPod(corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}})
	_, err = m.Mount(t.Context(), inline, nil)
	require.NoError(t, err)
	assert.Nil(t, d.mounted[1].Claim)
	assert.Equal(t, "nfs", d.mounted[1].Source)

	require.NoError(t, m.Unmount(t.Context(), pod.UID))
	assert.Equal(t, []types.UID{pod.UID}, d.unmounted)
	d.err = errors.New("busy")
	require.ErrorContains(t, m.Unmount(t.Context(), pod.UID), "busy")
	_, err = m.Mount(t.Context(), inline, nil)
	require.ErrorContains(t, err, `volume "data": busy`)
	d.panics = true
	_, err = m.Mount(t.Context(), inline, nil)
	require.ErrorContains(t, err, "no such luck")
}

// What a driver has not unmounted is not deleted, and neither is what lies beside it.
func TestUnmount_KeepsWhatDriversHave(t *testing.T) {
	root := t.TempDir()
	d := &fakeDriver{err: errors.New("busy")}
	m, err := volume.New(volume.Config{Root: root, Drivers: []volume.Driver{d}})
	require.NoError(t, err)
	for _, rel := range []string{"volumes/kubernetes.io~csi", "volumeDevices/kubernetes.io~csi"} {
		record := filepath.Join(root, "pods", "uid-1", rel, "pv", "vol_data.json")
		require.NoError(t, os.MkdirAll(filepath.Dir(record), 0o700))
		require.NoError(t, os.WriteFile(record, nil, 0o600))
		d.err = errors.New("busy")
		require.ErrorContains(t, m.Unmount(t.Context(), "uid-1"), "busy")
		assert.FileExists(t, record)
		d.err = nil
		assert.Contains(t, m.PodUIDs(), types.UID("uid-1"))
		require.ErrorIs(t, m.Unmount(t.Context(), "uid-1"), volume.ErrForeignMount, "no driver has removed it")
		assert.FileExists(t, record)
		require.NoError(t, os.RemoveAll(filepath.Dir(record)))
	}
	require.NoError(t, m.Unmount(t.Context(), "uid-1"))
	assert.NoDirExists(t, filepath.Join(root, "pods", "uid-1"))
}

func TestMount_RejectsClaims(t *testing.T) {
	block, file := corev1.PersistentVolumeBlock, corev1.PersistentVolumeFilesystem
	for name, tc := range map[string]struct {
		change func(c *fakeClaims, pod *corev1.Pod)
		want   string
	}{
		"that do not exist":           {func(c *fakeClaims, _ *corev1.Pod) { c.err = podspec.ErrObjectNotFound }, "PersistentVolumeClaim default/data: "},
		"that are not bound":          {func(c *fakeClaims, _ *corev1.Pod) { c.claim.Spec.VolumeName = "" }, "is not bound to a volume"},
		"that are pending":            {func(c *fakeClaims, _ *corev1.Pod) { c.claim.Status.Phase = corev1.ClaimPending }, "is not bound to a volume"},
		"that are being deleted":      {func(c *fakeClaims, _ *corev1.Pod) { c.claim.DeletionTimestamp = new(metav1.Time) }, "is being deleted"},
		"whose volume is for another": {func(c *fakeClaims, _ *corev1.Pod) { c.volume.Spec.ClaimRef.Name = "other" }, "bound to the claim default/other"},
		"of another namespace":        {func(c *fakeClaims, _ *corev1.Pod) { c.volume.Spec.ClaimRef.Namespace = "other" }, "bound to the claim other/data"},
		"that were created anew":      {func(c *fakeClaims, _ *corev1.Pod) { c.volume.Spec.ClaimRef.UID = "claim-0" }, "bound to the claim"},
		"of a kind without a driver": {func(c *fakeClaims, _ *corev1.Pod) {
			c.volume.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{RBD: &corev1.RBDPersistentVolumeSource{}}
		}, "unsupported volume type rbd"},
		"of a device used as a file": {func(c *fakeClaims, _ *corev1.Pod) { c.volume.Spec.VolumeMode = &block }, "has volumeMode Block"},
		"of a device used as both": {func(c *fakeClaims, p *corev1.Pod) {
			c.volume.Spec.VolumeMode = &block
			p.Spec.InitContainers = append(p.Spec.InitContainers, p.Spec.Containers...)
			asDevice(p)
		}, "but a container has it in volumeMounts"},
		"of files used as a device": {func(c *fakeClaims, p *corev1.Pod) { c.volume.Spec.VolumeMode = &file; asDevice(p) }, "has volumeMode Filesystem"},
		"of another owner":          {func(_ *fakeClaims, p *corev1.Pod) { p.Spec.Volumes[0].VolumeSource = ephemeral() }, "was not created for this pod"},
	} {
		t.Run(name, func(t *testing.T) {
			claims, pod := boundClaim(nfs()), claimPod(viaClaim(false))
			if tc.change(claims, pod); pod.Spec.Volumes[0].Ephemeral != nil {
				claims.volume.Spec.ClaimRef.Name = "web-data"
			}
			_, err := driverManager(t, claims, new(fakeDriver)).Mount(t.Context(), pod, nil)
			require.ErrorContains(t, err, tc.want)
		})
	}
	_, err := driverManager(t, nil).Mount(t.Context(), claimPod(viaClaim(false)), nil)
	require.ErrorContains(t, err, "knows no PersistentVolumeClaims")
}

func asDevice(pod *corev1.Pod) {
	c := &pod.Spec.Containers[0]
	c.VolumeMounts, c.VolumeDevices = nil, []corev1.VolumeDevice{{Name: "data", DevicePath: "/dev/x"}}
}

func TestMount_EphemeralClaims(t *testing.T) {
	d, claims := new(fakeDriver), boundClaim(nfs())
	claims.volume.Spec.ClaimRef.Name = "web-data"
	yes := true
	claims.claim.OwnerReferences = []metav1.OwnerReference{{UID: "uid-1", Controller: &yes}}
	_, err := driverManager(t, claims, d).Mount(t.Context(), claimPod(ephemeral()), nil)
	require.NoError(t, err)
	require.Len(t, d.mounted, 1)
}

// A device is passed to the driver as one.
func TestMount_Devices(t *testing.T) {
	d, claims, pod := new(fakeDriver), boundClaim(nfs()), claimPod(viaClaim(false))
	block := corev1.PersistentVolumeBlock
	claims.volume.Spec.VolumeMode = &block
	asDevice(pod)
	_, err := driverManager(t, claims, d).Mount(t.Context(), pod, nil)
	require.NoError(t, err)
	require.True(t, d.mounted[0].Block)
}

// A claim that cannot be read any more, or was deleted, counts as it was until the pod ends.
func TestMount_KeepsKnownClaims(t *testing.T) {
	d, claims, pod := new(fakeDriver), boundClaim(nfs()), claimPod(viaClaim(false))
	m := driverManager(t, claims, d)
	_, err := m.Mount(t.Context(), pod, nil)
	require.NoError(t, err)
	claims.err = errors.New("no answer")
	_, err = m.Mount(t.Context(), pod, nil)
	require.NoError(t, err)
	require.Equal(t, claims.volume, d.mounted[1].PersistentVolume)
	require.NoError(t, m.Unmount(t.Context(), pod.UID))
	_, err = m.Mount(t.Context(), pod, nil)
	require.ErrorContains(t, err, "no answer")
}

// The usual deleted claim waits for the pod that uses it, also if the agent is started meanwhile.
func TestMount_DeletedClaimInUse(t *testing.T) {
	claims := boundClaim(nfs())
	deleted := metav1.Now()
	claims.claim.DeletionTimestamp, claims.claim.Finalizers = &deleted, []string{"kubernetes.io/pvc-protection"}
	pod := claimPod(viaClaim(false))
	pod.CreationTimestamp = deleted
	volumes, err := driverManager(t, claims, new(fakeDriver)).Mount(t.Context(), pod, nil)
	require.NoError(t, err)
	assert.Contains(t, volumes, "data")
	pod.CreationTimestamp = metav1.NewTime(deleted.Add(time.Second)) // it would keep the claim from ever going
	_, err = driverManager(t, claims, new(fakeDriver)).Mount(t.Context(), pod, nil)
	require.ErrorContains(t, err, "PersistentVolumeClaim default/data is being deleted")
}

func TestMount_LocalVolumes(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(dir+"/file", nil, 0o600))
	local := func(path string) *fakeClaims {
		return boundClaim(corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: path}})
	}
	pod := claimPod(viaClaim(false))
	group := int64(os.Getegid())
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
	m := driverManager(t, local(dir))
	volumes, err := m.Mount(t.Context(), pod, nil)
	require.NoError(t, err)
	assert.Equal(t, runtime.Volume{HostPath: dir, SELinuxRelabel: true}, volumes["data"])
	mode := func() os.FileMode {
		info, err := os.Stat(dir + "/file")
		require.NoError(t, err)
		return info.Mode()
	}
	assert.Equal(t, os.FileMode(0o660), mode())
	require.NoError(t, os.Chmod(dir+"/file", 0o600))
	_, err = m.Mount(t.Context(), pod, nil)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), mode(), "once")
	require.NoError(t, m.Unmount(t.Context(), pod.UID))
	assert.FileExists(t, dir+"/file")

	readOnly := claimPod(viaClaim(true))
	readOnly.Spec.SecurityContext = pod.Spec.SecurityContext
	volumes, err = m.Mount(t.Context(), readOnly, nil)
	require.NoError(t, err)
	assert.Equal(t, runtime.Volume{HostPath: dir, ReadOnly: true}, volumes["data"])
	assert.Equal(t, os.FileMode(0o600), mode(), "a volume that is only read keeps its modes")

	for path, want := range map[string]string{"relative": "must be absolute", dir + "/none": "no such file", dir + "/file": "is neither a Directory nor a BlockDevice"} {
		_, err = driverManager(t, local(path)).Mount(t.Context(), pod, nil)
		require.ErrorContains(t, err, want)
	}
	claims := local(dir)
	block := corev1.PersistentVolumeBlock
	claims.volume.Spec.VolumeMode = &block
	device := claimPod(viaClaim(false))
	asDevice(device)
	_, err = driverManager(t, claims).Mount(t.Context(), device, nil)
	require.ErrorContains(t, err, "is not a BlockDevice")
	volumes, err = driverManager(t, boundClaim(corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}})).Mount(t.Context(), pod, nil)
	require.NoError(t, err)
	assert.Equal(t, dir, volumes["data"].HostPath)
}

func TestNew_ChecksDrivers(t *testing.T) {
	_, err := volume.New(volume.Config{Root: "/r", Drivers: []volume.Driver{new(fakeDriver), new(fakeDriver), nil}})
	require.ErrorContains(t, err, "more than one driver for nfs")
	require.ErrorContains(t, err, "nil driver")
}

func TestConfig_Supported(t *testing.T) {
	pod := claimPod(viaClaim(false))
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "e", VolumeSource: ephemeral()},
		corev1.Volume{Name: "n", VolumeSource: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}}},
		corev1.Volume{Name: "r", VolumeSource: corev1.VolumeSource{RBD: &corev1.RBDVolumeSource{}}})
	asDevice(pod)
	pod.Spec.ServiceAccountName = "robot"
	fields := func(cfg volume.Config) (names []string) {
		for _, e := range cfg.Supported(podspec.Unsupported)(pod) {
			names = append(names, e.Field)
		}
		return names
	}
	all := fields(volume.Config{})
	require.Len(t, all, 6)
	assert.Equal(t, []string{"spec.volumes[3].rbd", "spec.serviceAccountName"}, fields(volume.Config{Claims: boundClaim(nfs()), Drivers: []volume.Driver{new(fakeDriver)}}))
	assert.Equal(t, []string{"spec.volumes[2].nfs", "spec.volumes[3].rbd", "spec.serviceAccountName"}, fields(volume.Config{Claims: boundClaim(nfs())}))
	assert.Len(t, fields(volume.Config{Drivers: []volume.Driver{new(fakeDriver)}}), 5)
}

const storageManifests = `apiVersion: v1
kind: PersistentVolume
metadata: {name: pv-1}
spec: {claimRef: {namespace: default, name: one, uid: of-elsewhere}, nfs: {server: nas, path: /1}}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: two}
spec: {nfs: {server: nas, path: /2}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: three}
spec: {volumeName: pv-1}
---
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: csi.example}
spec: {podInfoOnMount: true}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec: {containers: [{name: c, image: i}]}
`

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "all.yaml")
	require.NoError(t, os.WriteFile(path, []byte(storageManifests), 0o600))
	require.NoError(t, os.WriteFile(dir+"/.hidden.yaml", []byte("kind: ["), 0o600))
	require.NoError(t, os.WriteFile(dir+"/notes.txt", []byte("kind: ["), 0o600))
	require.NoError(t, os.Mkdir(dir+"/dir.yaml", 0o700))
	files := volume.NewFiles(dir)
	for claim, want := range map[string]string{"one": "pv-1", "two": "two", "three": "pv-1"} {
		c, err := files.Claim(t.Context(), "default", claim)
		require.NoError(t, err, claim)
		assert.Equal(t, want, c.Spec.VolumeName)
		assert.Equal(t, corev1.ClaimBound, c.Status.Phase)
		v, err := files.PersistentVolume(t.Context(), want)
		require.NoError(t, err)
		assert.Equal(t, want, v.Name)
		if v.Spec.ClaimRef != nil {
			assert.Empty(t, v.Spec.ClaimRef.UID)
		}
	}
	for _, namespace := range []string{"other", ""} {
		_, err := files.Claim(t.Context(), namespace, "one")
		require.ErrorIs(t, err, podspec.ErrObjectNotFound)
	}
	driver, err := files.CSIDriver(t.Context(), "csi.example")
	require.NoError(t, err)
	assert.True(t, *driver.Spec.PodInfoOnMount)
	_, err = files.CSIDriver(t.Context(), "other")
	require.ErrorIs(t, err, podspec.ErrObjectNotFound)
	_, err = files.PersistentVolume(t.Context(), "other")
	require.ErrorIs(t, err, podspec.ErrObjectNotFound)

	change := func(text string) {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		later := time.Now().Add(time.Hour)
		require.NoError(t, os.Chtimes(path, later, later))
	}
	change("kind: [")
	_, err = files.PersistentVolume(t.Context(), "two")
	require.NoError(t, err, "an invalid file counts as it was")
	change("apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: four}\nspec: {nfs: {server: nas, path: /4}}\n")
	_, err = files.PersistentVolume(t.Context(), "two")
	require.ErrorIs(t, err, podspec.ErrObjectNotFound)
	_, err = files.Claim(t.Context(), "any", "four")
	require.NoError(t, err)
	single := volume.NewFiles(path)
	_, err = single.PersistentVolume(t.Context(), "four")
	require.NoError(t, err)
	require.NoError(t, os.Remove(path))
	_, err = single.PersistentVolume(t.Context(), "four")
	require.ErrorIs(t, err, podspec.ErrObjectNotFound)
}

// A manifest that was read right after it was written is read again, as it may be written once more at the same time.
func TestFiles_WrittenTwiceAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pv.yaml")
	files, now := volume.NewFiles(path), time.Now()
	for _, name := range []string{"one", "two"} {
		require.NoError(t, os.WriteFile(path, []byte("apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: "+name+"}\nspec: {nfs: {server: nas, path: /}}\n"), 0o600))
		require.NoError(t, os.Chtimes(path, now, now))
		_, err := files.PersistentVolume(t.Context(), name)
		require.NoError(t, err, name)
	}
}

// reportingDriver knows how full its volumes are.
type reportingDriver struct {
	fakeDriver
	source string
	usage  map[string]runtime.FSUsage // nil: it panics
}

func (d *reportingDriver) Sources() []string { return []string{d.source} }

func (d *reportingDriver) VolumeUsage(uid types.UID) map[string]runtime.FSUsage {
	if d.usage == nil {
		panic("no such luck")
	}
	return map[string]runtime.FSUsage{string(uid) + "-data": d.usage["data"]}
}

func TestManager_VolumeUsage(t *testing.T) {
	m, err := volume.New(volume.Config{Root: t.TempDir(), Drivers: []volume.Driver{
		&fakeDriver{}, &reportingDriver{source: "iscsi"}, &reportingDriver{source: "csi", usage: map[string]runtime.FSUsage{"data": {UsedBytes: 7}}},
	}})
	require.NoError(t, err)
	assert.Equal(t, map[string]runtime.FSUsage{"u-data": {UsedBytes: 7}}, m.VolumeUsage("u"))
}

// The group that an administrator has given a PersistentVolume is one of its pods.
func TestMount_GroupOfPersistentVolume(t *testing.T) {
	dir := t.TempDir()
	for name, source := range map[string]corev1.PersistentVolumeSource{
		"driver": nfs(), "local": {Local: &corev1.LocalVolumeSource{Path: dir}}, "hostPath": {HostPath: &corev1.HostPathVolumeSource{Path: dir}},
	} {
		for value, want := range map[string]*int64{"1234": new(int64(1234)), "0": new(int64(0)), "-1": nil, "4294967296": nil, "staff": nil, "": nil} {
			claims := boundClaim(source)
			claims.volume.Annotations = map[string]string{"pv.beta.kubernetes.io/gid": value}
			volumes, err := driverManager(t, claims, new(fakeDriver)).Mount(t.Context(), claimPod(viaClaim(false)), nil)
			require.NoError(t, err)
			assert.Equal(t, want, volumes["data"].Group, "%s %q", name, value)
		}
	}
}
